"""Run by test_fused_gate.py with TRITON_INTERPRET=1: the kernel on CPU tensors against the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamicgate.activations import IN_TRITON
from dynamicgate.ops.ffn import fused_gate_activation
from tests.ops.ffn.fused_gate_cases import SCALE_NAMES, SCALES, SIZES, error, made


@pytest.mark.parametrize("scale", SCALES, ids=SCALE_NAMES)
@pytest.mark.parametrize("sizes", SIZES)
def test_results_match_the_reference(sizes: tuple[int, int, int], scale: dict[str, float]) -> None:
    assert error(made(*sizes, **scale)) < 1e-6


@pytest.mark.parametrize("activation", IN_TRITON)
def test_activations_and_value(activation: str) -> None:
    assert error(made(5, 70, 16, value=True, activation=activation)) < 2e-6


@pytest.mark.parametrize(("cut", "fraction"), [(-100.0, 1.0), (100.0, 0.0)])
def test_all_open_and_all_closed(cut: float, fraction: float) -> None:
    given: dict[str, Any] = {**made(3, 40, 16, activation="identity"), "cut": cut}
    assert (fused_gate_activation(**given) != 0).float().mean() == fraction


def test_closed_units_may_be_nan() -> None:
    given = made(2, 32, 16)
    given["product_TM"][0, :16] = torch.nan
    given["product_TM"][0, 32] = -1.0
    assert fused_gate_activation(**given).isfinite().all()


@pytest.mark.parametrize("scale", SCALES, ids=SCALE_NAMES)
def test_a_nan_logit_gives_nan(scale: dict[str, float]) -> None:
    given = made(2, 32, 16, **scale)
    expected = fused_gate_activation(**given)
    given["product_TM"][1, 33] = torch.nan
    found = fused_gate_activation(**given)
    assert found[1, 16:].isnan().all()
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1, :16], expected[1, :16])


def test_any_strides_and_no_rows_at_all() -> None:
    given = made(4, 24, 8)
    product_TM = given["product_TM"]
    strided = {**given, "product_TM": torch.cat((product_TM, product_TM), 1)[:, : product_TM.shape[1]]}
    assert torch.equal(fused_gate_activation(**strided), fused_gate_activation(**given))
    transposed = {**given, "product_TM": product_TM.T.contiguous().T}
    assert torch.equal(fused_gate_activation(**transposed), fused_gate_activation(**given))
    assert fused_gate_activation(**{**given, "product_TM": product_TM[:0]}).shape == (0, 24)
