"""Which modules have factors, and what no gate on them may be put on or beside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.gating.unit_order import check_movable
from dynamicgate.hf import convert_

MAGNITUDE = GateConfig(net="magnitude", reads="same")
FACTORS = Site("act_fn", ("up_proj",), "gate_proj", 24, factors=True)


class Unit(nn.Module):
    """Layers with the names of Llama; `forward` says what they do."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(24, 8)
        self.act_fn = nn.SiLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Swapped(Unit):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class BehindTheProduct(Unit):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x) * self.up_proj(x)))


class Twice(Unit):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.act_fn(self.up_proj(x)))


class AFunction(Unit):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class NotTraced(Unit):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0.0:
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.act_fn(self.gate_proj(x)))


class ReadElsewhere(Unit):
    def forward(self, x: Tensor) -> Tensor:
        factors = self.act_fn(self.gate_proj(x))
        return self.down_proj(factors * self.up_proj(x)) + factors.mean()


def factor_sites(model: nn.Module) -> list[Site]:
    return [gate.site for gate in dg.named_gates(model).values() if gate.site.factors]


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.Sigmoid(), nn.LeakyReLU()])
def test_the_activation_in_front_of_the_product_gives_factors(activation: nn.Module) -> None:
    model = dg.gate_(Unit(activation), MAGNITUDE, where="mlp-all")
    assert factor_sites(model) == [FACTORS]


def test_the_roles_follow_what_the_forward_pass_does_and_not_names() -> None:
    model = dg.gate_(Swapped(), MAGNITUDE, where="mlp-all")
    assert factor_sites(model) == [Site("act_fn", ("gate_proj",), "up_proj", 24, factors=True)]
    with torch.no_grad():
        dg.named_gates(model)["act_fn"].bias.fill_(-torch.inf)  # all closed
        for name in ("gate_proj", "up_proj", "down_proj"):
            dg.named_gates(model)[name].bias.fill_(40.0)
    macs = {row["name"]: row["macs"] for row in dg.measure(model, torch.randn(4, 8)).layers}
    assert (macs["gate_proj"], macs["up_proj"]) == (0.0, 192.0)


@pytest.mark.parametrize("kind", [BehindTheProduct, Twice, AFunction, NotTraced, ReadElsewhere])
def test_what_multiplies_nothing_that_could_be_left_out_is_no_factor(kind: type[Unit]) -> None:
    model = dg.gate_(kind(), MAGNITUDE, where="mlp-all")
    assert {*dg.named_gates(model)} == {"gate_proj", "up_proj", "down_proj"}
    plan = convert_(kind(), 0.8, [torch.randn(64, 8)], net="magnitude", show=False)
    assert "1 of 1 gated ones have none on factors" in str(plan)


def test_an_activation_that_layers_share_has_no_gate() -> None:
    shared = nn.SiLU()
    model = nn.Sequential(Unit(shared), Unit(shared))
    dg.gate_(model, MAGNITUDE, where="mlp-all")
    assert factor_sites(model) == []
    dg.ungate_(model)
    with pytest.raises(ValueError, match=r"'0\.act_fn' and '1\.act_fn' are one activation"):
        dg.gate_(model, MAGNITUDE, where=[Site("0.act_fn", ("0.up_proj",), "0.gate_proj", 24, factors=True)])
    assert not shared._forward_hooks


@pytest.mark.parametrize("consumer", ["gate_proj", "down_proj", ""])
def test_only_an_activation_gives_factors(consumer: str) -> None:
    with pytest.raises(ValueError, match="factors are what an activation gives"):
        dg.gate_(Unit(), MAGNITUDE, where=[Site(consumer, ("up_proj",), "gate_proj", 24, factors=True)])


@pytest.mark.parametrize("other", [{"kind": "static"}, {"net": "linear"}])
@pytest.mark.parametrize("factors_first", [True, False])
def test_rows_that_another_gate_saves_cannot_be_saved_again(other: dict[str, Any], factors_first: bool) -> None:
    model, hidden = Unit(), GateConfig(block=4, **other)
    puts = [lambda: dg.gate_(model, MAGNITUDE, where=[FACTORS]), lambda: dg.gate_(model, hidden, where="mlp")]
    first, second = puts if factors_first else puts[::-1]
    first()
    with pytest.raises(ValueError, match="would both save rows of up_proj"):
        second()
    assert len(dg.named_gates(model)) == 1


def test_what_factors_multiply_is_known_from_those_that_are_not_zero() -> None:
    torch.manual_seed(0)
    model = Unit(nn.ReLU())
    scale = torch.logspace(-3, 0, 24)
    with torch.no_grad():
        model.up_proj.weight.mul_(scale[:, None])
        model.up_proj.bias.zero_()
        model.gate_proj.bias.zero_()
    convert_(model, 0.6, [torch.randn(2048, 8)], net="magnitude", show=False)
    bias = dg.named_gates(model)["act_fn"].bias.detach()
    wanted = 0.5 * model.up_proj.weight.square().sum(1).log()
    torch.testing.assert_close(bias - bias.mean(), (wanted - wanted.mean()).detach(), atol=0.4, rtol=0.0)


def test_factors_alone_are_converted_and_have_no_order() -> None:
    model = Unit()
    convert_(model, 0.9, [torch.randn(256, 8)], net="magnitude", where=[FACTORS], show=False)
    assert dg.measure(model, torch.randn(256, 8)).macs["relative"] == pytest.approx(0.9, abs=0.05)
    with pytest.raises(ValueError, match="are factors, whose order is fixed"):
        check_movable(model, FACTORS)
