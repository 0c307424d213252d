"""Weights rounded to int8 with a scale for each output."""

from __future__ import annotations

import pytest
import torch

from dynamicgate.ops import chain
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.chain.rounding import bytes_of, fits_bytes, rounded_to_bytes, scales_of


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e-3, 1.0, 3e4, 1e30])
def test_rounding_is_to_the_nearest_and_changes_nothing_the_second_time(size: float) -> None:
    weight = size * torch.randn(37, 113, generator=torch.Generator().manual_seed(0))
    rounded = rounded_to_bytes(weight)
    scale = scales_of(weight)[:, None]
    assert bool(((rounded - weight).abs() <= 0.5001 * scale).all())
    assert torch.equal(rounded_to_bytes(rounded), rounded)
    assert fits_bytes(rounded)
    if size > 1e-20:
        assert not fits_bytes(weight)
        assert bool((scale[:, 0] <= weight.abs().amax(1) / 127 * 1.0001).all()), "no bit of the bytes is left unused"


def test_what_bytes_hold_is_a_product_without_rounding() -> None:
    weight = torch.randn(16, 64) / 7
    scale = scales_of(weight)
    whole = bytes_of(weight, scale)
    assert torch.equal((whole * scale[:, None]).double(), whole.double() * scale.double()[:, None])
    assert int(whole.abs().max()) == 127


def test_zeros_stay_zeros_and_rows_do_not_share_a_scale() -> None:
    weight = torch.randn(3, 8)
    weight[1] = 0.0
    weight[2] *= 1e-6
    rounded = rounded_to_bytes(weight)
    assert not bool(rounded[1].any())
    assert bool(((rounded - weight).norm(dim=1) <= 0.01 * weight.norm(dim=1)).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_not_numbers_are_refused(bad: float) -> None:
    weight = torch.ones(2, 3)
    weight[1, 1] = bad
    with pytest.raises(ValueError, match="infinite or not a number"):
        rounded_to_bytes(weight)
    assert not fits_bytes(weight)


def test_weights_that_int8_does_not_hold_cannot_be_byte_panels() -> None:
    with pytest.raises(ValueError, match=r"over 127\) hold exactly: use panels, or round them"):
        chain.pack([Layer(torch.randn(3, 4), layout="byte panels")])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e35])
@pytest.mark.parametrize("rows", [1, 20])
def test_inputs_that_are_not_numbers_give_what_a_dense_layer_gives(bad: float, rows: int) -> None:
    weight = rounded_to_bytes(torch.randn(33, 20, generator=torch.Generator().manual_seed(0)))
    weight[4] = 0.0
    layers = [Layer(weight, torch.randn(33), "relu", layout="byte panels")]
    x = torch.randn(rows, 20)
    x[0, 5] = bad
    want = chain.reference_chain(x, layers)
    torch.testing.assert_close(chain.run(x, chain.pack(layers)), want, equal_nan=True)
