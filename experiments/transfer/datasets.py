"""The data, each as a file that a user might have; written once, below the checkout."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynamicgate.lab.datasets import default_data_dir

FOLDER = "runs/transfer"  # relative to the checkout, because it is part of what identifies a run
TEXT = Path("tinyshakespeare") / "input.txt"
CONTEXT, ROWS, TEST_ROWS = 16, 30_000, 5_000
REGIME_ROWS, REGIME_COLUMNS, WRONG_LABELS = 2400, 50, 0.1
MISSING = 0.08  # of the cells of three columns


class Dataset(NamedTuple):
    """A file, what it holds in a sentence, how it is written, and the options of its loader."""

    file: str
    about: str
    write: Callable[[Path, Path], None]
    options: Mapping[str, Any] = {}
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


def write_characters(path: Path, data_dir: Path) -> None:
    """One-hot contexts and the character behind each, drawn from two parts of the text."""
    text = np.frombuffer((data_dir / TEXT).read_bytes(), dtype=np.uint8)
    known, numbers = np.unique(text, return_inverse=True)
    cut = len(text) * 7 // 8
    draw = np.random.default_rng(0)
    parts = {}
    for name, first, last, rows in (("", 0, cut, ROWS), ("_test", cut, len(text), TEST_ROWS)):
        start = draw.choice(last - first - CONTEXT, rows, replace=False) + first
        windows = numbers[start[:, None] + np.arange(CONTEXT)]
        parts[f"x{name}"] = np.eye(len(known), dtype=np.float32)[windows].reshape(rows, -1)
        parts[f"y{name}"] = numbers[start + CONTEXT]
    np.savez_compressed(path, **parts)


def write_breast_cancer(path: Path, data_dir: Path) -> None:
    """As scikit-learn has it."""
    from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped, unused-ignore]

    x, y = load_breast_cancer(return_X_y=True)
    np.savez_compressed(path, x=x.astype(np.float32), y=y)


def write_wine(path: Path, data_dir: Path) -> None:
    """As scikit-learn has it."""
    from sklearn.datasets import load_wine  # type: ignore[import-untyped, unused-ignore]

    x, y = load_wine(return_X_y=True)
    np.savez_compressed(path, x=x.astype(np.float32), y=y)


def write_shuffled_digits(path: Path, data_dir: Path) -> None:
    """Digits with its columns in a random order, under another name: it gets none of the settings that digits has."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(x.shape[1])
    np.savez_compressed(path, x=(x[:, order] / 16).astype(np.float32), y=y)


def write_regimes(path: Path, data_dir: Path) -> None:
    """Made so that the columns that matter depend on the row: the signs of the first two say which of four regimes it
    is in, and in each the class is the largest of three sums over four columns of that regime alone."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(REGIME_ROWS, REGIME_COLUMNS)).astype(np.float32)
    weights = draw.normal(size=(4, 4, 3))
    regime = 2 * (x[:, 0] > 0) + (x[:, 1] > 0)
    own = np.stack([x[:, 2 + 4 * k : 6 + 4 * k] for k in range(4)])[regime, np.arange(len(x))]
    y = np.einsum("nd,ndc->nc", own, weights[regime]).argmax(1)
    wrong = draw.random(len(y)) < WRONG_LABELS
    y[wrong] = draw.integers(0, 3, int(wrong.sum()))
    np.savez_compressed(path, x=x, y=y)


def write_diabetes(path: Path, data_dir: Path) -> None:
    """A table as people keep them: text columns, empty cells, and the class in words (thirds of the progression)."""
    from sklearn.datasets import load_diabetes  # type: ignore[import-untyped, unused-ignore]

    found = load_diabetes(scaled=False)
    names = list(found.feature_names)
    low, high = np.quantile(found.target, (1 / 3, 2 / 3))
    draw = np.random.default_rng(0)
    lines: list[dict[str, str]] = []
    for row, target in zip(found.data, found.target, strict=True):
        line = {name: f"{value:g}" for name, value in zip(names, row, strict=True)}
        line["age"] = f"{int(row[names.index('age')]) // 10 * 10}s"
        line["sex"] = {1.0: "first", 2.0: "second"}[float(row[names.index("sex")])]
        line |= {name: "" for name in ("age", "bmi", "s5") if draw.random() < MISSING}
        lines.append({**line, "progression": "low" if target < low else "high" if target >= high else "middle"})
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


DATASETS = {
    "characters": Dataset(
        "characters.npz",
        "which of 65 characters follows sixteen others in Shakespeare's plays; test rows are from the last eighth",
        write_characters,
        seeds=(0, 1, 2),
    ),
    "breast-cancer": Dataset("breast-cancer.npz", "benign or malignant, of scikit-learn", write_breast_cancer),
    "wine": Dataset("wine.npz", "one of three cultivars, of scikit-learn", write_wine),
    "shuffled-digits": Dataset(
        "shuffled-digits.npz", "digits of scikit-learn with its 64 columns in a random order", write_shuffled_digits
    ),
    "regimes": Dataset(
        "regimes.npz",
        "synthetic: of 50 columns, the signs of two say which of four regimes a row is in, each regime has four "
        "columns of its own that decide between three classes, 32 columns are noise, a tenth of the labels is random",
        write_regimes,
    ),
    "diabetes": Dataset(
        "diabetes.csv",
        "thirds of the progression of the disease, of scikit-learn, as a .csv file with two text columns and with "
        "empty cells in three columns",
        write_diabetes,
        {"target": "progression", "missing": "fill"},
    ),
}


def write_files(root: Path, data_dir: Path | None, names: Iterable[str]) -> None:
    """Write the files that are not there yet."""
    for dataset in map(DATASETS.__getitem__, names):
        path = root / FOLDER / dataset.file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            dataset.write(path, data_dir or default_data_dir())
