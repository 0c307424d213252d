"""Mean and deviation of the columns of a sparse matrix."""

from __future__ import annotations

import numpy as np
import torch

from dynamicgate.data.sparse_rows import SparseRows as SparseRows
from dynamicgate.data.sparse_rows import check_structure as check_structure
from dynamicgate.lab.datasets.normalisation import is_constant


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
