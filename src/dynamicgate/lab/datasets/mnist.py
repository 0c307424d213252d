"""MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes, Burges), in the four official idx files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.idx_format import read_content, read_idx
from dynamicgate.lab.datasets.sources import get_source
from dynamicgate.lab.datasets.splits import Splits, split_arrays

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FOLDERS = ("MNIST/raw", "MNIST", "mnist", ".")
TRAIN_ROWS, TEST_ROWS, VALID_ROWS = 60_000, 10_000, 5_000
LABEL_BYTES = 8 + TRAIN_ROWS


def load_mnist(data_dir: Path, seed: int) -> Splits:
    """The official 60,000 training and 10,000 test images; x is [n, 784] in [0, 1].

    `seed` draws 5,000 of the training images for validation. Mean and standard deviation are the usual published ones,
    over all training pixels.
    """
    train_images, train_labels, test_images, test_labels = find_files(data_dir)
    official_train = read_pair(train_images, train_labels, TRAIN_ROWS)
    test = read_pair(test_images, test_labels, TEST_ROWS)
    refuse_other_labels(train_labels, test_labels)
    train, valid = split_arrays(official_train, VALID_ROWS / TRAIN_ROWS, seed, "mnist")
    return Splits("mnist", train, valid, test, classes=10, mean=0.1307, std=0.3081)


def find_files(data_dir: Path) -> list[Path]:
    """The four files, plain or gzipped, in the first folder that has them all."""
    missing_in = {}
    for folder in (data_dir / name for name in FOLDERS):
        found = [_plain_or_gzipped(folder, name) for name in FILES]
        present = [path for path in found if path is not None]
        if len(present) == len(FILES):
            return present
        missing_in[folder] = [name for name, path in zip(FILES, found, strict=True) if path is None]
    looked = "; ".join(
        f"{folder} ({'none of them' if len(missing) == len(FILES) else 'lacks ' + ', '.join(missing)})"
        for folder, missing in missing_in.items()
    )
    raise FileNotFoundError(
        f"MNIST was not found. Expected the files {', '.join(FILES)}, each plain or with .gz, together in one folder. "
        f"Looked in: {looked}. Download them with `dynamicgate data get mnist`, or give the folder that has them with "
        "--data-dir (data_dir=) or the environment variable DYNAMICGATE_DATA."
    )


def refuse_other_labels(train: Path, test: Path) -> None:
    """Other datasets come as files of the same names, and would be reported as MNIST with its licence and citation."""
    official = {file.name.removesuffix(".gz"): file.unpacked_sha256 for file in get_source("mnist").files}
    for path, name in ((train, FILES[1]), (test, FILES[3])):
        if hashlib.sha256(read_content(path, LABEL_BYTES)).hexdigest() != official[name]:
            raise ValueError(
                f"{path} has other labels than MNIST: another dataset is given as data of your own, by its folder "
                f"(--data {path.parent}); if it should be MNIST, download it again"
            )


def read_pair(images: Path, labels: Path, rows: int) -> Arrays:
    """`rows` images, flattened and scaled to [0, 1], with their labels; errors name the file at fault."""
    x, y = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if x.shape[1:] != (28, 28):
        raise ValueError(f"{images}: expected images of 28 x 28 pixels, found {x.shape[1]} x {x.shape[2]}")
    for path, array, kind in ((images, x, "images"), (labels, y, "labels")):
        if array.dtype != "uint8":
            raise ValueError(f"{path}: expected {kind} of type uint8, found {array.dtype}")
    if len(x) != len(y):
        raise ValueError(f"{images} has {len(x)} images but {labels} has {len(y)} labels; expected {rows} of both")
    if len(x) != rows:
        raise ValueError(f"{images} and {labels} have {len(x)} items, expected {rows}; download the official files")
    arrays = check_arrays(x.reshape(rows, 28 * 28), y, classes=10, what=f"{images} with {labels.name}")
    return Arrays(arrays.values.div_(255), arrays.y)  # in place: converting from uint8 made a copy


def _plain_or_gzipped(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
