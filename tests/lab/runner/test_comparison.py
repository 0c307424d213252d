"""`compare`: what its runs leave behind, how they are found again, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods import MODELS, Settings
from dynamicgate.lab.methods.hyperparameters import STAGED
from dynamicgate.lab.runner.comparison import compare
from dynamicgate.lab.runner.pool import ProcessPool

META = {"created", "commit", "command", "versions", "machine", "budget", "seeds", "epochs", "hidden", "data"}
RUN = {
    "model", "seed", "data", "quality", "macs", "proxies", "layers", "params", "seconds", "budget", "sparsity",
    "samples", "gates", "notes", "valid", "steps", "collapses", "settings", "folder",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("compare")
    results = compare(settings, list(MODELS), [0, 1], out, command="dynamicgate compare ...")
    return out, json.loads(json.dumps(results))


def test_results_have_exactly_the_documented_keys(finished: tuple[Path, dict[str, Any]]) -> None:
    out, returned = finished
    results = json.loads((out / "results.json").read_text())
    assert results == returned
    assert results.keys() == {"meta", "runs"}
    assert results["meta"].keys() == META
    assert [(run["seed"], run["model"]) for run in results["runs"]] == [(s, m) for s in (0, 1) for m in MODELS]
    for run in results["runs"]:
        in_stages = run["model"] in STAGED or "stages" in run.get("choice", {}).get("recipe", "")
        chosen = {"choice"} if run["model"] == "sparsify" else set()
        assert run.keys() == RUN | ({"stages", "curve"} if in_stages else set()) | chosen
        assert run["quality"].keys() == {"accuracy", "macro_f1"}
        assert run["macs"].keys() == {
            "dense", "executed", "gate", "relative", "relative_zero_skip", "structure_saved", "gate_saved",
        }  # fmt: skip
        if run["model"] != "cascade":  # several networks, each with layers of its own
            assert run["proxies"].keys() == {
                f"{name}_{of}" for name in ("compute_proxy", "relmac", "relmac_fuse") for of in "pg"
            }
            layer_keys = {"name", "open", "density", "present", "macs", "product"}
            assert [layer.keys() for layer in run["layers"]] == [layer_keys] * 2
        assert run["data"] == "clouds"
        assert run["seconds"] > 0
        assert run["params"] > 0


def test_the_numbers_of_a_run_fit_together(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        found = run["macs"]
        assert found["dense"] == 10 * 20 + 20 * 3, "relative to the full network, for the small one too"
        assert found["relative"] == pytest.approx(found["executed"] / found["dense"])
        kept = 1.0 - found["structure_saved"] - found["gate_saved"]
        assert found["relative"] == pytest.approx(kept + found["gate"] / found["dense"])
        if run["model"] != "cascade":
            assert sum(layer["macs"] for layer in run["layers"]) + found["gate"] == pytest.approx(found["executed"])
            assert found["relative_zero_skip"] <= found["relative"]
        assert run["samples"]["p5"] <= run["samples"]["p50"] <= run["samples"]["p95"]
        if run["model"] in ("dense", "dropout"):
            assert found["relative"] == 1.0
        else:
            assert abs(found["relative"] - 0.5) < 0.1  # a block of 2 of 20 units is a tenth
        networks = 3 if run["model"] == "cascade" else 1
        assert run["steps"] == networks * 5 * math.ceil(163 / 40)


def test_each_run_leaves_its_model_and_its_log(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    for run in results["runs"]:
        folder = out / run["folder"]
        if run["model"] == "cascade":
            assert {path.name for path in folder.iterdir()} == {"net-1", "net-2", "net-3", "run.json", "samples.json"}
            continue
        assert {"model.safetensors", "log.jsonl", "last.safetensors", "run.json"} <= {p.name for p in folder.iterdir()}
        assert json.loads((folder / "run.json").read_text()) == {k: v for k, v in run.items() if k != "folder"}
        model = dg.load(folder / "model.safetensors")
        splits = load_dataset(run["settings"]["data"], seed=run["seed"])
        if run["model"] == "staged-random":
            continue  # opens other stages each time
        measured = dg.measure(model, splits.test)
        assert measured.quality == run["quality"]
        assert measured.macs["executed"] == run["macs"]["executed"]


def test_different_seeds_give_different_runs(finished: tuple[Path, dict[str, Any]]) -> None:
    losses = {}
    for run in finished[1]["runs"]:
        if run["model"] == "cascade":
            continue
        first = (finished[0] / run["folder"] / "log.jsonl").read_text().splitlines()[0]
        losses[run["model"], run["seed"]] = json.loads(first)["loss"]
    assert losses["dense", 0] != losses["dense", 1]


def test_finished_runs_are_not_repeated(finished: tuple[Path, dict[str, Any]], settings: Settings) -> None:
    out, results = finished
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")}
    again = compare(settings, list(MODELS), [0, 1], out, command="again")
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")} == before
    assert json.loads(json.dumps(again["runs"])) == results["runs"]
    assert again["meta"]["command"] == "again"


def test_one_more_seed_or_model_is_added_to_what_is_there(settings: Settings, tmp_path: Path) -> None:
    compare(settings, ["dense"], [0], tmp_path, command="")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/run.json")}
    results = compare(settings, ["dense", "small"], [0], tmp_path, command="")
    assert [run["model"] for run in results["runs"]] == ["dense", "small"]
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/run.json")}
    assert len(after) == 2
    assert before.items() < after.items()


def test_a_changed_setting_trains_again(settings: Settings, tmp_path: Path) -> None:
    first = compare(settings, ["dense"], [0], tmp_path, command="")["runs"][0]
    second = compare(replace(settings, lr=1e-2), ["dense"], [0], tmp_path, command="")["runs"][0]
    assert first["folder"] != second["folder"]
    assert len(list(tmp_path.glob("runs/*"))) == 2
    assert first["quality"] != second["quality"] or first["valid"] != second["valid"]


@pytest.mark.parametrize(
    ("models", "change", "sentence"),
    [
        (["dense", "gatt"], {}, "unknown models gatt; choose from dense, small, dropout, static, random, gate"),
        ([], {}, r"unknown models \(none given\)"),
        (["dense", "gate"], {"budget": 0.05}, "a budget of 0.05 cannot be met: the gate networks alone cost"),
        (["dense"], {"budget": 0.0}, "expected 0 < budget <= 1, received 0.0"),
        (["dense"], {"budget": 1.5}, "expected 0 < budget <= 1, received 1.5"),
        (["dense", "gate"], {"block": -1}, "block is a number of units and must be an integer >= 1, received -1"),
        (["dense", "rigl"], {"budget": 0.01, "output": "dense"}, "does not even pay for the dense output layer"),
        (["dense", "rigl"], {"every": 100}, "would never update them"),
        (["dense", "set"], {"density": 1.5}, "a density is a fraction of the connections"),
        (["dense", "set"], {"pattern": "round"}, "a pattern is 'unstructured', 'fan-in' or a tile"),
        (["dense", "gate"], {"theta": 1.0}, "expected 0 < theta < 1, received 1.0"),
        (["dense", "gate"], {"dropout": 1.0}, r"dropout must be in \[0, 1\), received 1.0"),
        (["dense"], {"hidden": (20, 0)}, r"hidden widths must be 1 or more, received \(20, 0\)"),
    ],
)
def test_a_mistake_is_known_before_anything_is_trained(
    models: list[str], change: dict[str, Any], sentence: str, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        compare(replace(settings, **change), models, [0], tmp_path, command="")
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_without_seeds_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one seed is needed"):
        compare(settings, ["dense"], [], tmp_path, command="")


def test_models_can_be_trained_in_parallel_and_results_keep_their_order(settings: Settings, tmp_path: Path) -> None:
    models = ["small", "dense"]
    results = compare(settings, models, [1, 0], tmp_path, command="", engine=ProcessPool(2))
    assert [(run["seed"], run["model"]) for run in results["runs"]] == [(s, m) for s in (1, 0) for m in models]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["runs"] == json.loads(json.dumps(results["runs"]))
    again = compare(settings, models, [1, 0], tmp_path, command="")
    assert again["runs"] == results["runs"], "one after the other the same runs are found"
    with pytest.raises(ValueError, match="at least one job at a time is needed, received 0"):
        compare(settings, models, [0], tmp_path, engine=ProcessPool(0))
