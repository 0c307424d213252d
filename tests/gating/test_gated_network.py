"""Whole networks with gates against a naive float64 loop: outputs and gradients, open, closed, saved and printed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig
from tests.gating.gates import mlp, set_logits


def naive(model: nn.Sequential, x_BD: Tensor, block: int, tau: float, theta: float) -> tuple[Tensor, list[Tensor]]:
    """The paper's equations one scalar at a time, with a linear GateNet on h^(l-1): outputs and float64 leaves."""
    linears = [m for m in model if isinstance(m, nn.Linear)]
    leaves: list[Tensor] = []

    def leaf(t: Tensor) -> Tensor:
        leaves.append(t.detach().double().requires_grad_())
        return leaves[-1]

    weights = [(leaf(m.weight), leaf(m.bias)) for m in linears]
    gates = [(leaf(m.gate.net.weight), leaf(m.gate.net.bias)) for m in linears[1:]]
    rows = []
    for x in x_BD.double():
        h = list(x)
        for depth, (w, b) in enumerate(weights):
            out = [sum((w[o, i] * h[i] for i in range(len(h))), b[o]) for o in range(len(b))]
            if depth == len(gates):
                rows.append(torch.stack(out))
                break
            gw, gb = gates[depth]
            g = []
            for k in range(len(gb)):
                z = sum((gw[k, i] * h[i] for i in range(len(h))), gb[k])
                p = torch.sigmoid(z / tau)
                assert abs(p.item() - theta) > 1e-5, "too close to the threshold to compare two precisions"
                g.append((p > theta).double() + (p - p.detach()))
            h = [torch.relu(out[i]) * g[i // block] for i in range(len(out))]
    return torch.stack(rows), leaves


@pytest.mark.parametrize(
    ("sizes", "block"), [((5, 33, 3), 4), ((3, 7, 5, 2), 3), ((4, 6, 3), 1), ((2, 5, 2), 8), ((3, 8, 4, 3), 4)]
)
def test_a_gated_network_matches_a_naive_float64_loop_in_outputs_and_gradients(sizes: Any, block: int) -> None:
    tau, theta = 0.7, 0.55
    model = dg.gate_(mlp(*sizes), GateConfig(block=block, open=0.6, tau=tau, theta=theta))
    for gate in dg.named_gates(model).values():
        nn.init.normal_(gate.net.weight, std=4.0)
    x = torch.randn(6, sizes[0])
    with dg.usage(model) as used:
        out = model(x)
    assert all(0 < used[site].open.mean() < 1 for site in used)  # some open, some closed, or nothing is tested
    expected, leaves = naive(model, x, block, tau, theta)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    direction = torch.randn_like(out)
    (out * direction).sum().backward()
    (expected * direction.double()).sum().backward()
    linears = [m for m in model if isinstance(m, nn.Linear)]
    parameters = [p for m in linears for p in (m.weight, m.bias)]
    parameters += [p for m in linears[1:] for p in (m.gate.net.weight, m.gate.net.bias)]
    for mine, naive_one in zip(parameters, leaves, strict=True):
        torch.testing.assert_close(mine.grad.double(), naive_one.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", [GateConfig(block=4), GateConfig(kind="static"), GateConfig(net="low-rank", rank=2)])
def test_with_every_gate_open_the_network_is_the_dense_one_exactly(config: GateConfig) -> None:
    model = mlp(6, 33, 17, 4)
    x = torch.randn(9, 6)
    dense = model(x)
    dg.gate_(model, config)
    for site in dg.named_gates(model):
        set_logits(model, site, 4.0)
    assert torch.equal(model(x), dense)
    assert torch.equal(model.eval()(x), dense)


def test_with_every_gate_closed_only_the_bias_of_the_last_layer_comes_out() -> None:
    model = dg.gate_(mlp(6, 33, 4), GateConfig(block=4))
    set_logits(model, "2", -4.0)
    assert torch.equal(model(torch.randn(9, 6)), model[2].bias.expand(9, -1))


def test_a_gate_on_input_features_closes_features() -> None:
    model = mlp(6, 5, 2)
    x = torch.randn(4, 6)
    kept = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    expected = model(x * kept)
    dg.gate_(model, GateConfig(kind="static"), where=dg.where.inputs)
    set_logits(model, "0", kept * 8.0 - 4.0)
    assert torch.equal(model(x), expected)


def test_a_gate_that_reads_the_same_layer_decides_from_the_units_themselves() -> None:
    model = dg.gate_(mlp(5, 8, 3), GateConfig(reads="same", open=0.5))
    net = dg.named_gates(model)["2"].net
    assert net.weight.shape == (8, 8)
    x = torch.randn(20, 5)
    h = torch.relu(model[0](x))
    g = (torch.sigmoid(h @ net.weight.T + net.bias) > 0.5).float()
    assert 0 < g.mean() < 1
    torch.testing.assert_close(model(x), (h * g) @ model[2].weight.T + model[2].bias)


def test_tau_and_theta_travel_with_the_checkpoint_and_decide_after_loading() -> None:
    trained = dg.gate_(mlp(4, 6, 2), GateConfig(kind="static", tau=1.0, theta=0.5))
    set_logits(trained, "2", torch.linspace(-1.0, 1.0, 6))
    gate = dg.named_gates(trained)["2"]
    gate.tau.fill_(0.25)
    gate.theta.fill_(0.9)
    assert {"2.gate.tau", "2.gate.theta"} <= set(trained.state_dict())
    fresh = dg.gate_(mlp(4, 6, 2), GateConfig(kind="static", tau=1.0, theta=0.5))
    fresh.load_state_dict(trained.state_dict())
    loaded = dg.named_gates(fresh)["2"]
    assert (float(loaded.tau), float(loaded.theta)) == (0.25, pytest.approx(0.9))
    x = torch.randn(3, 4)
    assert torch.equal(fresh(x), trained(x))
    assert loaded(x).open[0].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]  # sigmoid(0.6 / 0.25) = 0.917


def test_the_consumer_running_before_the_source_is_an_error_that_names_both() -> None:
    model = dg.gate_(mlp(4, 6, 2), GateConfig())
    with pytest.raises(RuntimeError, match="'2' ran before '0': its gate has not decided yet"):
        model[2](torch.randn(1, 6))
    model(torch.randn(1, 4))
    with pytest.raises(RuntimeError, match="has not decided yet"):  # a decision is used once, never a stale one
        model[2](torch.randn(1, 6))


def test_printing_a_model_says_what_kind_of_gate_sits_where() -> None:
    model = dg.gate_(mlp(4, 33, 2), GateConfig(block=4, net="low-rank", rank=3))
    assert "dynamic (low-rank, rank 3), 33 units in 9 blocks" in repr(model)
    assert "static, 33 units in 33 blocks" in repr(dg.gate_(mlp(4, 33, 2), GateConfig(kind="static")))
