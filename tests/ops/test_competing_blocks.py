"""Open blocks that share one weight by a softmax: kernels and torch against float64, NaN and files included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynamicgate.gating.routing import open_shares, route
from dynamicgate.ops import GateNet, chain
from dynamicgate.ops.chain.unpacking import unpack
from dynamicgate.ops.ffn import FFNWeights, decode_ffn, reference_ffn
from dynamicgate.ops.gate_net import decide, logits
from tests.ops.chains import Sketch, build, expect, inputs_for

SKETCHES = {
    "odd sizes": Sketch(45, block=7, tau=0.7, competes=True),
    "value": Sketch(48, block=16, tau=0.7, competes=True, value=True, activation="silu"),
    "rows": Sketch(20, "rows", block=1, tau=2.0, competes=True),
    "vectors": Sketch(40, "vectors", block=16, rank=3, tau=0.5, competes=True),
    "top k": Sketch(40, block=8, cut="top", top_k=2, tau=1.0, competes=True),
    "always one": Sketch(40, block=8, cut="each", top_k=1, tau=1.0, competes=True),
    "all open": Sketch(40, block=8, cut="all", tau=1.0, competes=True),
    "all closed": Sketch(40, block=8, cut="none", tau=1.0, competes=True),
}


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("name", SKETCHES)
def test_shares_match_float64(name: str, rows: int, backend: str | None) -> None:
    layers = build(31, [SKETCHES[name], Sketch(9, activation="identity")], seed=rows)
    x, _ = inputs_for(layers, rows, seed=rows)
    want, clear = expect(x, layers, None)
    got = chain.run(x, chain.pack(layers), backend=backend)  # type: ignore[arg-type]
    assert float((got - want)[clear].abs().max()) < 1e-5 * max(1.0, float(want.abs().max()))
    assert int(clear.sum()) >= rows // 2


def test_the_factors_are_those_of_a_trained_gate() -> None:
    z = 3.0 * torch.randn(50, 6, dtype=torch.float64)
    gate = GateNet((torch.zeros(6, 1),), (None,), cut=0.5, top_k=1, tau=0.7, competes=True)
    is_open = (z > 0.5) | torch.zeros_like(z, dtype=torch.bool).scatter(1, z.argmax(1, keepdim=True), True)
    assert torch.allclose(decide(z, gate), open_shares(z / 0.7, is_open.double()), atol=1e-14)
    assert torch.allclose(decide(z, gate).sum(1), torch.ones(50, dtype=torch.float64))
    routed = replace(gate, cut=torch.inf, top_k=2)
    assert torch.allclose(decide(z, routed), route(z / 0.7, 2)[2], atol=1e-14)
    closed = replace(gate, cut=torch.inf, top_k=0)
    assert not bool(decide(z, closed).any())
    z[7, 2] = torch.nan
    assert decide(z, closed).isnan().any(1).nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_a_row_with_odd_numbers_is_that_of_torch(odd: float) -> None:
    layers = build(31, [SKETCHES["odd sizes"], Sketch(9, activation="identity")], seed=4)
    x, _ = inputs_for(layers, 12, seed=4)
    clean = chain.run(x, chain.pack(layers))
    x[3, 8] = odd
    got, want = chain.run(x, chain.pack(layers)), chain.run(x, chain.pack(layers), backend="torch")
    others = torch.arange(12) != 3
    # its last bit may depend on how many rows open a block with it: that decides how sums are split
    torch.testing.assert_close(got[others], clean[others], rtol=1e-6, atol=1e-6)
    assert torch.equal(got[3].isnan(), want[3].isnan())


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_a_nan_logit_shows_where_every_unit_is_zero(backend: str | None, rows: int) -> None:
    """Infinite inputs cancel in a logit only: the units are relu(-inf), and the other block is closed."""
    gate = GateNet((torch.tensor([[1.0, -1.0], [-1.0, -1.0]]),), (None,), tau=1.0, competes=True)
    layers = [chain.Layer(-torch.ones(8, 2), None, "relu", 4, gate), chain.Layer(torch.ones(3, 8), torch.ones(3))]
    x = torch.ones(rows, 2)
    x[0] = torch.inf
    got = chain.run(x, chain.pack(layers), backend=backend)  # type: ignore[arg-type]
    assert bool(got[0].isnan().all())
    assert bool((got[1:] == 1.0).all())


def test_packing_keeps_it_and_a_gate_without_a_temperature_is_refused() -> None:
    layers = build(31, [SKETCHES["odd sizes"], Sketch(9)], seed=1)
    gate = unpack(*chain.pack(layers)[:2])[0].gate
    assert gate is not None
    assert gate.competes
    assert gate.tau == pytest.approx(0.7)
    assert layers[0].gate is not None
    with pytest.raises(ValueError, match="need the temperature"):
        chain.pack([replace(layers[0], gate=replace(layers[0].gate, tau=None)), layers[1]])


def test_the_ffn_op_gives_the_shares() -> None:
    torch.manual_seed(0)
    gate = GateNet((torch.randn(2, 8),), (None,), tau=0.7, top_k=1, competes=True)
    x, weights = torch.randn(3, 8), FFNWeights(torch.randn(32, 8), torch.randn(8, 32))
    factor = decide(logits(x, gate), gate)
    expected = reference_ffn(x, weights, factor, block=16, activation="relu")
    assert torch.equal(decode_ffn(x, gate, weights, block=16), expected)
