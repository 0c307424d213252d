"""Checks of rows and labels, and their error messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.data import check_arrays

X = np.arange(12, dtype=np.float64).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def changed(array: Any, index: Any, value: float) -> Any:
    copy = np.array(array, dtype=np.float64)
    copy[index] = value
    return copy


@pytest.mark.parametrize("as_torch", [False, True])
def test_tensors_and_numpy_arrays_become_float32_rows_and_int64_labels(as_torch: bool) -> None:
    data = check_arrays(torch.from_numpy(X), torch.from_numpy(Y)) if as_torch else check_arrays(X, Y)
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert data.x.tolist() == X.tolist()
    assert data.y.tolist() == Y.tolist()


def test_bytes_are_not_rescaled() -> None:
    pixels = np.array([[0, 255], [7, 0]], dtype=np.uint8)
    data = check_arrays(pixels, np.array([0, 1], dtype=np.uint8))
    assert data.x.tolist() == [[0.0, 255.0], [7.0, 0.0]]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "uint32", "int64", "float16", "float32", ">f4", "longdouble"]
)
def test_every_real_dtype_is_accepted(dtype: str) -> None:
    data = check_arrays(np.array([[0, 1], [1, 0]]).astype(dtype), np.array([0, 1]).astype(dtype))
    assert data.x.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert data.y.tolist() == [0, 1]


def test_bfloat16_and_gradient_tracking_tensors_are_accepted() -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    data = check_arrays(x, torch.tensor([True, False]))
    assert not data.x.requires_grad
    assert data.y.tolist() == [1, 0]


def test_read_only_and_reversed_arrays_are_accepted_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    frozen = X.astype(np.float32)[::-1]
    frozen.flags.writeable = False
    labels = Y[::-1]
    assert check_arrays(frozen, labels).x[0].tolist() == [9, 10, 11]
    frozen = np.array(frozen)
    frozen.flags.writeable = False
    assert check_arrays(frozen, labels).y.tolist() == [1, 2, 1, 0]
    assert not recwarn.list


def test_float_labels_that_are_whole_numbers_are_converted() -> None:
    assert check_arrays(X, Y.astype(np.float64)).y.tolist() == [0, 1, 2, 1]


def test_one_class_is_enough_with_least_classes_1() -> None:
    assert len(check_arrays(X, np.ones(4), classes=3, least_classes=1)) == 4


def test_images_keep_their_shape() -> None:
    assert check_arrays(np.zeros((4, 1, 8, 8)), Y).x.shape == (4, 1, 8, 8)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "nan": (
        changed(changed(X, (2, 1), np.nan), (3, 0), np.inf),
        Y,
        r"found 2 NaN or infinite .* index \(2, 1\) \(nan\)",
    ),
    "too large for float32": (changed(X, (1, 2), 1e300), Y, r"finite in float32, found 1 .* index \(1, 2\) \(inf\)"),
    "no rows": (X[:0], Y[:0], r"is empty: x has shape \(0, 3\).* at least one row"),
    "no features": (X[:, :0], Y, r"is empty: x has shape \(4, 0\)"),
    "lengths": (X, Y[:3], r"x has 4 rows but y has 3 labels; give exactly one label"),
    "flat x": (X.ravel(), Y, r"x must have rows and features .* got shape \(12,\); .*reshape\(-1, 1\)"),
    "scalar y": (X, np.array(1), r"y must have 1 dimension.* got shape \(\)"),
    "column y": (X, Y[:, None], r"y must have 1 dimension.* got shape \(4, 1\); .*y\.reshape\(-1\)"),
    "one-hot y": (X, np.eye(3)[Y], r"got shape \(4, 3\);.*argmax\(1\)"),
    "fractional y": (
        X,
        changed(Y, 3, 0.5),
        r"labels must be integers, found 0\.5 at row 3; for regression pass",
    ),
    "nan y": (X, changed(Y, 1, np.nan), r"labels must be integers, found nan at row 1"),
    "infinite y": (X, changed(Y, 1, -np.inf), r"labels must be integers, found -inf at row 1"),
    "negative y": (X, np.array([0, 1, -1, 1]), r"labels must be 0\.\.9, found -1 at row 2; renumber"),
    "y too large": (X, np.array([0, 1, 2, 12]), r"labels must be 0\.\.9, found 12 at row 3; renumber"),
    "whole float too large": (X, np.array([0, 1, 2, 12.0]), r"labels must be 0\.\.9, found 12 at row 3"),
    "one class": (X, np.full(4, 7), r"at least 2 classes, found only class 7 in all 4 rows"),
    "object x": (X.astype(object), Y, r"x must hold real numbers, got dtype object; encode"),
    "text y": (
        X,
        np.array(["a", "b", "c", "b"]),
        r"y must hold real numbers, got dtype <U1; number the classes once .*`numpy.unique",
    ),
    "complex x": (torch.zeros(4, 3, dtype=torch.complex64), Y, r"x must hold real numbers, got dtype torch.complex64"),
    "dates": (X.astype("datetime64[s]"), Y, r"x must hold real numbers, got dtype datetime64"),
    "sparse x": (torch.eye(4).to_sparse(), Y, r"x must be a dense tensor, got layout torch.sparse_coo; .*to_dense"),
}


@pytest.mark.parametrize(("x", "y", "message"), WRONG.values(), ids=WRONG.keys())
def test_invalid_data_is_refused_with_a_readable_message(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^my data.*{message}"):
        check_arrays(x, y, classes=10, what="my data")


def test_huge_labels_are_refused_without_a_number_of_classes() -> None:
    with pytest.raises(
        ValueError, match=r"^training data: labels must be 0\.\.999999, found 100000000000000000000 at row 2"
    ):
        check_arrays(X, np.array([0, 1, 1e20, 2]))


def test_a_list_is_refused_with_advice_to_convert_it() -> None:
    with pytest.raises(TypeError, match=r"x must be a torch tensor or a numpy array, got list; .*numpy\.asarray"):
        check_arrays([[1.0], [2.0]], np.array([0, 1]))  # type: ignore[arg-type]
