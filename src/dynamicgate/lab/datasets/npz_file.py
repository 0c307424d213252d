"""Load a user's own `.npz` file: arrays `x` and `y`, and optionally its own validation and test parts."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.data.targets import RENUMBER
from dynamicgate.lab.datasets.limits import most_bytes, refuse_larger
from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.splits import TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays

KEYS = ("x", "y", "x_valid", "y_valid", "x_test", "y_test")


def load_npz(path: Path, seed: int) -> Splits:
    """The parts in the file; a missing test part is a fixed 20 %, missing validation 15 % of the rest by `seed`."""
    arrays = read_npz(path)
    train = check_arrays(arrays["x"], arrays["y"], what=f"{path} (x, y)")
    classes = int(train.y.max()) + 1
    say_empty_classes(train, classes, path)
    test = _given_part(path, arrays, "test", classes)
    valid = _given_part(path, arrays, "valid", classes)
    if test is None:
        train, test = split_arrays(train, TEST_FRACTION, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_FRACTION, seed, f"{path} (validation part)")
    mean, std = mean_and_std(train.values)
    return Splits(path.stem, train, valid, test, classes, mean, std)


def say_empty_classes(train: Arrays, classes: int, path: Path) -> None:
    """Labels 1 to 4 make five classes, one of them without a row: usually somebody counted from 1."""
    empty = sorted(set(range(classes)) - set(train.y.tolist()))
    if empty:
        shown = ", ".join(map(str, empty[:5])) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        warnings.warn(
            f"{path}: of {classes} classes (labels 0 to {classes - 1}), {len(empty)} have no row to learn from: "
            f"{shown}; if they should not exist, {RENUMBER}",
            stacklevel=3,
        )


def read_npz(path: Path, needed: tuple[str, ...] = ("x", "y")) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `KEYS` that the file holds, at least those that are `needed`; nothing is ever unpickled."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path.absolute()}; give the path of an .npz file with arrays x and y"
        )
    with path.open("rb") as file:  # opened here, so that a permission error is reported as such
        is_zip = zipfile.is_zipfile(file)
    if not is_zip:
        raise ValueError(
            f"{path} is not an .npz file, or a truncated one (an .npz file is a zip archive); "
            "write it again with `numpy.savez(path, x=x, y=y)`"
        )
    try:
        with zipfile.ZipFile(path) as listed:
            refuse_larger(sum(info.file_size for info in listed.infolist()), most_bytes(path), str(path))
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            _check_sizes(archive, [name for name in KEYS if name in names])
            arrays = {name: archive[name] for name in KEYS if name in names}
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} could not be read: {error}. It is damaged, or holds Python objects, which are never unpickled; "
            "write it again with numeric arrays (`numpy.savez(path, x=x, y=y)`)"
        ) from error
    for name in needed:
        if name not in arrays:
            raise ValueError(
                f"{path} has no array {name!r}, found {sorted(names)}; save it with "
                "`numpy.savez(path, x=x, y=y)`, optionally with x_valid, y_valid, x_test and y_test"
            )
    return arrays


def _check_sizes(archive: Any, names: list[str]) -> None:
    """Refuse an array whose shape is larger than its bytes: numpy takes the memory of the shape before it reads."""
    for name in names:
        info = archive.zip.getinfo(f"{name}.npy")
        with archive.zip.open(info) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read:
                raise ValueError(f"{name} is of a version of numpy's format that is not known")
            shape, _, dtype = read[version](file)
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"{name} promises shape {shape}, and the file holds {info.file_size} bytes of it")


def _given_part(path: Path, arrays: dict[str, npt.NDArray[Any]], part: str, classes: int) -> Arrays | None:
    x_name, y_name = f"x_{part}", f"y_{part}"
    if (x_name in arrays) != (y_name in arrays):
        given, missing = (x_name, y_name) if x_name in arrays else (y_name, x_name)
        raise ValueError(
            f"{path} has {given} but no {missing}; give both, or neither to have this part split off from x and y"
        )
    if x_name not in arrays:
        return None
    # A label missing from the training part cannot be learned: usually the two parts number their classes differently.
    return check_arrays(arrays[x_name], arrays[y_name], classes, f"{path} ({x_name}, {y_name})", least_classes=1)
