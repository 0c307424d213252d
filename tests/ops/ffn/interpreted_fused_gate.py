"""Run by test_fused_gate.py with TRITON_INTERPRET=1: the kernel on CPU tensors against the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamicgate.ops.ffn import close_hidden
from tests.ops.ffn.fused_gate_cases import SCALES, SIZES, error, made


@pytest.mark.parametrize("scale", SCALES, ids=["hard", "tau", "soft_width"])
@pytest.mark.parametrize("sizes", SIZES)
def test_results_are_those_of_the_reference(sizes: tuple[int, int, int], scale: dict[str, float]) -> None:
    assert error(made(*sizes, **scale)) < 1e-6


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_activations_and_value(activation: str) -> None:
    assert error(made(5, 70, 16, value=True, activation=activation)) < 2e-6


@pytest.mark.parametrize(("cut", "share"), [(-100.0, 1.0), (100.0, 0.0)])
def test_all_open_and_all_closed(cut: float, share: float) -> None:
    given: dict[str, Any] = {**made(3, 40, 16, activation="identity"), "cut": cut}
    assert (close_hidden(**given) != 0).float().mean() == share


def test_what_is_closed_may_be_nan() -> None:
    given = made(2, 32, 16)
    given["both_TM"][0, :16] = torch.nan
    given["both_TM"][0, 32] = -1.0
    assert close_hidden(**given).isfinite().all()


def test_rows_may_lie_apart_and_none_is_fine() -> None:
    given = made(4, 24, 8)
    apart = {**given, "both_TM": torch.cat((given["both_TM"], given["both_TM"]), 1)[:, : given["both_TM"].shape[1]]}
    assert torch.equal(close_hidden(**apart), close_hidden(**given))
    turned = {**given, "both_TM": given["both_TM"].T.contiguous().T}
    assert torch.equal(close_hidden(**turned), close_hidden(**given))
    assert close_hidden(**{**given, "both_TM": given["both_TM"][:0]}).shape == (0, 24)
