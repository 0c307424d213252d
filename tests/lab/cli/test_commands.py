"""The command line: what it writes, what it says, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import dynamicgate
from dynamicgate.lab.cli import main
from dynamicgate.lab.methods import Settings
from dynamicgate.training import read_log

QUICK = ["--epochs", "3", "--hidden", "24", "--batch", "64"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a comparison, and what it printed; what it says on the way goes to standard error."""
    out = tmp_path_factory.mktemp("compared")
    printed, said = StringIO(), StringIO()
    with redirect_stdout(printed), redirect_stderr(said):
        assert main(["compare", "--data", "digits", "--seeds", "1", *QUICK, "--out", str(out)]) == 0
    assert [line.split()[:2] for line in said.getvalue().splitlines()][-1] == ["[5/5]", "gate"]
    return out, printed.getvalue()


@pytest.fixture
def model(compared: tuple[Path, str]) -> Path:
    return next(compared[0].glob("runs/gate-*/model.safetensors"))


# --- what it does -----------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dynamicgate {dynamicgate.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], ["train", "compare", "measure", "bench", "report", "data"]),
        (["train"], ["For example", "dynamicgate train --data digits --budget 0.3", "torchrun", "--budget", "--out"]),
        (["compare"], ["For example", "dynamicgate compare --data digits --budget 0.3 --seeds 5", "--models"]),
        (["measure"], ["For example", "dynamicgate measure runs/first/model.safetensors", "--part"]),
        (["report"], ["For example", "dynamicgate report runs/digits"]),
    ],
)
def test_help_shows_an_example(arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert [text for text in shown if text not in said] == []


def test_compare_prints_a_table_and_writes_results_report_models_and_logs(compared: tuple[Path, str]) -> None:
    out, printed = compared
    assert [line.split()[0] for line in printed.splitlines()[2:7]] == ["dense", "small", "dropout", "static", "gate"]
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


def test_compare_again_repeats_nothing(compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
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


def test_measure_takes_the_part_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    assert main(["measure", str(model), "--part", "valid", "--out", str(tmp_path / "found.json")]) == 0
    valid = json.loads((model.parent / "run.json").read_text())["valid"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["count"] == 216
    assert found["quality"] == {key: valid[key] for key in ("accuracy", "macro_f1")}
    assert found["macs"]["relative"] == pytest.approx(valid["relative"], rel=1e-6)


def test_measure_takes_the_data_of_the_training_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []
    original = dynamicgate.data.load

    def spy(name: str, *, data_dir: Any = None, seed: int = 0, options: Any = None) -> Any:
        seen.append((name, None if data_dir is None else str(data_dir)))
        return original("digits", seed=seed)

    for command in ("train", "measure"):
        monkeypatch.setattr(f"dynamicgate.cli.{command}.load_data", spy)
    monkeypatch.setattr("dynamicgate.lab.methods.train_one.load", spy)
    out = tmp_path / "run"
    there = ["--data", "elsewhere", "--data-dir", str(tmp_path / "there")]
    assert main(["train", "--model", "dense", *there, *QUICK, "--out", str(out)]) == 0
    assert main(["measure", str(out / "model.safetensors"), "--data-dir", str(tmp_path / "there")]) == 0
    assert main(["measure", str(out / "model.safetensors"), "--data", "digits"]) == 0
    assert seen == [("elsewhere", str(tmp_path / "there"))] * 2 + [("digits", None)]
    assert main(["compare", *there, "--models", "dense", "--seeds", "1", *QUICK, "--out", str(tmp_path / "two")]) == 0
    assert seen[3:] == [("elsewhere", str(tmp_path / "there"))]


def test_report_makes_the_page_again(compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
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
@pytest.mark.parametrize("gate", [{"scale": True, "policy": "bernoulli"}, {"soft_width": 0.7, "policy": "gumbel"}])
def test_every_option_of_training_reaches_the_run(gate: dict[str, Any], tmp_path: Path) -> None:
    given = {
        "budget": 0.5, "hidden": [20, 12], "epochs": 1, "batch": 300, "lr": 0.007, "weight_decay": 0.2, "dropout": 0.3,
        "block": 4, "net": "two-layer", "rank": 6, "tau": 0.9, "theta": 0.4, **gate,
        "accumulate": 2, "clip": 0.5, "bf16": True, "balanced": True, "patience": 2, "density": 0.4,
        "gate_density": 0.7, "pattern": "fan-in", "output": "sparse", "every": 1, "activation": "gelu",
        "initial_density": 0.8, "prune_until": 0.6, "gate_fraction": 0.3, "open_rate": 0.5, "distill_weight": 0.25,
        "gate_lr_scale": 0.5, "distribution": "erk", "widen": 1.5,
    }  # fmt: skip
    words: list[str] = []
    for name, value in given.items():
        option = name.replace("_", "-")
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{'no-' if value is False else ''}{option}", *([] if isinstance(value, bool) else [text])]
    assert main(["train", "--model", "gate+rigl", *words, "--out", str(tmp_path)]) == 0
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    other = {"scale": False, "soft_width": 0.0}  # a soft width and a scale do not go together
    assert settings == {"data": "digits", "model": "gate+rigl", "seed": 0, "data_options": [], **other, **given}
    assert not [name for name, value in given.items() if value == getattr(Settings(), name)], "none is the default"


# --- what it says when something is wrong -----------------------------------------------------------------------------


def write_npz(path: Path, kind: str) -> Path:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)), np.arange(60) % 3
    if kind == "nan":
        x[7, 2] = np.nan
    elif kind == "one class":
        y[:] = 1
    elif kind == "negative label":
        y[5] = -1
    elif kind == "empty":
        x, y = x[:0], y[:0]
    parts = {"x_test": x[:6], "y_test": y[:6] + 3} if kind == "label out of range" else {}
    np.savez(path, x=x, y=y, **parts)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:900])
    elif kind == "no bytes":
        path.write_bytes(b"")
    return path


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that a mistake is answered with."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dynamicgate: ")
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1, "one line"
    return said.err


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "minst"], "unknown data 'minst': expected one of cifar10, digits, mnist"),
        (["--data", "mnist", "--data-dir", "nowhere"], "MNIST was not found. Expected the files train-images"),
        (["--data", "absent.npz"], "there is no file"),
        (["--hidden", "abc"], "--hidden takes whole numbers separated by commas, received 'abc'"),
        (["--hidden", "64,"], "--hidden takes whole numbers separated by commas, received '64,'"),
        (["--hidden", "0"], "hidden widths must be 1 or more, received (0,)"),
        (["--budget", "0"], "a budget is a fraction of the dense MACs: expected 0 < budget <= 1, received 0.0"),
        (["--budget", "1.5"], "expected 0 < budget <= 1, received 1.5"),
        (["--budget", "nan"], "expected 0 < budget <= 1, received nan"),
        (["--budget", "0.001"], "a budget of 0.001 cannot be met: the gate networks alone cost"),
        (["--block", "-1"], "block is a number of units and must be an integer >= 1, received -1"),
        (["--theta", "0"], "expected 0 < theta < 1, received 0.0"),
        (["--tau", "0"], "the temperature tau must be positive and finite, received 0.0"),
        (["--rank", "-1"], "rank must be an integer >= 1, received -1"),
        (["--dropout", "1"], "dropout must be in [0, 1), received 1.0"),
    ],
)
def test_a_mistake_in_the_options_is_answered_with_a_sentence(
    command: str, arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal([command, *arguments, "--out", str(tmp_path / "out")], capsys)
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["train", "--model", "gait"],
            "unknown model 'gait'; the models are dense, small, dropout, static, random, gate",
        ),
        (
            ["compare", "--models", "dense,gait"],
            "unknown models gait; choose from dense, small, dropout, static, random, gate",
        ),
        (["compare", "--models", ","], "unknown models (none given)"),
        (["compare", "--seeds", "0"], "at least one seed is needed, received 0"),
        (["train", "--seed", "-1"], "seeds and epochs must be 0 or more, got seed -1"),
        (["train", "--epochs", "-1"], "epochs must be 1 or more, received -1"),
        (["train", "--batch", "-1"], "batch must be 1 or more, received -1"),
        (["train", "--lr", "-1"], "the learning rate must be positive, received -1.0"),
        (["train", "--patience", "0"], "patience is a number of epochs, 1 or more, received 0"),
        (["train", "--device", "gpu"], "device must be auto, cpu or cuda, received 'gpu'"),
    ],
)
def test_a_mistake_in_what_to_run_is_answered_with_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal([*arguments, "--out", str(tmp_path / "out")], capsys)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("nan", "x must be finite in float32, found 1 NaN or infinite values, the first at index (7, 2)"),
        ("one class", "labels must name at least 2 classes, found only class 1 in all 60 rows"),
        ("negative label", "found -1 at row 5"),
        ("label out of range", "labels must be 0..2, found 3 at row 0"),
        ("truncated", "is not an .npz file, or a truncated one"),
        ("no bytes", "is not an .npz file, or a truncated one"),
        ("empty", "is empty: x has shape (0, 4) and y has 0 labels"),
    ],
)
def test_bad_data_are_answered_with_a_sentence(
    kind: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_npz(tmp_path / "data.npz", kind)
    said = refusal(["train", "--data", str(path), "--out", str(tmp_path / "out")], capsys)
    assert sentence in said
    assert str(path) in said


def test_good_data_of_ones_own_are_accepted(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data.npz", "good")
    assert main(["train", "--data", str(path), "--budget", "0.8", *QUICK, "--out", str(tmp_path / "out")]) == 0


def test_a_report_of_nothing_is_answered_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"no results to report: looked for {tmp_path / 'results.json'}" in refusal(["report", str(tmp_path)], capsys)


def test_a_truncated_model_is_answered_with_a_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.read_bytes()[:3000])
    assert f"{path} is not a readable safetensors file (truncated" in refusal(["measure", str(path)], capsys)
    assert "no file at" in refusal(["measure", str(tmp_path / "absent.safetensors")], capsys)
    assert "holds a checkpoint, expected a model" in refusal(
        ["measure", str(model.parent / "last.safetensors")], capsys
    )


def test_a_model_measured_on_the_wrong_data_is_answered_with_a_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_npz(tmp_path / "data.npz", "good")
    assert f"cannot read the 4 features of {path}" in refusal(["measure", str(model), "--data", str(path)], capsys)


def test_a_model_that_does_not_say_what_it_was_trained_on_asks_for_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamicgate.save(dynamicgate.GatedMLP((64, 9, 10)), tmp_path / "model.safetensors")
    said = refusal(["measure", str(tmp_path / "model.safetensors")], capsys)
    assert "does not say what it was trained on: pass --data" in said
    assert main(["measure", str(tmp_path / "model.safetensors"), "--data", "digits"]) == 0


def test_a_folder_of_other_settings_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--model", "dense", *QUICK, "--out", str(tmp_path)]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = refusal([*command, "--lr", "0.01"], capsys)
    assert f"{tmp_path} holds a run with other settings: choose another --out, or delete that folder" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_mistake_can_be_corrected_without_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal(["train", "--budget", "0.001", *QUICK, "--out", str(tmp_path)], capsys)
    assert main(["train", "--budget", "0.5", *QUICK, "--out", str(tmp_path)]) == 0


def test_an_output_that_cannot_be_a_folder_is_answered_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in refusal(["train", *QUICK, "--out", str(tmp_path / "file")], capsys)


def test_the_traceback_is_shown_to_whoever_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--traceback"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "dynamicgate: no results to report" in said


@pytest.mark.parametrize("arguments", [[], ["tarin"], ["train"], ["train", "--out", "x", "--budget", "much"]])
def test_what_cannot_be_parsed_ends_with_two(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_its_packages_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dynamicgate.__main__ import main as command

    monkeypatch.delitem(sys.modules, "dynamicgate.lab.cli")
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.setattr(sys, "argv", ["dynamicgate", "--version"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamicgate, "cli", None, raising=False)
        assert command() == 2
    assert "pip install 'dynamicgate[cli]'" in capsys.readouterr().err


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def interrupted(command: list[str], environment: dict[str, str], out: Path, number: signal.Signals, rows: int) -> int:
    """Run until the log has this many rows, send the signal, check how it ends; the last step in the log."""
    log = out / "log.jsonl"
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= rows):
        time.sleep(0.002)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "dynamicgate: stopped; the same command continues where it was" in said
    assert "Traceback" not in said
    assert (out / "last.safetensors").exists()
    assert not (out / "run.json").exists()
    return int([row["step"] for row in read_log(log)][-1])


def test_a_command_stopped_by_ctrl_c_and_by_kill_continues_to_the_same_result(tmp_path: Path) -> None:
    out, straight = tmp_path / "stopped", tmp_path / "straight"
    data = write_npz(tmp_path / "data.npz", "good")  # 41 rows for training: 11 steps an epoch
    command = [sys.executable, "-m", "dynamicgate", "train", "--data", str(data), "--budget", "0.8", "--hidden", "24"]
    command += ["--epochs", "18", "--batch", "4", "--patience", "17", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = interrupted([*command, str(out)], environment, out, signal.SIGINT, rows=5)
    second = interrupted([*command, str(out)], environment, out, signal.SIGTERM, rows=60)
    assert 0 < first < second < 18 * 11
    subprocess.run([*command, str(out)], env=environment, check=True, capture_output=True)
    subprocess.run([*command, str(straight)], env=environment, check=True, capture_output=True)
    assert (out / "log.jsonl").read_bytes() == (straight / "log.jsonl").read_bytes()
    one, two = (load_file(folder / "model.safetensors") for folder in (out, straight))
    assert one.keys() == two.keys()
    assert [name for name in one if one[name].numpy().tobytes() != two[name].numpy().tobytes()] == []
    runs = [json.loads((folder / "run.json").read_text()) for folder in (out, straight)]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1]
