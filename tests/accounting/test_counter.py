"""The one MAC counter against a brute-force count of connections."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import dynamicgate as dg
from dynamicgate import GateConfig, count_macs
from dynamicgate.accounting import MacCounter
from dynamicgate.nn import GatedMLP


def mask_(linear: nn.Linear, mask_OI: Tensor) -> None:
    """Connections that exist, the way a sparsifier keeps them: a bool buffer, and exact zeros in the weight."""
    linear.register_buffer("mask", mask_OI.bool())
    with torch.no_grad():
        linear.weight.mul_(mask_OI)


def brute_force(model: GatedMLP, decisions: dict[str, Tensor]) -> Tensor:
    """MACs of every sample, one connection at a time."""
    gates = dg.named_gates(model)
    rows = len(next(iter(decisions.values())))
    total = torch.zeros(rows, dtype=torch.float64)
    for b in range(rows):
        for depth, layer in enumerate(model.layers):
            before, after = gates.get(f"layers.{depth}"), gates.get(f"layers.{depth + 1}")
            for o in range(layer.out_features):
                for i in range(layer.in_features):
                    exists = not hasattr(layer, "mask") or bool(layer.mask[o, i])
                    sees = before is None or decisions[f"layers.{depth}"][b, i // before.config.block] == 1
                    wanted = after is None or decisions[f"layers.{depth + 1}"][b, o // after.config.block] == 1
                    total[b] += exists and sees and wanted
        total[b] += sum(gate.macs for gate in gates.values())
    return total


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=3, max_size=5),
    block=st.integers(1, 4),
    masked=st.lists(st.booleans(), min_size=4, max_size=4),
    on_inputs=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_ledger_counts_the_connections_between_open_units_that_exist(
    sizes: list[int], block: int, masked: list[bool], on_inputs: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    where = dg.where.everywhere if on_inputs else dg.where.hidden
    model = GatedMLP(sizes, GateConfig(block=block, net="low-rank", rank=2), where=where)
    for layer, has_mask in zip(model.layers, masked, strict=False):
        if has_mask:
            mask_(layer, torch.rand_like(layer.weight) < 0.5)
    gates = dg.named_gates(model)
    decisions = {name: torch.randint(0, 2, (3, gate.blocks)).float() for name, gate in gates.items()}
    counter = MacCounter.for_mlp(model)
    expected = brute_force(model, decisions)
    assert float(counter.executed(decisions)) == pytest.approx(float(expected.mean()), rel=1e-6)
    dense = sum(a * b for a, b in itertools.pairwise(sizes))
    assert counter.dense == dense
    assert float(counter.relative(decisions)) == pytest.approx(float(expected.mean()) / dense, rel=1e-6)
    per_sample = sum((layer.executed(decisions).double() for layer in counter.layers), torch.zeros(3)) + counter.gate
    assert torch.equal(per_sample.double(), expected)


def test_counts_are_a_sum_of_products_and_not_a_product_of_means() -> None:
    model = GatedMLP((4, 10, 10, 2), GateConfig(kind="static"))
    # half of the inputs open only the first hidden layer, the other half only the second
    taking_turns = {"layers.1": torch.tensor([[1.0], [0.0]]).expand(2, 10), "layers.2": torch.tensor([[0.0], [1.0]])}
    taking_turns["layers.2"] = taking_turns["layers.2"].expand(2, 10)
    together = {"layers.1": taking_turns["layers.1"], "layers.2": taking_turns["layers.1"]}
    counter = MacCounter.for_mlp(model)
    middle = counter.layers[1]
    assert float(middle.executed(taking_turns).mean()) == 0.0
    assert float(middle.executed(together).mean()) == 50.0
    for decisions in (taking_turns, together):
        means = [decisions[site].mean() for site in ("layers.1", "layers.2")]
        assert float(means[0] * means[1]) * middle.dense == 25.0  # what a product of means would say of both


def test_the_expected_cost_of_probabilities_is_differentiable_and_right() -> None:
    model = GatedMLP((4, 6, 3), GateConfig(kind="static", block=4))
    p = torch.tensor([[0.25, 0.5]], requires_grad=True)
    executed = MacCounter.for_mlp(model).executed({"layers.1": p})
    units = 0.25 * 4 + 0.5 * 2
    assert float(executed.detach()) == units * 4 + units * 3
    executed.backward()
    assert p.grad.tolist() == [[4 * 7.0, 2 * 7.0]]


def test_a_gate_that_reads_its_own_layer_does_not_save_the_work_that_made_it() -> None:
    closed = {"layers.1": torch.zeros(1, 6)}
    early = MacCounter.for_mlp(GatedMLP((4, 6, 3), GateConfig()))
    late = MacCounter.for_mlp(GatedMLP((4, 6, 3), GateConfig(reads="same")))
    static = MacCounter.for_mlp(GatedMLP((4, 6, 3), GateConfig(kind="static")))
    assert float(early.executed(closed)) == early.gate == 24.0
    assert float(late.executed(closed)) == 4 * 6 + late.gate
    assert late.gate == 36.0
    assert float(static.executed(closed)) == 0.0  # it reads nothing, so it knows in time


def test_readers_only_counts_as_the_published_code_does() -> None:
    model = GatedMLP((4, 6, 3), GateConfig(kind="static"), where=dg.where.everywhere)
    decisions = {"layers.0": torch.tensor([[1.0, 0, 0, 1]]), "layers.1": torch.tensor([[1.0, 0, 0, 0, 0, 0]])}
    assert float(MacCounter.for_mlp(model).executed(decisions)) == 2 * 1 + 1 * 3
    assert float(MacCounter.for_mlp(model, readers_only=True).executed(decisions)) == 2 * 6 + 1 * 3


def test_both_writers_of_a_gated_linear_unit_are_saved() -> None:
    class SwiGLU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(nn.functional.silu(self.a(x)) * self.b(x))

    counter = MacCounter.for_mlp(dg.gate_(SwiGLU(), GateConfig(kind="static")))
    half = torch.tensor([[1.0] * 4 + [0.0] * 4])
    assert counter.dense == 4 * 8 * 2 + 8 * 3
    assert float(counter.executed({"down": half})) == counter.dense / 2


def test_no_rows_cost_nothing_but_the_fixed_part() -> None:
    counter = MacCounter.for_mlp(GatedMLP((4, 6, 3), GateConfig()))
    assert float(counter.executed({"layers.1": torch.zeros(0, 6)})) == counter.gate


def test_relative_at_is_the_cost_at_a_uniform_open_rate() -> None:
    model = GatedMLP((4, 6, 5, 3), GateConfig(kind="static"))
    counter = MacCounter.for_mlp(model)
    assert counter.relative_at(1.0) == 1.0
    assert counter.relative_at(0.5) == pytest.approx((24 * 0.5 + 30 * 0.25 + 15 * 0.5) / 69)


def test_what_nothing_closes_is_not_rounded_to_float32() -> None:
    model = nn.Sequential(
        nn.Linear(501, 503, bias=False), nn.Linear(503, 64, bias=False), nn.Linear(64, 10, bias=False)
    )
    dg.gate_(model, GateConfig(block=16), where=["1"])
    counter = MacCounter(model, rows={"0": 7.0, "1": 7.0, "2": 7.0}, other=123_456_789_013.0)
    assert counter.relative_at(1.0) == counter.all_open


# --- trace: any model, by running it


def flops(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        model.eval()(x)
    return flops.get_total_flops()


@pytest.mark.parametrize("sizes", [(7, 3), (5, 8, 4), (3, 9, 9, 2)])
def test_trace_agrees_with_the_flop_counter_of_torch_on_dense_networks(sizes: tuple[int, ...]) -> None:
    model = GatedMLP(sizes)
    counter = count_macs(model, torch.randn(6, sizes[0]))
    assert counter.dense * 2 * 6 == flops(model, torch.randn(6, sizes[0]))
    assert counter.other == 0
    assert counter.dense == MacCounter.for_mlp(model).dense


def test_trace_leaves_the_dense_cost_alone_when_gates_are_put_on() -> None:
    model = GatedMLP((5, 8, 4), GateConfig(net="two-layer", rank=3))
    counter = count_macs(model, torch.randn(6, 5))
    assert (counter.dense, counter.gate, counter.other) == (5 * 8 + 8 * 4, 5 * 3 + 3 * 8, 0)
    assert flops(model, torch.randn(6, 5)) == 2 * 6 * (counter.dense + counter.gate)  # as executed, densely


def test_trace_counts_tokens_and_puts_attention_into_other() -> None:
    torch.manual_seed(0)
    tokens, width, inner = 5, 8, 16
    model = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=inner, batch_first=True)
    x = torch.randn(3, tokens, width)
    counter = count_macs(model, x)
    assert {layer.name: layer.rows for layer in counter.layers} == {"linear1": tokens, "linear2": tokens}
    projections, scores_and_mixing = tokens * width * 4 * width, 2 * tokens * tokens * width
    assert counter.other == projections + scores_and_mixing
    assert counter.dense == counter.other + tokens * 2 * width * inner


def test_a_gate_inside_a_transformer_saves_per_token() -> None:
    tokens, width, inner = 5, 8, 16
    model = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=inner, batch_first=True)
    site = dg.Site("linear2", ("linear1",), "linear1", inner)
    dg.gate_(model, GateConfig(net="low-rank", rank=2, block=4, open=0.5), where=[site])
    x = torch.randn(3, tokens, width)
    counter = count_macs(model, x)
    assert counter.gate == tokens * (width * 2 + 2 * 4)
    result = dg.measure(model, x)
    with dg.usage(model.eval()) as used, torch.no_grad():
        model(x)
    open_units = used["linear2"].open.sum((1, 2)) * 4
    assert 0 < open_units.mean() < tokens * inner
    expected = counter.other + counter.gate + open_units.double() * 2 * width
    assert result.macs["executed"] == pytest.approx(float(expected.mean()), rel=1e-12)


def test_trace_counts_a_convolution_as_other() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 4))
    counter = count_macs(model, torch.randn(2, 1, 6))
    assert counter.other == 6 * 2 * 3
    assert counter.dense == 36 + 48


def test_trace_counts_a_layer_that_runs_twice_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.a(x))

    assert count_macs(Twice(), torch.randn(3, 4)).dense == 32


def test_tracing_leaves_no_hook_and_no_mode_behind() -> None:
    model = GatedMLP((5, 8, 4), GateConfig())
    model.layers[0].eval()
    hooks = [len(m._forward_pre_hooks) for m in model.modules()]
    modes = [m.training for m in model.modules()]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    count_macs(model, torch.randn(2, 5))
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [m.training for m in model.modules()] == modes
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    with pytest.raises(RuntimeError):
        count_macs(model, torch.randn(2, 99))
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [m.training for m in model.modules()] == modes
