"""Mean and standard deviation of each feature, which a model normalises its input with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.sparse_rows import SparseRows

# A standard deviation below this fraction of the mean is float32 rounding (resolution 1.2e-7), not information.
MIN_RELATIVE_STD = 1e-6
MIN_STD = 1e-30


def mean_and_std(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each feature; a constant feature gets 1, so that dividing by it is harmless."""
    values = x.numpy()
    mean = values.mean(axis=0, dtype=np.float64)
    std = values.std(axis=0, dtype=np.float64)
    std = np.where(is_constant(mean, std), 1.0, std)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def is_constant(mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which features vary by no more than rounding."""
    return std <= np.maximum(MIN_RELATIVE_STD * np.abs(mean), MIN_STD)


def sparse_mean_and_std(
    rows: SparseRows, index: torch.Tensor, min_std: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each column over the rows at `index`, without making them dense.

    A constant column gets standard deviation 1, as for dense data; any other gets at least `min_std`.
    """
    columns = rows.shape[1]
    total, squares = np.zeros(columns), np.zeros(columns)
    for positions in index.cpu().split(8192):
        part = rows.matrix[positions.numpy()]
        values = part.data.astype(np.float64)
        total += np.bincount(part.indices, values, columns)
        squares += np.bincount(part.indices, values * values, columns)
    mean = total / len(index)
    std = np.sqrt(np.maximum(squares / len(index) - mean * mean, 0))
    std = np.where(is_constant(mean, std), 1.0, np.maximum(std, min_std))
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))
