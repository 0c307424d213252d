"""The plan as text and as JSON."""

from __future__ import annotations

import json

import pytest
import torch

import dynamicgate as dg
from dynamicgate.inference import Plan
from dynamicgate.inference.cpu.candidates import DENSE
from tests.inference.models import Branching, compile_quickly, gated_mlp


def test_the_plan_is_printed_with_times_and_macs() -> None:
    model, x = gated_mlp(dg.GateConfig(block=16)), torch.randn(64, 20)
    plan = compile_quickly(model, x).plan
    shown = str(plan)
    for word in ("layer", "choice", "dense us", "chosen us", "MACs", "batch 1", "batch 16", "verified"):
        assert word in shown
    assert {row.name for row in plan.chains[0][0].layers} == {"layers.0", "layers.1", "layers.2"}
    assert all(regime.chosen in regime.times and DENSE.name in regime.times for regime in plan.chains[0])
    total = sum(row.macs for row in plan.chains[0][0].layers)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        counter = dg.accounting.MacCounter.for_mlp(model)
        assert total == pytest.approx(float(counter.executed({name: used[name].open for name in used})), rel=1e-4)


def test_a_plan_survives_json() -> None:
    x = torch.randn(64, 20)
    for model in (gated_mlp(dg.GateConfig(block=16)), Branching().eval()):
        plan = compile_quickly(model, x).plan
        assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert Plan.from_dict(json.loads(json.dumps(Plan([]).to_dict()))) == Plan([])
