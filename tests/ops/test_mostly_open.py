"""Layers of which nearly everything is open: many rows are computed densely, and closed blocks still count as zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import GateNet, chain
from dynamicgate.ops.chain import Layer, reference_chain

ROWS = [5, 6, 17, 70, 256, 300]  # from 6 rows on, and in several chunks


def layers_of(
    inputs: int, units: int, outputs: int, block: int, *, closed: float, tau: float | None = None, value: bool = False
) -> list[Layer]:
    """Two layers, the first with a gate that closes about this fraction of its blocks."""
    draw = torch.Generator().manual_seed(units + block)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) / shape[-1] ** 0.5

    blocks = -(-units // block)
    cut = -torch.inf if closed == 0.0 else float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(closed)))
    gate = GateNet((normal(blocks, inputs),), (None,), cut=cut, tau=tau)
    up = Layer(
        normal(units, inputs), normal(units), "gelu", block, gate, value_weight=normal(units, inputs) if value else None
    )
    return [up, Layer(normal(outputs, units), normal(outputs))]


SHAPES = {
    "blocks of 64": (40, 256, 33, 64),
    "a last block that is smaller": (24, 150, 16, 32),
    "padded blocks": (17, 90, 5, 9),
    "more inputs than one pass takes": (16, 1100, 48, 100),
    "large blocks": (16, 640, 20, 320),
    "units": (12, 40, 19, 1),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("closed", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("name", SHAPES)
def test_outputs_match_float64(name: str, closed: float, rows: int) -> None:
    for options in ({}, {"tau": 0.8}, {"value": True}):
        layers = layers_of(*SHAPES[name], closed=closed, **options)  # type: ignore[arg-type]
        x = torch.randn(rows, SHAPES[name][0], generator=torch.Generator().manual_seed(rows))
        want = reference_chain(x.double(), layers)
        got = chain.run(x, chain.pack(layers))
        wrong = ((got - want).abs().amax(1) > 2e-5 * float(want.abs().max())).sum()
        assert int(wrong) <= rows // 50, options  # a logit at its cut may fall on either side


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("closed", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("name", SHAPES)
def test_half_panels_give_the_bits_of_panels(name: str, closed: float, rows: int) -> None:
    def rounded(layer: Layer, layout: str) -> Layer:
        weight = layer.weight.bfloat16().float()
        value = None if layer.value_weight is None else layer.value_weight.bfloat16().float()
        return replace(layer, weight=weight, value_weight=value, layout=layout)

    x = torch.randn(rows, SHAPES[name][0], generator=torch.Generator().manual_seed(rows))
    for value in (False, True):
        layers = layers_of(*SHAPES[name], closed=closed, value=value)
        found = [
            chain.run(x, chain.pack([rounded(layer, layout) for layer in layers]))
            for layout in ("panels", "half panels")
        ]
        same = (
            torch.equal if SHAPES[name][3] > 1 else torch.allclose
        )  # units that open alone are summed in another order
        assert same(*found)


@pytest.mark.parametrize("closed", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", SHAPES)
def test_byte_panels_give_what_panels_give(name: str, closed: float, rows: int) -> None:
    def rounded(layer: Layer, layout: str) -> Layer:
        value = None if layer.value_weight is None else chain.rounded_to_bytes(layer.value_weight)
        return replace(layer, weight=chain.rounded_to_bytes(layer.weight), value_weight=value, layout=layout)

    x = torch.randn(rows, SHAPES[name][0], generator=torch.Generator().manual_seed(rows))
    for value in (False, True):
        layers = [rounded(layer, "byte panels") for layer in layers_of(*SHAPES[name], closed=closed, value=value)]
        want = chain.reference_chain(x.double(), [replace(layer, layout="panels") for layer in layers])
        torch.testing.assert_close(chain.run(x, chain.pack(layers)).double(), want, atol=2e-5, rtol=2e-5)


def test_weights_that_need_more_bits_cannot_be_half_panels() -> None:
    with pytest.raises(ValueError, match="bfloat16 holds exactly: use panels, or round them"):
        chain.pack([Layer(torch.full((3, 4), 1.0 + 2.0**-12), layout="half panels")])


def test_a_third_layer_behind_it_is_gated_as_before() -> None:
    first, second = layers_of(40, 256, 128, 64, closed=0.02)
    third = layers_of(128, 96, 7, 32, closed=0.5)
    gated = Layer(second.weight, second.bias, "relu", 32, GateNet((torch.randn(4, 256) / 16,), (None,), cut=-0.1))
    layers = [first, gated, *third]
    x = torch.randn(90, 40)
    want, got = reference_chain(x.double(), layers), chain.run(x, chain.pack(layers))
    assert int(((got - want).abs().amax(1) > 2e-5 * float(want.abs().max())).sum()) <= 2


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_odd_numbers_stay_in_their_row(odd: float) -> None:
    layers = layers_of(40, 256, 33, 64, closed=0.02)
    packed, x = chain.pack(layers), torch.randn(50, 40)
    clean = chain.run(x, packed)
    x[7, 3] = odd
    got, want = chain.run(x, packed), chain.run(x, packed, backend="torch")
    others = torch.arange(50) != 7
    assert torch.allclose(got[others], clean[others], atol=1e-5)
    assert torch.equal(got[7].isnan(), want[7].isnan())
