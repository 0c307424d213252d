"""Real weights: gates that are open and another order of units change nothing. Needs the folder DYNAMICGATE_MODELS."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

import dynamicgate as dg
from tests.places import ROOT, real_folder

pytestmark = pytest.mark.slow


def folder_with(name: str) -> Path:
    """The folder of pretrained weights; the test is skipped where it does not hold `name`."""
    folder = os.environ.get("DYNAMICGATE_MODELS")
    if folder is None or not (Path(folder) / name).exists():
        pytest.skip(f"no {name} in DYNAMICGATE_MODELS={folder}: run python examples/hf_weights.py {name} FOLDER")
    return Path(folder)


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def test_smollm2_keeps_its_loss_on_wikitext_with_open_gates_and_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, texts = folder_with("smollm2"), real_folder("wikitext-2") / "wikitext-2"
    sites = []
    for mlp in (f"model.layers.{i}.mlp" for i in range(30)):
        producers = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
        sites.append(dg.Site(f"{mlp}.down_proj", producers, producers[0], 1536))
    run = example("hf_smollm2", monkeypatch).main
    found = run(str(folder), str(texts / "test.txt"), str(texts / "valid.txt"), 3, sites)
    same = {name: loss for name, loss in found.items() if "converted" not in name}
    assert len(same) == 7
    assert 3.0 < found["dense"] < 4.0
    assert all(abs(loss - found["dense"]) < 1e-5 for loss in same.values()), same
    three_quarters, half = (found[f"converted, {rate} of the feed-forward layers"] for rate in ("75%", "50%"))
    assert found["dense"] < three_quarters < half < found["dense"] + 4.0


def test_minilm_keeps_its_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with("minilm")
    sites = []
    for layer in (f"encoder.layer.{i}" for i in range(6)):
        first = f"{layer}.intermediate.dense"
        sites.append(dg.Site(f"{layer}.output.dense", (first,), first, 1536))
    found = example("hf_minilm", monkeypatch).main(str(folder), sites)
    assert len(found) == 6
    assert all(difference < 1e-5 for difference in found.values()), found
