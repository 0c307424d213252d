"""Zeroing the entries off a mask, with and without compiled kernels."""

import pytest
import torch

from dynamicgate.ops.mask import mask_


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 63), (256, 784), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_entries_off_the_mask_become_zero_and_the_others_stay(shape: tuple[int, int], dtype: torch.dtype) -> None:
    values, mask = torch.randn(shape).to(dtype), torch.rand(shape) < 0.3
    expected = torch.where(mask, values, 0.0)
    mask_(values, mask)
    assert torch.equal(values, expected)


def test_values_and_masks_may_be_strided() -> None:
    values, mask = torch.randn(8, 6), torch.rand(6, 8) < 0.5
    expected = torch.where(mask, values.T, 0.0)
    mask_(values.T, mask)
    assert torch.equal(values.T, expected)
