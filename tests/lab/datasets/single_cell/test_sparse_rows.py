"""Rows of a sparse matrix, dense batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.data import Arrays
from dynamicgate.data.sparse_rows import SparseRows
from dynamicgate.lab.datasets.normalisation import mean_and_std, sparse_mean_and_std

sparse = pytest.importorskip("scipy.sparse")

DENSE = np.random.default_rng(0).poisson(0.4, (50, 7)).astype(np.float32)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array"])
def test_a_batch_is_the_dense_rows_of_the_index_in_its_order(form: str) -> None:
    rows = SparseRows(getattr(sparse, form)(DENSE))
    batch = rows[torch.tensor([3, 3, 49, 0])]
    assert batch.dtype == torch.float32
    assert np.array_equal(batch.numpy(), DENSE[[3, 3, 49, 0]])
    assert (rows.shape, len(rows)) == ((50, 7), 50)


def test_a_boolean_or_empty_index_works_as_on_a_dense_tensor() -> None:
    rows, dense = SparseRows(sparse.csr_matrix(DENSE)), torch.from_numpy(DENSE)
    mask = torch.arange(50) % 3 == 0
    assert rows[mask].equal(dense[mask])
    assert rows[torch.arange(0)].shape == (0, 7)


def test_a_csr_matrix_in_float32_is_neither_copied_nor_made_dense() -> None:
    matrix = sparse.csr_matrix(DENSE)
    rows = SparseRows(matrix)
    assert np.shares_memory(rows.matrix.data, matrix.data)
    rows[torch.arange(50)]
    assert sparse.issparse(rows.matrix)


def test_arrays_over_sparse_rows_take_views_and_make_batches() -> None:
    arrays = Arrays(SparseRows(sparse.csr_matrix(DENSE)), torch.arange(50) % 2)
    part = arrays.take(arrays.y == 1).take(torch.tensor([4, 0]))
    assert np.array_equal(part.values.numpy(), DENSE[[9, 1]])
    assert arrays.features == 7
    assert torch.cat([x for x, _ in arrays.batches(8)]).equal(torch.from_numpy(DENSE))


def test_duplicate_entries_are_summed() -> None:
    twice = sparse.csr_matrix((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    rows = SparseRows(twice)
    assert rows[torch.tensor([0])].tolist() == [[0, 3, 0]]
    assert sparse_mean_and_std(rows, torch.tensor([0]))[0].tolist() == [0, 3, 0]
    assert twice.nnz == 2  # the caller's matrix is not changed


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_a_value_that_is_not_finite_in_float32_is_reported_with_its_position(value: float) -> None:
    broken = DENSE.astype(np.float64)
    broken[2, 5] = value
    with pytest.raises(ValueError, match=r"genes must be finite in float32, found 1 .* in row 2, column 5"):
        SparseRows(sparse.csr_matrix(broken), "genes")


@pytest.mark.parametrize(
    ("matrix", "kind", "message"),
    [
        (DENSE, TypeError, "must be a scipy sparse matrix, got ndarray"),
        (sparse.csr_matrix((0, 3)), ValueError, r"at least one row and one column, got shape \(0, 3\)"),
        (sparse.csr_matrix(DENSE.astype(complex)), ValueError, "real numbers, got dtype complex128"),
    ],
)
def test_other_matrices_are_refused(matrix: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        SparseRows(matrix)


def test_the_index_must_have_one_dimension() -> None:
    with pytest.raises(IndexError, match=r"1-dimensional index, got shape \(\)"):
        SparseRows(sparse.csr_matrix(DENSE))[torch.tensor(3)]


def test_mean_and_std_equal_those_of_the_dense_rows() -> None:
    dense = DENSE.copy()
    dense[:, 2], dense[:, 3] = 0, 5  # two constant columns
    index = torch.tensor([7, 1, 30, 31, 32, 8])
    mean, std = sparse_mean_and_std(SparseRows(sparse.csr_matrix(dense)), index)
    expected_mean, expected_std = mean_and_std(torch.from_numpy(dense)[index])
    torch.testing.assert_close(mean, expected_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(std, expected_std, rtol=1e-6, atol=1e-7)
    assert std[2:4].tolist() == [1, 1]


def test_min_std_raises_small_deviations_and_leaves_constant_columns_at_one() -> None:
    dense = np.zeros((100, 3), np.float32)
    dense[0, 0], dense[:50, 1] = 1, 4
    _, std = sparse_mean_and_std(SparseRows(sparse.csr_matrix(dense)), torch.arange(100), min_std=0.3)
    assert std.tolist() == pytest.approx([0.3, 2.0, 1.0])


def broken(kind: str, what: str) -> Any:
    """A sparse matrix one of whose indices points outside of it."""
    matrix = sparse.random(60, 20, 0.3, format=kind, dtype=np.float32, random_state=0)
    if kind == "coo":
        matrix.coords[0 if what == "indptr" else 1][3] = 10**6 if what != "negative" else -5000
    elif what == "indptr":
        matrix.indptr[10] = 10**6
    else:
        matrix.indices[5] = 2_000_000_000 if what == "beyond" else -5000
    return matrix


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("what", ["beyond", "negative", "indptr"])
def test_indices_outside_of_the_matrix_are_refused(kind: str, what: str) -> None:
    with pytest.raises(ValueError, match="cells is damaged, its indices do not fit its shape"):
        SparseRows(broken(kind, what), "cells")
