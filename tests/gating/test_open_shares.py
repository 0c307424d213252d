"""Gates whose open blocks share one weight by a softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.gating import Gate
from dynamicgate.gating.routing import open_shares, route


def shares_in_float64(z_BG: Tensor, open_BG: Tensor) -> Tensor:
    """Row by row, without masks."""
    found = torch.zeros_like(z_BG, dtype=torch.float64)
    for row, is_open in enumerate(open_BG > 0):
        if is_open.any():
            found[row, is_open] = torch.softmax(z_BG[row, is_open].double(), 0)
    return found


@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
def test_shares_are_the_softmax_of_open_logits_and_nothing_where_all_is_closed(spread: float) -> None:
    z = torch.randn(41, 7) * spread
    opened = (torch.rand(41, 7) < 0.4).float()
    opened[3], opened[4] = 0.0, 1.0
    found = open_shares(z, opened)
    torch.testing.assert_close(found.double(), shares_in_float64(z, opened), rtol=1e-5, atol=1e-7)
    assert bool((found[3] == 0).all())


def test_a_nan_logit_shows_in_the_shares_of_its_row_and_of_no_other() -> None:
    z, opened = torch.randn(4, 5), torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0]).repeat(4, 1)
    opened[2] = 0.0
    expected = open_shares(z, opened)
    for row, block in ((1, 0), (2, 3)):  # one that is open, and one where nothing is
        z[row, block] = torch.nan
    found = open_shares(z, opened)
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
    assert bool(found[1, [0, 2]].isnan().all())
    assert bool(found[2, 3].isnan())


@pytest.mark.parametrize("config", [{}, {"always_open": 1}, {"top_k": 2}], ids=["threshold", "always open", "top k"])
def test_a_gate_that_reads_nan_has_nan_among_its_factors(config: Any) -> None:
    """Who skips the blocks of factor 0 would not see it otherwise."""
    gate = Gate(Site("out", ("in",), "in", 24), GateConfig(block=4, scale="softmax", **config), features=5).eval()
    x = torch.randn(3, 5)
    x[1, 2] = torch.nan
    assert gate(x).scale.isnan().any(-1).tolist() == [False, True, False]


def test_gradients_of_shares_reach_open_logits_only_and_are_finite() -> None:
    z = (torch.randn(9, 6) * 50).requires_grad_()
    opened = (torch.rand(9, 6) < 0.5).float()
    opened[0], opened[1] = 0.0, 1.0
    weight = torch.randn(9, 6)
    (open_shares(z, opened) * weight).sum().backward()
    exact = z.detach().double().requires_grad_()
    masked = torch.softmax(exact.masked_fill(opened == 0, -1e9), -1) * opened
    (masked * weight).sum().backward()
    assert z.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(z.grad.double() * opened, exact.grad * opened, rtol=1e-4, atol=1e-6)
    assert bool((z.grad[opened == 0] == 0).all())


def test_with_top_k_the_weights_are_those_of_a_router() -> None:
    gate = Gate(Site("out", ("in",), "in", 24), GateConfig(block=4, scale="softmax", top_k=3, tau=0.5), features=5)
    x = torch.randn(33, 5)
    torch.testing.assert_close(gate(x).scale, route(gate.net(x) / 0.5, 3)[2])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("train", ["hard", "gumbel", "bernoulli"])
def test_a_gate_divides_one_weight_among_the_blocks_it_opens(train: Any, training: bool) -> None:
    config = GateConfig(block=4, scale="softmax", train=train, always_open=1, tau=0.6, open=0.5)
    gate = Gate(Site("out", ("in",), "in", 30), config, features=5).train(training)
    with torch.no_grad():
        gate.net.weight.mul_(8.0)
    decision = gate(torch.randn(64, 5))
    torch.testing.assert_close(decision.scale.sum(-1), torch.ones(64))
    if not (training and train != "hard"):
        assert torch.equal(decision.scale > 0, decision.open > 0)
        counts = decision.open.sum(-1)
        assert counts.min() < counts.max(), "inputs open different numbers of blocks"


def test_a_budget_steers_gates_that_share_a_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    dg.gate_(model, GateConfig(block=4, scale="softmax", always_open=1))
    x = torch.randn(512, 12)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    history = dg.fit(model, (x, y), budget=dg.Budget(target=0.5), epochs=12, batch=64, lr=1e-2, show=False)
    assert dg.measure(model, (x, y)).relative == pytest.approx(0.5, abs=0.01)
    assert history.log[-1]["loss"] < history.log[0]["loss"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "static"}, "expected kind='dynamic'"),
        ({"train": "soft"}, "hard decisions"),
        ({"evaluate": "soft"}, "hard decisions"),
        ({"soft_width": 1.0}, "soft_width"),
    ],
)
def test_what_cannot_share_a_weight_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GateConfig(scale="softmax", **wrong)


def test_another_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="'softmax'"):
        GateConfig(scale="sum")  # type: ignore[arg-type]
