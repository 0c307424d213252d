"""Load a user's own folder of idx files, the format of MNIST: images (or other arrays) and labels, plain or gzipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.idx_format import read_idx
from dynamicgate.lab.datasets.npz_file import say_empty_classes
from dynamicgate.lab.datasets.splits import TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays

MARKS = ("-idx", ".idx")
"""What the names of idx files have in them: train-images-idx3-ubyte, train-images.idx3-ubyte."""
PARTS = {"train": ("train",), "valid": ("valid", "val"), "test": ("t10k", "test")}
_LAYOUT = (
    "expected train-images-idx3-ubyte and train-labels-idx1-ubyte, and for a test part the same with t10k or test in "
    "place of train, plain or with .gz"
)


def is_idx_folder(path: Path) -> bool:
    """Whether a folder holds idx files itself."""
    return any(_is_idx(entry) for entry in path.iterdir())


def load_idx_folder(path: Path, seed: int) -> Splits:
    """Images scaled to [0, 1] if they are bytes, else as they are; x is [n, features]. A missing test part is a fixed
    20 %, missing validation 15 % of the rest by `seed`. One mean and one standard deviation for all pixels."""
    found = {part: _read_part(path, part) for part in PARTS}
    train, valid, test = found["train"], found["valid"], found["test"]
    if train is None:
        raise ValueError(f"{path} has no idx files to train on; {_LAYOUT}")
    classes = int(train.y.max()) + 1
    say_empty_classes(train, classes, path)
    for part, rows in (("test", test), ("validation", valid)):
        if rows is not None and int(rows.y.max()) >= classes:
            raise ValueError(f"{path}: the {part} part has class {int(rows.y.max())}, which has no row to learn from")
    if test is None:
        train, test = split_arrays(train, TEST_FRACTION, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_FRACTION, seed, f"{path} (validation part)")
    mean, std = float(train.values.double().mean()), float(train.values.double().std())
    return Splits(path.resolve().name, train, valid, test, classes, mean, std if std > 0 else 1.0)


def _read_part(path: Path, part: str) -> Arrays | None:
    images, labels = (_find(path, part, word) for word in ("images", "labels"))
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        raise ValueError(f"{path} has {images or labels} without its {'images' if labels else 'labels'}; {_LAYOUT}")
    x, y = read_idx(images), read_idx(labels, ndim=1)
    if x.ndim < 2:
        raise ValueError(f"{images} has {x.ndim} dimension: expected a row for each image; are two files swapped?")
    if len(x) != len(y):
        raise ValueError(f"{images} has {len(x)} images, and {labels.name} has {len(y)} labels")
    rows = check_arrays(x.reshape(len(x), -1), y, what=f"{images} with {labels.name}", least_classes=1)
    return Arrays(rows.values / 255, rows.y) if x.dtype == np.uint8 else rows


def _find(path: Path, part: str, word: str) -> Path | None:
    named = [p for p in sorted(path.iterdir()) if _is_idx(p) and word in p.name and p.name.startswith(PARTS[part])]
    if len({p.name.removesuffix(".gz") for p in named}) > 1:
        raise ValueError(f"{path} has several files of {part} {word}: {', '.join(p.name for p in named)}; keep one")
    return named[0] if named else None


def _is_idx(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and any(mark in path.name for mark in MARKS)
