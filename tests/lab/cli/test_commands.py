"""train, compare, measure and report: what they write and print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dynamicgate
from dynamicgate.lab.cli import main
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.methods import Settings
from dynamicgate.training import read_log

from .quick_runs import QUICK


def test_compare_prints_a_table_and_writes_results_report_models_and_logs(compared: tuple[Path, str]) -> None:
    out, printed = compared
    shown = [line.split()[0] for line in printed.splitlines()[2:8]]
    assert shown == ["dense", "small", "dropout", "static", "gate", "sparsify"]
    assert f"report: {out / 'report.html'}" in printed
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "</html>" in page
    results = json.loads((out / "results.json").read_text())
    assert results["meta"]["budget"] == 0.3
    assert results["meta"]["hidden"] == [24]
    for run in results["runs"]:
        assert (out / run["folder"] / "model.safetensors").stat().st_size > 1000
        assert [row["step"] for row in read_log(out / run["folder"] / "log.jsonl")][-1] == run["steps"] == 3 * 20
        assert run["quality"]["accuracy"] > 0.15


def test_comparing_again_repeats_no_run(compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, printed = compared
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")}
    assert main(["compare", "--data", "digits", "--seeds", "1", *QUICK, "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == printed.splitlines()
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")} == before


def test_measure_agrees_with_the_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", str(model), "--out", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    run = json.loads((model.parent / "run.json").read_text())
    for key in ("quality", "macs", "proxies", "layers", "params", "samples", "gates"):
        assert found[key] == run[key]
    assert found["count"] == 359
    assert found["meta"]["versions"]["dynamicgate"] == dynamicgate.__version__
    assert f"{run['macs']['relative']:.4f}" in printed
    assert f"{run['quality']['accuracy']:.4f}" in printed
    assert f"wrote {tmp_path / 'found.json'}" in printed


def test_measure_uses_the_part_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    assert main(["measure", str(model), "--part", "valid", "--out", str(tmp_path / "found.json")]) == 0
    valid = json.loads((model.parent / "run.json").read_text())["valid"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["count"] == 216
    assert found["quality"] == {key: valid[key] for key in ("accuracy", "macro_f1")}
    assert found["macs"]["relative"] == pytest.approx(valid["relative"], rel=1e-6)


def test_measure_uses_the_training_dataset_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Any, Any]] = []
    original = load_dataset

    def spy(name: str, *, data_dir: Any = None, seed: int = 0, options: Any = None) -> Any:
        loaded.append((name, None if data_dir is None else str(data_dir)))
        return original("digits", seed=seed)

    for module in (
        "datasets.aligned",
        "runner.comparison",
        "datasets.loading",
    ):  # the one that others import it from last
        monkeypatch.setattr(f"dynamicgate.lab.{module}.load_dataset", spy)
    out = tmp_path / "run"
    there = ["--data", "elsewhere", "--data-dir", str(tmp_path / "there")]
    assert main(["train", "--model", "dense", *there, *QUICK, "--out", str(out)]) == 0
    assert main(["measure", str(out / "model.safetensors"), *there]) == 0
    assert main(["measure", str(out / "model.safetensors"), "--data", "digits"]) == 0
    assert loaded == [("elsewhere", str(tmp_path / "there"))] * 2 + [("digits", None)]
    assert main(["compare", *there, "--models", "dense", "--seeds", "1", *QUICK, "--out", str(tmp_path / "two")]) == 0
    assert loaded[3:] == [("elsewhere", str(tmp_path / "there"))]


def test_report_writes_the_same_page_again(compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, printed = compared
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == page
    assert capsys.readouterr().out.splitlines() == printed.splitlines()


def test_train_writes_one_run_and_does_not_repeat_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--model", "small", "--seed", "3", *QUICK, "--out", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["model"], run["seed"]) == ("small", 3)
    assert f"test accuracy {run['quality']['accuracy']:.4f}" in printed
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    assert main(command) == 0
    assert capsys.readouterr().out == printed
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")  # a CPU without bf16 says so, and goes on
@pytest.mark.parametrize(
    "gate",
    [{"scale": True, "policy": "bernoulli", "always_open": 0.25}, {"soft_width": 0.7, "policy": "gumbel"}],
)
def test_every_training_option_reaches_the_run(gate: dict[str, Any], tmp_path: Path) -> None:
    given = {
        "budget": 0.5, "hidden": [20, 12], "epochs": 1, "batch": 300, "lr": 0.007, "weight_decay": 0.2, "dropout": 0.3,
        "dense_dropout": 0.15,
        "block": 4, "net": "two-layer", "rank": 6, "tau": 0.9, "theta": 0.4, **gate,
        "accumulate": 2, "clip": 0.5, "bf16": True, "balanced": True, "patience": 2, "density": 0.4,
        "gate_density": 0.7, "pattern": "fan-in", "output": "sparse", "every": 1, "activation": "gelu",
        "initial_density": 0.8, "prune_until": 0.6, "gate_fraction": 0.3, "open_rate": 0.5, "distill_weight": 0.25,
        "gate_lr_scale": 0.5, "start_static": True, "fold": True, "order_units": True, "anneal": 0.25,
        "distribution": "erk", "widen": 1.5,
    }  # fmt: skip
    words: list[str] = []
    for name, value in given.items():
        option = name.replace("_", "-")
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{'no-' if value is False else ''}{option}", *([] if isinstance(value, bool) else [text])]
    assert main(["train", "--model", "gate+rigl", *words, "--out", str(tmp_path)]) == 0
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    other = {"scale": False, "soft_width": 0.0, "always_open": 0.0}  # a soft width goes with neither of the others
    other |= {"stages": None, "focus": None, "decide": "margin", "stage_distill": 0.0, "first_stage_weight": 1.0}
    # only models in stages take these
    other["clock"] = False  # and this one only sparsify
    other |= {"loss": "auto"}  # only a regression takes another
    assert settings == {"data": "digits", "model": "gate+rigl", "seed": 0, "data_options": [], **other, **given}
    assert not [name for name, value in given.items() if value == getattr(Settings(), name)], "none is the default"
