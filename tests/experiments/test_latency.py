"""The latency experiment: what it trains, what it times, and what it writes."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings
from dynamicgate.lab.methods.models import MODELS
from tests.places import ROOT

LATENCY = runpy.run_path(str(ROOT / "experiments" / "latency.py"))


def splits(features: int = 32, classes: int = 3) -> Splits:
    """Mostly zeros, as counts of genes are."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for rows in (96, 24, 24):
        x = torch.rand(rows, features, generator=draw)
        x = x * (torch.rand(rows, features, generator=draw) > 0.8)
        parts.append(Arrays(x, torch.randint(classes, (rows,), generator=draw)))
    mean, std = parts[0].values.mean(0), parts[0].values.std(0).clamp_min(0.3)
    return Splits("cells", *parts, classes, mean, std)


def settings_of(model: str) -> Settings:
    """A network that trains in a second."""
    return Settings(
        "cells", model=model, hidden=(32,), epochs=1, batch=32, lr=1e-3, block=16, budget=0.6, activation="gelu"
    )


@pytest.mark.parametrize("name", LATENCY["COMPARISONS"])
def test_every_comparison_starts_with_the_dense_network_and_names_known_models(name: str) -> None:
    asked = LATENCY["COMPARISONS"][name]
    assert next(iter(asked.models)) == "dense"
    for label, extra in asked.models.items():
        settings = replace(asked.settings, **{"model": label, **extra})
        assert settings.model in MODELS
        assert label.startswith(settings.model)


def test_a_model_is_trained_on_the_rows_it_is_given_once(tmp_path: Path) -> None:
    run, folder = LATENCY["run_of"](settings_of("gate"), splits(), tmp_path)
    model = dg.load(folder / "model.safetensors")
    assert model.activation == "gelu"
    assert 0.0 < run["macs"]["relative_zero_skip"] < run["macs"]["relative"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    again, same = LATENCY["run_of"](settings_of("gate"), splits(), tmp_path)
    assert (again["quality"], same) == (run["quality"], folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_model_is_timed_against_the_dense_network_it_is_given(tmp_path: Path) -> None:
    data = splits()
    _, dense = LATENCY["run_of"](settings_of("dense"), data, tmp_path)
    _, gated = LATENCY["run_of"](settings_of("gate"), data, tmp_path)
    rows = data.test.values
    times, notes = LATENCY["clocked"](dense / "model.safetensors", gated / "model.safetensors", rows, 0.02, (1, 8))
    assert list(times) == ["1", "8"]
    for found in times.values():
        assert found["ratio"] == pytest.approx(found["ours_us"] / found["dense_us"])
        assert [layer["name"] for layer in found["layers"]] == ["layers.0", "layers.1"]
        assert all(layer["choice"] for layer in found["layers"])
    assert isinstance(notes, list)


def test_the_genes_kept_are_the_same_in_every_part_and_none_is_silent_in_training() -> None:
    pytest.importorskip("scanpy")
    data = splits(features=400)
    data.train.values[:, :100] = 0.0
    numbers = torch.arange(400.0)
    data.test.values[0], data.valid.values[0] = numbers, numbers
    kept = LATENCY["dispersed"](replace(data, mean=numbers), 50)
    assert kept.train.features == len(kept.std) == 50
    assert kept.mean.min() >= 100
    assert torch.equal(kept.mean, kept.mean.sort().values)
    assert torch.equal(kept.test.values[0], kept.mean)
    assert torch.equal(kept.valid.values[0], kept.mean)
    assert torch.equal(kept.train.values, data.train.values[:, kept.mean.long()])
