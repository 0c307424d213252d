"""Gates on units inside stages: what decides for a stage reads nothing that a later stage computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate import GateConfig
from tests.gating.staged import linears_of, sequential, stage, the_gate

SIZES, STAGES = (5, 24, 16, 3), (0.25, 0.25, 0.5)


def both(order: str = "stages first", **config: Any) -> nn.Module:
    model = sequential(SIZES)
    units = GateConfig(**{"block": 2, "net": "linear", "open": 0.55, **config})
    if order == "stages first":
        stage(model, STAGES)
        torch.manual_seed(7)
        dg.gate_(model, units)
    else:
        torch.manual_seed(7)
        dg.gate_(model, units)
        stage(model, STAGES)
    for name, gate in dg.named_gates(model).items():
        gate.bias.data += 0.3 * torch.randn(gate.bias.shape, generator=torch.Generator().manual_seed(int(name)))
    return model


CONFIGS: list[dict[str, Any]] = [{}, {"reads": "same"}, {"kind": "static", "net": "auto"}]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_order_in_which_gates_and_stages_come_does_not_matter(config: dict[str, Any]) -> None:
    one, other = both("stages first", **config), both("gates first", **config)
    x = torch.randn(20, 5)
    assert set(one.state_dict()) == set(other.state_dict())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    assert torch.equal(one.eval()(x), other.eval()(x))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_row_that_stops_early_does_not_feel_gates_of_later_stages(config: dict[str, Any]) -> None:
    model = both(**config).eval()
    stages, x = the_gate(model), torch.randn(30, 5)
    stages.cut.fill_(torch.inf)
    before = model(x)
    with dg.usage(model) as used:
        model(x)
    assert 0.0 < float(used["4"].open.mean()) < 1.0
    with torch.no_grad():
        for position, (_, gate) in enumerate(dg.named_gates(model).items()):
            first = stages.bounds[position][1] // 2  # blocks of stage 1
            gate.bias[first:] = -gate.bias[first:]
        for i, linear in enumerate(linears_of(model)[:-1]):
            linear.bias[stages.bounds[i][1] :] += 1.0
    assert torch.equal(model(x), before)
    stages.cut.fill_(-torch.inf)
    assert not torch.allclose(model(x), before)


def test_the_network_of_a_gate_reads_its_own_and_earlier_stages() -> None:
    model = both()
    stages, net = the_gate(model), dg.named_gates(model)["4"].net
    reads, writes = stages.stage_of_units(0).tolist(), stages.stage_of_units(1).tolist()[::2]
    expected = [[read <= wrote for read in reads] for wrote in writes]
    assert net.mask.tolist() == expected  # type: ignore[union-attr,operator]
    assert not hasattr(dg.named_gates(model)["2"].net, "mask"), "the input is there from the beginning"
    assert dg.named_gates(model)["4"].macs == sum(map(sum, expected))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        model(torch.randn(8, 5)).square().sum().backward()
        optimizer.step()
    model(torch.randn(8, 5))
    assert not bool((net.weight != 0)[~net.mask].any()), "no step brings others back"  # type: ignore[operator,index]


@pytest.mark.parametrize("order", ["units, stages", "stages, units", "all"])
def test_both_come_off_in_any_order(order: str) -> None:
    model = both().eval()
    if order == "all":
        dg.ungate_(model)
    for part in order.split(", ") if order != "all" else []:
        dg.ungate_(model, "stages" if part == "stages" else ["2", "4"])
    assert list(model.state_dict()) == list(sequential(SIZES).state_dict())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert model(torch.randn(2, 5)).shape == (2, 3)


def test_a_gate_keeps_working_when_the_stages_go() -> None:
    model = both().eval()
    x = torch.randn(9, 5)
    expected = model(x)
    dg.ungate_(model, "stages")
    assert torch.equal(model(x), expected)
    assert not any(hasattr(m, "mask") for m in model.modules())
