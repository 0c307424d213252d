"""Continual learning: every kind of run from end to end at a quick size, and networks side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.continual import keeping, plasticity
from experiments.continual.page import pages, title
from experiments.continual.stack import Stack
from experiments.continual.tables import CONTINUAL, QUICK_KEEP
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual import Contexts, Keeper, follow
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.results import collect, write_finished
from dynamicgate.sparsity.patterns import parse_pattern, prune_and_regrow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_dataset("digits").flat()


def quick(table: str, model: str, work: Path, **settings: Any) -> Job:
    found = CONTINUAL.table(table)
    found = replace(found, quick={**found.quick, **settings})
    return Job(found, model, 0, quick=True, work=work, device="cpu")


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ("e0-permuted-5", "gate, short"), ("e0-permuted-5", "gate+rigl, short"), ("e1", "keep"), ("e1", "joint"),
        ("e1", "xdg"), ("e2", "separate"), ("e2", "static"), ("e3", "keep"), ("e5", "side by side"), ("e7", "keep"),
        ("e8", "readout 1000"), ("e8", "er 200"), ("e9", "keep + reuse"), ("e10", "nearest mean"),
        ("e11", "jumping, gates 0.1, every 10"),
    ],
)  # fmt: skip
def test_a_run_of_every_kind(table: str, model: str, tmp_path: Path, digits: Splits) -> None:
    job = quick(table, model, tmp_path)
    found = job.table.train(job, digits)
    assert found["model"] == model
    assert 0.0 <= found["quality"]["accuracy"] <= 1.0
    assert "relative" in found["macs"]


def test_contexts_side_by_side_are_one_model_that_forgets_nothing(tmp_path: Path, digits: Splits) -> None:
    job = quick("e2", "keep", tmp_path, epochs=8, density=0.3)
    found = job.table.train(job, digits)
    quality = found["quality"]
    assert quality["forgetting"] == 0.0
    assert quality["assembled"]["apart"] < 1e-4, "the model of the library answers the same"
    assert quality["assembled"]["accuracy"] == pytest.approx(quality["acc"], abs=1e-9)
    assert quality["assembled"]["open_blocks"] == 1.0
    assert quality["assembled"]["gate"] == 3 * 64 == found["macs"]["gate"]


def test_side_by_side_and_one_after_the_other_learn_as_much(digits: Splits) -> None:
    asked = {**QUICK_KEEP, "epochs": 6, "lr": 1e-2, "density": None}
    images = keeping.images_of(digits, 3, 0, CPU)
    seen = keeping.told(images, asked, 0)
    nets = keeping.join(keeping.learn(images, seen, asked, 0))
    side = keeping.test(images, seen, nets, keeping.mean_rows(images, seen), 3)
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((64, 96, 10), dg.GateConfig(kind="context", block=32, contexts=3))
    stream = keeping.stream_of(digits, 3, 0)
    contexts = Contexts(model, Keeper(model))
    after = follow(model, stream, contexts=contexts, epochs=6, batch=50, lr=1e-2, show=False, device="cpu")
    assert side.forgetting == after.forgetting == 0.0
    assert side.acc == pytest.approx(after.acc, abs=0.05)
    x = stream.tasks[1].train.rows(torch.arange(5))
    assert torch.equal(images.rows(torch.tensor([1]), torch.arange(5)[None])[0], x), "the same permutations"


def test_where_nothing_is_known_contexts_are_found(digits: Splits) -> None:
    images = keeping.images_of(digits, 3, 0, CPU)
    seen = keeping.notice(images, {**QUICK_KEEP, "strange": 8.0}, 0)
    assert seen.tasks.tolist() == [0, 1, 2]


def test_a_stack_takes_the_steps_of_its_networks() -> None:
    stack = Stack.draw(2, (6, 5, 3), seed=0, device=CPU)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for layer, weight, bias in ((model[0], stack.weights[0], stack.biases[0]),
                                    (model[2], stack.weights[1], stack.biases[1])):  # fmt: skip
            layer.weight.copy_(weight[1].T)
            layer.bias.copy_(bias[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        x, y = torch.randn(2, 8, 6), torch.randint(3, (2, 8))
        grads, _ = stack.gradients(x, y)
        stack.adam_(grads, torch.tensor([0.0, 1e-2]))
        optimizer.zero_grad()
        F.cross_entropy(model(x[1]), y[1]).backward()
        optimizer.step()
    torch.testing.assert_close(stack.weights[0][1].T, model[0].weight.detach())
    torch.testing.assert_close(stack.biases[1][1], model[2].bias.detach())


def test_a_stack_exchanges_as_the_sparsifiers_do() -> None:
    stack = Stack.draw(3, (12, 10, 3), seed=0, device=CPU)
    stack.sparsify_(0, 0.5, seed=1)
    mask = stack.masks[0]
    assert mask is not None
    before, grow = mask.clone(), torch.rand(3, 12, 10)
    which = torch.tensor([True, False, True])
    weight = stack.weights[0].clone()
    stack.exchange_(0, grow, 0.3, 0.4, which)
    now = stack.masks[0]
    assert now is not None
    for k in (0, 2):
        expected = prune_and_regrow(parse_pattern("unstructured"), before[k], weight[k].abs(), grow[k], 0.3, 0.4)
        assert torch.equal(now[k], expected)
    assert torch.equal(now[1], before[1])


def test_silent_units_are_recycled_only_where_the_method_says_so(digits: Splits) -> None:
    side = plasticity.Side(["dense", "redo"], (64, 20, 10), 1e-2, 0, CPU)
    for bias in side.stack.biases[:1]:
        bias[:, :5] = -100.0
    x, y = digits.train.values[:32], digits.train.y[:32]
    for _ in range(3):
        side.step(x, y)
    side.between()
    assert bool((side.stack.biases[0][0, :5] < -50).all())
    assert bool((side.stack.biases[0][1, :5] == 0).all())
    assert math.isfinite(float(side.stack.weights[0].sum()))


def test_the_page_says_what_runs_say(tmp_path: Path, digits: Splits) -> None:
    experiment = replace(CONTINUAL, root=tmp_path, quick=True)
    data = {"name": "mnist", "train": 1, "valid": 1, "test": 1, "features": 64, "classes": 10}
    for table, model in (("e1", "naive"), ("e5", "side by side"), ("e7", "keep")):
        job = replace(next(j for j in experiment.jobs([experiment.table(table)]) if j.model == model), device="cpu")
        write_finished(job, {"data": data, "created": "now"}, job.table.train(job, digits))
        collect(experiment.results, [job])
    found = pages(experiment)["docs/continual.md"]
    assert not isinstance(found, str)
    text = found["streams"]
    for part in ("E1: Ten permutations", "naive", "set + recycling", "by age"):
        assert part in text
    assert all(title(table) for table in CONTINUAL.tables)
