"""Calibration: one shift of all logits puts a trained model onto its budget."""

from __future__ import annotations

import pytest
import torch

import dynamicgate as dg
from dynamicgate import Budget, GateConfig
from dynamicgate.nn import GatedMLP

from .test_budget import STATIC, task


@pytest.mark.parametrize("target", [0.35, 0.6])
def test_calibration_hits_the_target_on_its_data(target: float) -> None:
    model = GatedMLP((32, 64, 4), GateConfig(net="low-rank", rank=2))
    model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    x, y = task()
    budget = Budget(target=target)
    found = budget.calibrate_(model, x.split(512))
    assert abs(found - target) <= 0.005
    assert dg.measure(model, (x, y)).macs["relative"] == pytest.approx(found, rel=1e-6)
    assert [m.training for m in model.modules()] == modes


def test_calibration_under_autocast_sees_its_own_shifts() -> None:
    model, (x, y) = GatedMLP((32, 64, 4), GateConfig(net="linear", block=4)), task()
    with torch.autocast("cpu", torch.float16):
        found = dg.calibrate_(model, x.split(512), macs=0.4)
        assert abs(dg.measure(model, (x, y)).macs["relative"] - found) <= 0.005
    assert abs(found - 0.4) <= 0.01


def test_calibration_moves_the_logits_of_all_gates_by_one_amount() -> None:
    model = GatedMLP((32, 24, 24, 4), GateConfig(net="low-rank", rank=2, tau=1.0))
    gates = dg.named_gates(model)
    gates["layers.2"].tau.fill_(0.5)
    before = {name: gate.bias.detach().clone() for name, gate in gates.items()}
    cuts = [float(gate.logit_threshold) for gate in gates.values()]
    Budget(target=0.5).calibrate_(model, [task()[0]])
    shifts = torch.cat([before[name] - gate.bias for name, gate in gates.items()])
    assert shifts[0] != 0.0
    torch.testing.assert_close(shifts, shifts[0].expand_as(shifts), rtol=0, atol=1e-5)
    assert [float(gate.logit_threshold) for gate in gates.values()] == cuts


def test_calibration_tells_apart_logits_that_a_sigmoid_cannot() -> None:
    model = GatedMLP((32, 64, 4), GateConfig(kind="static"))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias.copy_(torch.linspace(100.0, 200.0, 64))  # p is 1.0 in float32 for all
    assert Budget(target=0.5).calibrate_(model, [task(rows=8)[0]]) == pytest.approx(0.5)


def test_calibration_looks_at_the_data_a_few_times_only() -> None:
    model = GatedMLP((32, 64, 4), GateConfig(net="low-rank", rank=2))
    x, _ = task()
    trained = Budget(target=0.5).calibrate_(model, [x])  # where training leaves a model
    looks: list[int] = []
    model.register_forward_hook(lambda *_: looks.append(1))
    assert Budget(target=trained - 0.01).calibrate_(model, [x]) == pytest.approx(trained - 0.01, abs=1e-3)
    assert len(looks) < 12


def test_calibration_comes_as_near_as_gates_can() -> None:
    model = GatedMLP((32, 64, 4), STATIC)
    x, _ = task(rows=8)
    assert Budget(target=0.5).calibrate_(model, [x]) in (0.0, 1.0)  # all gates have one logit


def test_calibrating_a_model_that_meets_its_target_changes_nothing() -> None:
    model = GatedMLP((32, 64, 4), STATIC)
    x, _ = task(rows=64)
    before = dg.named_gates(model)["layers.1"].bias.detach().clone()
    assert Budget(target=1.0).calibrate_(model, [x]) == 1.0
    assert torch.equal(dg.named_gates(model)["layers.1"].bias, before)
