"""Rows of a sparse matrix: only the batch that is asked for is ever dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class SparseRows:
    """The rows of a scipy sparse matrix as `Rows`: a batch is a dense float32 tensor, the rest stays sparse.

    Stored as CSR in float32. A matrix that already is CSR in float32 is shared, not copied.
    """

    def __init__(self, matrix: Any, what: str = "sparse matrix") -> None:
        """Check `matrix` (any scipy sparse format, real and finite) and keep it; `what` names it in errors."""
        if not hasattr(matrix, "tocsr"):
            raise TypeError(
                f"{what} must be a scipy sparse matrix, got {type(matrix).__name__}; dense rows are kept as a tensor"
            )
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"{what} must have at least one row and one column, got shape {tuple(matrix.shape)}")
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"{what} must hold real numbers, got dtype {matrix.dtype}")
        check_structure(matrix, what)
        with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is reported below
            csr = matrix.tocsr().astype(np.float32, copy=False)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        wrong = np.flatnonzero(~np.isfinite(csr.data))
        if len(wrong):
            row = int(np.searchsorted(csr.indptr, wrong[0], side="right")) - 1
            raise ValueError(
                f"{what} must be finite in float32, found {len(wrong)} NaN or infinite values, the first in row {row}, "
                f"column {csr.indices[wrong[0]]} ({csr.data[wrong[0]]}); drop these rows or fill the values in first"
            )
        self.matrix = csr
        self.shape: tuple[int, ...] = tuple(csr.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """The rows at these indices (or where a boolean index is True), dense, in that order."""
        if index.ndim != 1:
            raise IndexError(f"rows need a 1-dimensional index, got shape {tuple(index.shape)}")
        return torch.from_numpy(self.matrix[index.cpu().numpy()].toarray())


def check_structure(matrix: Any, what: str) -> None:
    """Raise ValueError if the indices of a scipy sparse matrix point outside of it. scipy believes them: rows taken
    from such a matrix are read from, and written to, memory that is not its own."""
    try:
        if hasattr(matrix, "check_format"):  # csr, csc, bsr
            matrix.check_format(full_check=True)
        elif hasattr(matrix, "coords"):  # coo
            for size, index in zip(matrix.shape, matrix.coords, strict=True):
                if len(index) != len(matrix.data) or (len(index) and not 0 <= index.min() <= index.max() < size):
                    raise ValueError("an index is outside of the matrix")
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{what} is damaged, its indices do not fit its shape ({error}); write it again from whole data"
        ) from error
