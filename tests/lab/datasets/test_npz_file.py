"""A user's own .npz file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.loading import load_dataset

from .small_arrays import labelled_rows, rows_of

X, Y = labelled_rows([50, 30, 20])


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_file_with_x_and_y_is_split_into_three_parts(tmp_path: Path) -> None:
    data = load_dataset(str(saved(tmp_path / "mine.npz", x=X, y=Y)))
    assert data.info() == {
        "name": "mine",
        "train": 68,
        "valid": 12,
        "test": 20,
        "features": 3,
        "classes": 3,
        "majority": 0.5,
        "class_counts": {"train": [34, 20, 14], "valid": [6, 4, 2], "test": [10, 6, 4]},
    }
    parts = [rows_of(part.x) for part in (data.train, data.valid, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100


def test_the_test_part_is_fixed_and_validation_moves_with_the_seed(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.npz", x=X, y=Y)
    first, second = load_dataset(path, seed=0), load_dataset(path, seed=1)
    assert first.test.x.equal(second.test.x)
    assert not first.valid.x.equal(second.valid.x)


def test_parts_in_the_file_are_used_as_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y, x_valid=X[:7], y_valid=Y[:7], x_test=X[50:59], y_test=Y[50:59])
    data = load_dataset(path)
    assert (len(data.train), len(data.valid), len(data.test)) == (100, 7, 9)
    assert data.test.x.equal(torch.from_numpy(X[50:59]))


@pytest.mark.parametrize(("given", "sizes"), [("test", (85, 15, 10)), ("valid", (80, 10, 20))])
def test_only_the_missing_part_is_split_off(tmp_path: Path, given: str, sizes: tuple[int, int, int]) -> None:
    extra = {f"x_{given}": X[:10] - 1000, f"y_{given}": Y[:10]}
    data = load_dataset(saved(tmp_path / "a.npz", x=X, y=Y, **extra))
    assert (len(data.train), len(data.valid), len(data.test)) == sizes


def test_values_stay_raw_and_mean_and_std_of_each_feature_are_those_of_the_training_part(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal([5.0, -300.0], [0.1, 40.0], (200, 2)).round(2)
    x[:40, 0] = 0
    data = load_dataset(saved(tmp_path / "a.npz", x=x, y=np.arange(200) % 2))
    assert rows_of(data.train.x) <= rows_of(torch.from_numpy(x).float())
    normalised = (data.train.x - data.mean) / data.std
    assert normalised.mean(0).abs().max() < 1e-4
    assert (normalised.std(0, correction=0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("constant", [0.0, 0.1, -7e8, 1e-20])
def test_a_constant_feature_is_not_divided_by_zero(tmp_path: Path, constant: float) -> None:
    x = np.column_stack([np.full(100, constant), np.arange(100) * 1e-9])
    data = load_dataset(saved(tmp_path / "a.npz", x=x, y=np.arange(100) % 2))
    assert isinstance(data.std, torch.Tensor)
    assert data.std[0] == 1
    assert data.std[1] < 1e-7  # a small feature is not a constant one
    assert ((data.test.x - data.mean) / data.std).abs().max() < 100


def test_images_keep_their_shape(tmp_path: Path) -> None:
    data = load_dataset(saved(tmp_path / "a.npz", x=np.zeros((40, 2, 4, 4), "uint8"), y=np.arange(40) % 2))
    assert data.train.x.shape[1:] == (2, 4, 4)
    assert isinstance(data.mean, torch.Tensor)
    assert data.mean.shape == (2, 4, 4)


def test_arrays_of_other_names_are_ignored_even_if_they_hold_objects(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y, names=np.array(["a", None], dtype=object))
    assert len(load_dataset(path).train) == 68


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no y": ({"x": X, "labels": Y}, r"has no array 'y', found \['labels', 'x'\]; save it with"),
    "no x": ({"x_train": X, "y": Y}, r"has no array 'x', found \['x_train', 'y'\]"),
    "objects": ({"x": X.astype(object), "y": Y}, r"could not be read: .*never unpickled"),
    "half a part": ({"x": X, "y": Y, "x_test": X}, r"has x_test but no y_test; give both"),
    "other half": ({"x": X, "y": Y, "y_valid": Y}, r"has y_valid but no x_valid; give both"),
    "flat x": ({"x": Y, "y": Y}, r"\(x, y\): x must have rows and features"),
    "text labels": ({"x": X, "y": np.full(100, "a")}, r"\(x, y\): y must hold real numbers, got dtype <U1"),
    "unseen label": (
        {"x": X, "y": Y, "x_test": X, "y_test": Y + 1},
        r"\(x_test, y_test\): labels must be 0\.\.2, found 3",
    ),
    "features": ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"a row of the test data has shape \(2,\)"),
    "too few rows": ({"x": X[48:52], "y": Y[48:52]}, r"\(test part\): cannot split 4 rows of 2 classes"),
}


@pytest.mark.parametrize(("arrays", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_contents_are_refused_with_the_name_of_the_file(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"mine.*{message}"):
        load_dataset(saved(tmp_path / "mine.npz", **arrays))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello, I am text", b"\x93NUMPY"])
def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.npz is not an \.npz file, or a truncated one"):
        load_dataset(path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = saved(tmp_path / "mine.npz", x=X, y=Y)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ValueError, match=r"mine\.npz is not an \.npz file, or a truncated one"):
        load_dataset(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_with_flipped_bits_is_refused(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "mine.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=X, y=Y)
    damaged = bytearray(path.read_bytes())
    damaged[300:310] = bytes(byte ^ 0xFF for byte in damaged[300:310])
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"mine\.npz could not be read: .*damaged"):
        load_dataset(path)


def test_an_array_whose_header_promises_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, X)
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", array.getvalue().replace(b"(100, 3)", b"(999, 3)"))
        archive.writestr("y.npy", array.getvalue())
    with pytest.raises(ValueError, match=r"mine\.npz could not be read"):
        load_dataset(path)


def test_a_missing_file_is_reported_with_its_full_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.npz; give the path"):
        load_dataset(str(tmp_path / "absent.npz"))


def test_labels_that_leave_a_class_without_rows_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"of 4 classes \(labels 0 to 3\), 1 have no row to learn from: 0; .*unique"):
        data = load_dataset(saved(tmp_path / "a.npz", x=X, y=Y + 1))
    assert data.classes == 4
