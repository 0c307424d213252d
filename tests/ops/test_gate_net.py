"""The rule by which logits open blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.ops.gate_net import largest


def by_sorting(z_BG: Tensor, k: int) -> Tensor:
    order = z_BG.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(z_BG, dtype=torch.bool).scatter(-1, order, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_largest_are_the_first_of_a_stable_sort(dtype: torch.dtype) -> None:
    """With ties, NaN and infinities, and where fewer than k logits are above -inf."""
    torch.manual_seed(0)
    for trial in range(100):
        z = torch.randn(7, 5 + trial % 9).mul(2).round().to(dtype)
        for value in (float("nan"), float("inf"), -float("inf")):
            z[torch.rand(z.shape) < 0.2] = value
        for k in range(z.shape[1] + 1):
            assert torch.equal(largest(z, k), by_sorting(z, k)), (z, k)
