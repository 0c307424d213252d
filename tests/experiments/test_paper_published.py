"""What the published code really does, as far as that can be shown without training on its data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.paper import mnist, pbmc3k, published, speech, tiny_imagenet
from experiments.paper.experiment import SECTIONS

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.gating.gate import GateConfig
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job

CPU = torch.device("cpu")


def asked_for(name: str, model: str) -> dict[str, Any]:
    return dict(SECTIONS[name].recipe("published").table.models[model])


def rows(features: int, classes: int, count: int = 8) -> Splits:
    part = Arrays(torch.randn(count, features), torch.arange(count) % classes)
    return Splits("rows", part, part, part, classes, 0.0, 1.0)


def logits_of_mnist(asked: dict[str, Any], steps: int) -> list[float]:
    """The logits of inputs and of units after 50 epochs of so many steps: the schedule and Adam written as loops."""
    z, counts, rate = [asked["input_logit"], asked["hidden_logit"]], (784, 256), asked["gate_lr"]
    m, v, done = [0.0, 0.0], [0.0, 0.0], 0
    for epoch in range(50):
        beta = asked["weight"] * max(0, epoch - 15) / 35
        for _ in range(steps):
            done += 1
            p = [1 / (1 + math.exp(-logit)) for logit in z]
            d_mean = [0.1 * beta, beta - 2 * asked["target_weight"] * max(0.0, 0.90 - p[1])]
            for i, count in enumerate(counts):  # a mean passes each of its logits an equal share
                d = d_mean[i] * p[i] * (1 - p[i]) / count
                m[i], v[i] = 0.9 * m[i] + 0.1 * d, 0.999 * v[i] + 0.001 * d * d
                z[i] -= rate * m[i] / (1 - 0.9**done) / (math.sqrt(v[i] / (1 - 0.999**done)) + 1e-8)
    return z


def test_the_mnist_schedule_moves_the_logits_of_a_layer_together_as_written_by_hand() -> None:
    """In fewer and longer steps than published, through all epochs. On the way p of the units passes 0.9, where the
    hinge ends, and comes back."""
    asked = {**asked_for("mnist", "gate"), "gate_lr": 1e-2}
    made = mnist.notebook(asked, rows(784, 10), CPU)
    gates = dg.named_gates(made.model)

    class Used:  # all that the penalty reads; the task has no say in the logits
        def mean_p(self) -> dict[str, torch.Tensor]:
            return {name: torch.sigmoid(gate.bias).mean() for name, gate in gates.items()}

    for epoch in range(50):
        made.before_epoch(epoch)
        for _ in range(10):
            made.penalty(Used()).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
    z = [gates[name].bias.detach() for name in ("layers.0", "layers.1")]
    assert [float(q.mean()) for q in z] == pytest.approx(logits_of_mnist(asked, 10), abs=1e-4)
    assert all(float(q.max() - q.min()) == 0.0 for q in z), "all logits of a layer stay equal"


def test_the_mnist_schedule_ends_with_all_inputs_open_all_units_closed_and_401_408_flops() -> None:
    asked = asked_for("mnist", "gate")
    made = mnist.notebook(asked, rows(784, 10), CPU)
    gates = dg.named_gates(made.model)
    z = logits_of_mnist(asked, 469)
    for gate, logit in zip(gates.values(), z, strict=True):
        torch.nn.init.constant_(gate.bias, logit)
    for epoch in range(50):
        made.before_epoch(epoch)
    p = {name: torch.sigmoid(gate.bias.detach()) for name, gate in gates.items()}
    assert float(p["layers.0"].mean()) == pytest.approx(0.9496, abs=1e-3)
    assert float(p["layers.1"].mean()) == pytest.approx(0.8999, abs=1e-3)
    assert float(p["layers.1"].max()) < float(gates["layers.1"].theta) == pytest.approx(0.9)
    assert mnist.hard_open(made.model) == {"inputs": 1.0, "units": 0.0}
    assert round(made.claimed({}) * 406_528) == 401_408


def test_the_mnist_gates_get_no_gradient_from_the_task_and_closed_units_save_nothing() -> None:
    asked, data = asked_for("mnist", "gate"), rows(784, 10)
    made = mnist.notebook(asked, data, CPU)
    torch.nn.functional.cross_entropy(made.model(data.train.values), data.train.y).backward()
    assert all(
        gate.bias.grad is None or float(gate.bias.grad.abs().max()) == 0.0
        for gate in dg.named_gates(made.model).values()
    )
    assert dg.measure(made.model, data.test).macs["relative"] == 1.0


def test_gates_of_the_speech_notebook_that_shut_in_training_are_diagnosed() -> None:
    data = rows(20, 3, count=64)
    asked = {**asked_for("speech", "gate"), "hidden": [8, 8], "batch": 8}
    made = speech.notebook(asked, data, CPU)
    for epoch in range(made.epochs):
        made.before_epoch(epoch)
        for at in range(8):
            used = made.step(data.train.values[:8], data.train.y[:8])
            made.readings.add(made.model, used, (epoch + at / 8) / made.epochs)
    assert {(found.name, found.site) for found in made.readings.collapses} == {
        ("threshold-too-high", "layers.1"),
        ("threshold-too-high", "layers.2"),
    }
    assert all(float(gate.theta) == pytest.approx(0.74) for gate in dg.named_gates(made.model).values())


def test_the_own_counts_are_the_published_formulas() -> None:
    pruned = mnist.notebook(asked_for("mnist", "pruned"), rows(784, 10), CPU)
    assert int(pruned.claimed({}) * 406_528) == 286_105
    spoken = speech.notebook(asked_for("speech", "gate"), rows(1640, 12), CPU)
    for gate, units in zip(dg.named_gates(spoken.model).values(), (473, 210), strict=True):
        torch.nn.init.constant_(gate.bias, -3.0)
        gate.bias.data[:units] = 3.0
    assert spoken.claimed({}) * 973_824 == pytest.approx(963_288)
    tiny = tiny_imagenet.notebook(asked_for("tiny-imagenet", "gate+rigl"), rows(12288, 200), CPU)
    (gate,) = dg.named_gates(tiny.model).values()
    torch.nn.init.constant_(gate.bias, math.log(0.1448 / (1 - 0.1448)))
    assert tiny.claimed({}) * 6_393_856 == pytest.approx(1_273_117, abs=20)


def test_rigl_of_pbmc3k_never_updates_its_masks_in_its_80_steps(tmp_path: Path) -> None:
    table = SECTIONS["pbmc3k"].recipe("published").table
    asked = table.models["rigl"]
    assert asked["epochs"] * math.ceil(1890 / asked["batch"]) == 80 < asked["every"] == 400
    data = rows(30, 9, count=90)
    run = table.train(Job(table, "rigl", 42, quick=True, work=tmp_path, device="cpu"), data)
    assert run["mask_updates"] == 0
    assert [layer["density"] for layer in run["layers"]] == [0.25, 0.25, 1.0]


def test_the_logit_threshold_of_pbmc3k_rises_above_the_initial_logit_and_falls_again() -> None:
    schedule = pbmc3k.Schedule(asked_for("pbmc3k", "gate"))
    thresholds = [schedule.tau(e) * published.logit(schedule.theta(e)) for e in range(1, 11)]
    assert thresholds == pytest.approx([-0.80, 0.11, 0.83, 1.38, 1.75, 1.97, 2.00, 1.85, 1.46, 0.70], abs=0.006)
    assert max(thresholds) > published.logit(0.85) > thresholds[-1]


def test_the_pbmc3k_count_leaves_the_gate_networks_out() -> None:
    data = rows(2000, 9)
    made = pbmc3k.notebook(asked_for("pbmc3k", "gate+rigl"), data, CPU)
    made.before_epoch(0)
    found = dg.measure(made.model, data.test).to_dict()
    assert made.claimed(found) * 2_504_500 == pytest.approx(629_500), "all open at first"
    assert found["macs"]["executed"] == 629_500 + 144_000


def test_all_gates_of_tiny_imagenet_tie_and_so_all_are_open_at_first() -> None:
    asked = asked_for("tiny-imagenet", "gate+rigl")
    made = tiny_imagenet.notebook(asked, rows(60, 5), CPU)
    (gate,) = dg.named_gates(made.model).values()
    assert float(torch.sigmoid(gate.bias.detach()).max()) < asked["theta"]
    assert float(gate(torch.zeros(1, 1)).open.sum()) == 256
    gate.bias.data[:100] -= 0.1
    gate.bias.data[:20] += 0.5
    assert float(gate(torch.zeros(1, 1)).open.sum()) == 20 + 156, "the 51st largest ties with 155 others"


def test_mask_updates_of_tiny_imagenet_keep_the_number_of_connections() -> None:
    layer = torch.nn.Linear(100, 40)
    updates = tiny_imagenet.MaskUpdates(layer, {**tiny_imagenet.RIGL, "every": 3})
    before = layer.mask.clone()
    for _ in range(7):
        layer.weight.grad = torch.randn_like(layer.weight)
        updates.watch()
        updates.step()
    assert updates.count == 2
    assert int(layer.mask.sum()) == int(before.sum()) == 800
    assert 0 < int((layer.mask & ~before).sum()) <= 80
    assert float(layer.weight.detach()[~layer.mask].abs().max()) == 0.0


def test_a_unit_closed_before_the_relu_gives_its_gate_no_gradient() -> None:
    model = dg.nn.GatedMLP((6, 4, 3), GateConfig(kind="static", train="hard"))
    published.gate_before_relu_(model)
    (gate,) = dg.named_gates(model).values()
    gate.bias.data[:2] = -3.0
    model(torch.randn(50, 6)).square().sum().backward()
    assert (gate.bias.grad == 0.0).tolist()[:2] == [True, True]
    assert gate.bias.grad is not None
    assert float(gate.bias.grad[2:].abs().max()) > 0.0


def test_pruning_drops_its_mask_on_cifar10_and_keeps_it_on_pbmc3k() -> None:
    model = dg.nn.GatedMLP((20, 30, 5))
    published.prune_together_(model, 0.4, keep_mask=False)
    assert published.nonzero_fraction(model) == pytest.approx(0.6, abs=0.01)
    assert not hasattr(model.layers[0], "mask")
    published.prune_together_(model, 0.5, keep_mask=True)
    assert hasattr(model.layers[0], "mask")


def test_without_validation_all_official_training_rows_are_trained_on() -> None:
    data = published.whole_training(rows(6, 3, count=9))
    assert (len(data.train), len(data.valid), len(data.test)) == (18, 0, 9)
