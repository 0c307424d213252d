"""A user's own folder of idx files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.mnist import refuse_other_labels

from .small_arrays import rows_of, write_idx

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (60, 5, 4), dtype=np.uint8)
Y = (np.arange(60) % 3).astype(np.uint8)


def written(folder: Path, **parts: Any) -> Path:
    for name, (x, y) in ({"train": (X, Y)} | parts).items():
        write_idx(folder / f"{name}-images-idx3-ubyte", x)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", y)
    return folder


def test_missing_parts_are_split_off_and_bytes_are_scaled(tmp_path: Path) -> None:
    data = load_dataset(written(tmp_path / "letters"))
    assert (data.name, data.classes, data.train.features) == ("letters", 3, 20)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [41, 7, 12]
    parts = [rows_of(part.values) for part in (data.train, data.valid, data.test)]
    assert set.union(*parts) == {(row / np.float32(255)).tobytes() for row in X.reshape(60, 20).astype(np.float32)}


@pytest.mark.parametrize("name", ["t10k", "test"])
def test_a_test_part_is_used_as_it_is(name: str, tmp_path: Path) -> None:
    data = load_dataset(written(tmp_path, **{name: (X[:9], Y[:9])}))
    assert [len(part) for part in (data.train, data.valid, data.test)] == [51, 9, 9]
    assert data.test.y.tolist() == Y[:9].tolist()


def test_names_with_a_point_and_other_types_are_read(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images.idx2-float", np.linspace(-3, 9, 120, dtype=np.float32).reshape(60, 2))
    write_idx(tmp_path / "train-labels.idx1-ubyte", Y)
    data = load_dataset(tmp_path)
    assert (float(data.train.values.min()), data.train.features) == (-3.0, 2)


def test_a_class_without_rows_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"of 5 classes \(labels 0 to 4\), 2 have no row to learn from: 0, 1;"):
        load_dataset(written(tmp_path, train=(X, Y + 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "train-labels-idx1-ubyte.gz").unlink(), "without its labels"),
        (lambda f: (f / "train-images-idx3-ubyte").unlink(), "without its images"),
        (lambda f: write_idx(f / "train-labels-idx1-ubyte.gz", Y[:50]), "has 60 images, and .* has 50 labels"),
        (lambda f: write_idx(f / "train-images-idx3-ubyte", Y), "has 1 dimension: expected a row for each image"),
        (lambda f: write_idx(f / "train-images2-idx3-ubyte", X), "has several files of train images"),
        (lambda f: written(f, test=(X, Y + 1)), "the test part has class 3, which has no row to learn from"),
        (lambda f: [(f / name).rename(f / f"t10k{name[5:]}") for name in
                    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz")], "has no idx files to train on"),
    ],
)  # fmt: skip
def test_folders_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    change(written(tmp_path))
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path)


def test_another_dataset_does_not_pass_as_mnist(tmp_path: Path) -> None:
    labels = write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(60_000, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"has other labels than MNIST: .*by its folder \(--data .*"):
        refuse_other_labels(labels, labels)
