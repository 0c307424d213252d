"""What does not fit stages is refused with a sentence, before anything changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig
from tests.gating.staged import sequential, stage, staged


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": (0.5, 0.6)}, r"fractions of the units of a layer that add up to 1.*adds up to 1\.1"),
        ({"stages": (0.2, 1)}, "which adds up to 1.2"),
        ({"stages": (1.0,)}, "two stages or more"),
        ({"stages": ()}, "two stages or more"),
        ({"stages": (0.0, 1.0)}, "all above 0"),
        ({"stages": (-4, 8)}, "all above 0"),
        ({"stages": (float("nan"), 1.0)}, "all above 0"),
        ({"decide": "guess"}, "decide must be one of margin, entropy, head, random, received 'guess'"),
        ({"block": 4}, "block=4 means nothing with kind='stages', which has only stages= and decide="),
        ({"tau": 2.0, "theta": 0.4}, "tau=2.0, theta=0.4 means nothing with kind='stages'"),
        ({"top_k": 2}, "top_k=2 means nothing with kind='stages'"),
        ({"soft_width": 1.0}, "soft_width=1.0 means nothing with kind='stages'"),
        ({"kind": "dynamic", "stages": (0.5, 0.5)}, "stages and decide are for kind='stages', received kind='dynamic'"),
        ({"kind": "static", "decide": "head"}, "stages and decide are for kind='stages', received kind='static'"),
    ],
)
def test_a_config_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GateConfig(**{"kind": "stages", **options})


class Branches(nn.Module):
    """Two producers of one site."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.value, self.down = nn.Linear(5, 16), nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).sigmoid() * self.value(x))


class TwoStacks(nn.Module):
    """Two stacks side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = sequential((5, 16, 3)), sequential((5, 16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class Normed(nn.Module):
    """A stack whose outputs something else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = sequential((5, 16, 8)), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


@pytest.mark.parametrize(
    ("model", "config", "where", "message"),
    [
        (
            sequential((5, 16, 24, 3)),
            {"stages": (8, 8)},
            None,
            "8, 8 units do not fit the 24 units behind '2': they must",
        ),
        (sequential((5, 3, 3)), {"stages": (0.1, 0.1, 0.8)}, None, "0.1, 0.1, 0.8 do not fit the 3 units behind '0'"),
        (sequential((5, 16, 1)), {}, None, "one output gives no margin: '2' has a single output.*decide='head'"),
        (sequential((5, 16, 1)), {"decide": "entropy"}, None, "one output gives no entropy"),
        (Branches(), {}, None, "one stack of Linear layers.*'down': 16 units from up and value, read by down"),
        (TwoStacks(), {}, None, "one stack of Linear layers in which each reads the units of the one before"),
        (TwoStacks(), {}, "left.2", "'left.2', the last layer of the stack, does not give them"),
        (Normed(), {}, None, "'body.2', the last layer of the stack, does not give them: include the sites up to"),
        (sequential((5, 16, 16, 3)), {}, "2", "'2', the last layer of the stack, does not give them"),
        (sequential((5, 16, 3)), {}, "0", "the sites are none"),
        (sequential((5, 16, 3)), {}, "7", "matches none of the sites"),
    ],
)
def test_a_model_that_cannot_have_stages_is_refused(
    model: nn.Module, config: dict[str, Any], where: str | None, message: str
) -> None:
    before = state(model)
    with pytest.raises(ValueError, match=message):
        dg.gate_(model, GateConfig(kind="stages", **config), where=where or dg.where.hidden)
    assert unchanged(model, before)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_stages_may_be_the_last_layers_of_a_longer_stack() -> None:
    model = sequential((5, 16, 16, 3))
    dg.gate_(model, GateConfig(kind="stages", stages=(8, 8)), where="4")
    assert not hasattr(model[2], "mask"), "it writes stages and reads none"
    assert dg.measure(model.eval(), torch.randn(4, 5)).relative == 1.0


def test_one_output_is_fine_with_a_head() -> None:
    assert stage(sequential((5, 16, 1)), decide="head")(torch.randn(2, 5)).shape == (2, 1)


def test_a_model_has_stages_once() -> None:
    model = staged()
    before = state(model)
    with pytest.raises(ValueError, match=r"has stages already; take them off with ungate_\(model, 'stages'\) first"):
        stage(model)
    assert unchanged(model, before)


INSIDE = [
    ({"block": 16, "net": "linear"}, "blocks of 16 units do not fit the stages of '[24]', which begin at units 8, 16"),
    ({"kind": "router", "block": 8}, "inside stages blocks may not compete.*Expected kind='dynamic' or 'static'"),
    ({"block": 8, "net": "linear", "top_k": 2}, "inside stages blocks may not compete"),
    ({"block": 8, "net": "linear", "always_open": 1}, "inside stages blocks may not compete"),
    ({"block": 8, "net": "low-rank"}, "the gate at '4' reads hidden units of several stages: expected net='linear'"),
    ({"block": 8, "net": "two-layer"}, "the gate at '4' reads hidden units of several stages"),
    ({"block": 8, "net": "low-rank", "reads": "same"}, "the gate at '2' reads hidden units of several stages"),
]


@pytest.mark.parametrize(("config", "message"), INSIDE)
def test_a_gate_on_units_that_does_not_fit_the_stages_is_refused(config: dict[str, Any], message: str) -> None:
    model = stage(sequential((5, 32, 32, 3)), (8, 8, 16))
    before = state(model)
    with pytest.raises(ValueError, match=message):
        dg.gate_(model, GateConfig(**config))
    assert unchanged(model, before)


@pytest.mark.parametrize(("config", "message"), INSIDE)
def test_stages_that_do_not_fit_the_gates_there_are_leave_the_weights_alone(
    config: dict[str, Any], message: str
) -> None:
    model = dg.gate_(sequential((5, 32, 32, 3)), GateConfig(**config))
    before = state(model)
    with pytest.raises(ValueError, match=message):
        stage(model, (8, 8, 16))
    assert unchanged(model, before)
