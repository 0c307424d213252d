"""The latency experiment: what it trains, what it times, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.latency import LATENCY, MODEL, most_dispersed, time_job, time_model

import dynamicgate as dg
from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, Settings, run_one
from dynamicgate.lab.runner import Table
from tests.lab.runner.clouds import new_experiment, run


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


@pytest.mark.parametrize("table", LATENCY.tables, ids=lambda table: table.name)
def test_every_table_starts_with_the_dense_network_and_names_known_models(table: Table) -> None:
    assert next(iter(table.models)) == "dense"
    for name, asked in table.models.items():
        model = asked.get("model", name)
        assert model in MODELS
        assert name.startswith(model)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inside torch, when it compiles
def test_a_model_is_timed_against_the_faster_compiled_form_of_the_dense_network_it_is_given(tmp_path: Path) -> None:
    data = splits()
    for model in ("dense", "gate"):
        run_one(settings_of(model).resolved(data), data, tmp_path / model, show=False)
    dense, gate = (tmp_path / model / MODEL for model in ("dense", "gate"))
    times, notes = time_model(dense, gate, data.valid.values, data.test.values, 0.02, (1, 8))
    assert dg.load(tmp_path / "gate" / MODEL).activation == "gelu"
    assert list(times) == ["1", "8"]
    for found in times.values():
        assert list(found["us"]) == ["eager", "torch.compile", "our dense plan", "ours"]
        rival = min(found["us"]["torch.compile"], found["us"]["our dense plan"])
        assert found["us"][found["rival"]] == rival
        assert found["ratio"] == pytest.approx(found["us"]["ours"] / rival)
        assert [layer["name"] for layer in found["layers"]] == ["layers.0", "layers.1"]
        assert all(layer["choice"] for layer in found["layers"])
    assert isinstance(notes, list)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inside torch, when it compiles
def test_a_trained_job_is_timed_with_its_quality_and_cost(tmp_path: Path) -> None:
    experiment = replace(new_experiment(tmp_path), quick=True)
    assert run(experiment, quick=True) == 3
    job = experiment.jobs()[1]
    row = time_job(job, data_dir=None)
    assert (row["data"], row["model"], row["seed"]) == ("clouds/small", "gate", 0)
    assert 0.0 < row["relative_zero_skip"] < row["relative"] < 1.0
    assert row["settings"]["model"] == "gate"
    assert list(row["batches"]) == ["1", "256"]
    assert row["meta"]["command"] == "python -m experiments.latency"


def test_the_genes_kept_are_the_same_in_every_part_and_none_is_silent_in_training() -> None:
    pytest.importorskip("scanpy")
    data = splits(features=400)
    data.train.values[:, :100] = 0.0
    numbers = torch.arange(400.0)
    data.test.values[0], data.valid.values[0] = numbers, numbers
    kept = most_dispersed(replace(data, mean=numbers), 50)
    assert kept.train.features == len(kept.std) == 50
    assert kept.mean.min() >= 100
    assert torch.equal(kept.mean, kept.mean.sort().values)
    assert torch.equal(kept.test.values[0], kept.mean)
    assert torch.equal(kept.valid.values[0], kept.mean)
    assert torch.equal(kept.train.values, data.train.values[:, kept.mean.long()])
