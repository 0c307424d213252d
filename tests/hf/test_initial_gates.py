"""Gates fitted to what blocks add: better than chance, near the oracle, at the open rate that was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.gating.gate import Gate
from dynamicgate.hf import init_gates_, order_
from dynamicgate.hf.initial_gates import BlockNorms
from tests.hf.small_models import llama_sites, regimes, small_llama, token_batches, trained_network

BLOCK, RATE = 8, 0.375


def gated(**options: Any) -> nn.Sequential:
    """The trained network, its units ordered, with gates that know nothing yet."""
    model = trained_network()
    x, _ = regimes(2048, seed=5)
    order_(model, x, block=BLOCK, where=dg.where.hidden, show=False)
    return dg.gate_(model, dg.GateConfig(block=BLOCK, **{"net": "linear", **options}))  # type: ignore[return-value]


def gate_of(model: nn.Module) -> Gate:
    return dg.named_gates(model)["2"]


def open_blocks(model: nn.Module, x: Tensor) -> Tensor:
    with dg.usage(model) as used, torch.no_grad():
        model(x)
    return used["2"].open


def lost(model: nn.Sequential, x: Tensor, opened: Tensor) -> float:
    """The part of the output of the layer that is lost if these blocks alone are open."""
    with torch.no_grad():
        h = torch.relu(model[0](x))
        closed = h * (1.0 - opened.repeat_interleave(BLOCK, dim=1))
        return float((closed @ model[2].weight.T).square().sum() / (h @ model[2].weight.T).square().sum())


def test_fitted_gates_beat_chance_by_far_and_come_near_the_oracle() -> None:
    model = gated()
    explained = init_gates_(model, regimes(4096, seed=6)[0], open_rate=RATE, show=False)
    x, _ = regimes(1024, seed=7)
    opened = open_blocks(model, x)
    assert abs(float(opened.mean()) - RATE) < 0.03  # on other rows than it was fitted to
    norms = BlockNorms(gate_of(model), model[2]).of(torch.relu(model[0](x)).detach())
    threshold = norms.flatten().sort(descending=True).values[int(opened.sum()) - 1]
    oracle = lost(model, x, (norms >= threshold).float())
    random = lost(model, x, (torch.rand_like(opened) < opened.mean()).float())
    best_static = torch.zeros_like(opened)
    best_static[:, norms.mean(0).topk(round(RATE * 16)).indices] = 1.0
    found = lost(model, x, opened)
    assert oracle < found < 0.35 * random
    assert found < 0.6 * lost(model, x, best_static)
    assert found - oracle < 0.25 * (random - oracle)
    assert 0.3 < explained["2"] < 1.0


def test_gates_that_are_closed_do_not_hide_what_blocks_add() -> None:
    x, _ = regimes(2048, seed=6)
    one, two = gated(), gated()
    gate_of(two).bias.data.fill_(-50.0)  # all closed
    init_gates_(one, x, open_rate=RATE, show=False)
    init_gates_(two, x, open_rate=RATE, show=False)
    assert torch.equal(open_blocks(one, x), open_blocks(two, x))


@pytest.mark.parametrize(
    "options",
    [
        {"net": "low-rank", "rank": 4},
        {"net": "two-layer", "rank": 6},
        {"net": "low-rank", "rank": 40},  # more than it can use
        {"net": "two-layer", "rank": 40},
        {"reads": "same"},
        {"tau": 0.5, "theta": 0.7},
        {"kind": "static", "net": "auto"},
        {"always_open": 2},
    ],
    ids=str,
)
def test_every_kind_of_gate_is_fitted(options: dict[str, Any]) -> None:
    model = gated(**options)
    x, _ = regimes(4096, seed=6)
    init_gates_(model, x, open_rate=RATE, show=False)
    opened = open_blocks(model, x)
    assert abs(float(opened.mean()) - RATE) < 0.02
    random = lost(model, x, (torch.rand_like(opened) < RATE).float())
    assert lost(model, x, opened) < (0.9 if options.get("kind") == "static" else 0.6) * random
    if options.get("always_open"):
        assert int((opened.mean(0) == 1.0).sum()) >= 2


def test_a_gate_of_full_rank_decides_like_a_linear_one() -> None:
    x, _ = regimes(4096, seed=6)
    linear, wide, relu = gated(), gated(net="low-rank", rank=16), gated(net="two-layer", rank=16)
    for model in (linear, wide, relu):
        init_gates_(model, x, open_rate=RATE, show=False)
    decided = open_blocks(linear, x)
    assert float((open_blocks(wide, x) == decided).float().mean()) > 0.999
    assert float((open_blocks(relu, x) == decided).float().mean()) > 0.98  # where ReLU is linear


def test_top_k_gates_open_the_blocks_that_add_most() -> None:
    model = gated(top_k=6)
    x, _ = regimes(2048, seed=6)
    init_gates_(model, x, open_rate=RATE, show=False)
    opened = open_blocks(model, x)
    assert (opened.sum(1) == 6).all()
    random = torch.zeros_like(opened).scatter_(1, torch.rand_like(opened).topk(6).indices, 1.0)
    assert lost(model, x, opened) < 0.4 * lost(model, x, random)


def test_norms_of_a_ragged_last_block_are_those_of_its_outputs() -> None:
    model = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 5))
    dg.gate_(model, dg.GateConfig(block=4))
    h = torch.randn(6, 10)
    norms = BlockNorms(dg.named_gates(model)["2"], model[2]).of(h)
    for g, part in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
        assert torch.allclose(norms[:, g], (h[:, part] @ model[2].weight[:, part].T).norm(dim=1), atol=1e-5)


def test_the_gates_of_a_llama_meet_the_open_rate_at_every_layer() -> None:
    model, batches = small_llama(), token_batches(16)
    dg.gate_(model, dg.GateConfig(block=8, net="linear"), where=llama_sites(model))
    init_gates_(model, batches, open_rate=0.5, show=False)
    with dg.usage(model) as used, torch.no_grad():
        for batch in batches:
            model(**batch)
    rates = {site: float(rate) for site, rate in used.mean_open().items()}
    assert abs(rates["model.layers.0.mlp.down_proj"] - 0.5) < 0.01
    assert all(abs(rate - 0.5) < 0.05 for rate in rates.values()), rates  # later layers read what gates have changed


def test_what_cannot_be_fitted_is_refused_with_a_sentence() -> None:
    x, _ = regimes(64, seed=6)
    with pytest.raises(ValueError, match="no gates"):
        init_gates_(trained_network(), x, open_rate=0.5, show=False)
    with pytest.raises(ValueError, match="weights its open blocks"):
        init_gates_(dg.gate_(trained_network(), dg.GateConfig(kind="router", block=8)), x, open_rate=0.5, show=False)
    with pytest.raises(ValueError, match="0 < open_rate <= 1"):
        init_gates_(gated(), x, open_rate=1.5, show=False)
    with pytest.raises(ValueError, match="use fewer of these, or a higher rate"):
        init_gates_(gated(always_open=8), x, open_rate=0.5, show=False)
    on_inputs = dg.gate_(trained_network(), where=dg.where.inputs)
    with pytest.raises(ValueError, match="on input features"):
        init_gates_(on_inputs, x, open_rate=0.5, show=False)
