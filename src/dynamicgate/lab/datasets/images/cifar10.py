"""CIFAR-10: 60,000 photographs of 32 x 32 pixels in 10 classes (A. Krizhevsky, 2009), binary or Python version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.archive import dataset_not_found, find_dataset, read_members
from dynamicgate.lab.datasets.images.augmentation import make_augmentation
from dynamicgate.lab.datasets.images.channel_statistics import published_statistics
from dynamicgate.lab.datasets.images.cifar10_pickle import read_pickled_batch
from dynamicgate.lab.datasets.images.pixels import to_features
from dynamicgate.lab.datasets.splits import Splits, split_arrays

PLACES = (".", "cifar10", "CIFAR10", "cifar-10")
BINARY = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
PICKLED = tuple(name.removesuffix(".bin") for name in BINARY)
CLASS_NAMES_FILE = "batches.meta.txt"
FOLDERS = (
    ("cifar-10-batches-bin", "*_batch*.bin"),
    ("cifar-10-batches-py", "*_batch*"),
    (".", "data_batch_*.bin"),
    (".", "data_batch_?"),
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD_BYTES = 1 + 3 * 32 * 32
VALID_FRACTION = 0.10
# "paper": the constants of the published notebook (sec 5.2).
NORMALISATION = {"paper": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))}


def load_cifar10(
    data_dir: Path, seed: int, *, augment: bool | str | None = True, normalisation: str = "paper"
) -> Splits:
    """The official training and test images; `seed` draws 10 % of the training images for validation.

    x is uint8 [n, 3, 32, 32], read as 3,072 features in [0, 1]. In training, images are cropped at random after padding
    by 4 pixels, and flipped (`augment`: also "flip", or False for neither). A batch file may have any number of images.
    """
    mean, std = published_statistics(NORMALISATION, normalisation, 32 * 32)
    augmentation = make_augmentation(augment, padding=4)
    places = [data_dir / place for place in PLACES]
    source = find_dataset(places, FOLDERS, "cifar-10")
    if source is None:
        folders = "a folder cifar-10-batches-bin or cifar-10-batches-py"
        raise dataset_not_found("cifar10", places, f"{folders}, or an archive whose name starts with cifar-10")
    official_train, test, names = read_cifar10(source)
    train, valid = split_arrays(official_train, VALID_FRACTION, seed, f"{source} (validation part)")
    return Splits("cifar10", replace(train, augment=augmentation), valid, test, 10, mean, std, names)


def read_cifar10(source: Path) -> tuple[Arrays, Arrays, tuple[str, ...]]:
    """Official training part, test part and class names, from a folder or archive of either version."""
    found = _read_files(source)
    layout = BINARY if any(name.endswith(".bin") for name in found) else PICKLED
    if missing := [name for name in layout if name not in found]:
        raise FileNotFoundError(
            f"{source} lacks {', '.join(missing)}; expected {', '.join(layout)}. Download it again with "
            "`dynamicgate data get cifar10`"
        )
    read = read_binary_batch if layout is BINARY else read_pickled_batch
    batches = [read(found.pop(name), f"{source}: {name}") for name in layout]
    for name, (_, labels) in zip(layout, batches, strict=True):
        if (wrong := np.flatnonzero((labels < 0) | (labels > 9))).size:
            raise ValueError(
                f"{source}: {name}: labels must be 0..9, found {labels[wrong[0]]} in record {wrong[0]}; download "
                "it again"
            )
    names = tuple(found.get(CLASS_NAMES_FILE, b"").decode("utf-8", "replace").split())
    return _concatenate(batches[:-1]), _concatenate(batches[-1:]), names if len(names) == 10 else CLASSES


def read_binary_batch(content: bytes, what: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Pixels [n, 3072] and labels [n] from records of 3,073 bytes: the label, then red, green and blue."""
    if len(content) == 0 or len(content) % RECORD_BYTES:
        raise ValueError(
            f"{what} has {len(content)} bytes, expected records of {RECORD_BYTES} bytes "
            f"({len(content) // RECORD_BYTES} of them leave {len(content) % RECORD_BYTES} bytes over); download "
            "it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:], records[:, 0]


def _read_files(source: Path) -> dict[str, bytes]:
    in_folder = source.is_dir()

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        # A folder may contain more than this dataset, whose own files are at its top level.
        return path.name in (*BINARY, *PICKLED, CLASS_NAMES_FILE) and not (in_folder and len(path.parts) > 1)

    found: dict[str, bytes] = {}
    for member, content in read_members(source, wanted):
        name = PurePosixPath(member).name
        if name in found:
            raise ValueError(f"{source} contains {name} twice, the second time as {member}; expected one CIFAR-10")
        found[name] = content
    return found


def _concatenate(batches: list[tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]]) -> Arrays:
    x = torch.from_numpy(np.concatenate([pixels for pixels, _ in batches])).view(-1, 3, 32, 32)
    y = torch.from_numpy(np.concatenate([labels for _, labels in batches]).astype(np.int64))
    return Arrays(x, y, prepare=to_features)
