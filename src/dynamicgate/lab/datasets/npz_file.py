"""Anyone's own data: an `.npz` file with arrays `x` and `y`, and optionally its own validation and test parts."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.splits import TEST_SEED, TEST_SHARE, VALID_SHARE, Splits, split_arrays

KEYS = ("x", "y", "x_valid", "y_valid", "x_test", "y_test")

# Spread below this share of the mean is float32 rounding (resolution 1.2e-7), not information.
LEAST_RELATIVE_STD = 1e-6
LEAST_STD = 1e-30


def load_npz(path: Path, seed: int) -> Splits:
    """Parts as given in the file; an absent test part is a fixed 20 %, absent validation 15 % of the rest by `seed`."""
    arrays = read_npz(path)
    train = check_arrays(arrays["x"], arrays["y"], what=f"{path} (x, y)")
    classes = int(train.y.max()) + 1
    test = _given_part(path, arrays, "test", classes)
    valid = _given_part(path, arrays, "valid", classes)
    if test is None:
        train, test = split_arrays(train, TEST_SHARE, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_SHARE, seed, f"{path} (validation part)")
    mean, std = mean_and_std(train.values)
    return Splits(path.stem, train, valid, test, classes, mean, std)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays named in `KEYS` that the file holds, `x` and `y` among them; nothing is ever unpickled."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path.absolute()}; give the path of an .npz file with arrays x and y"
        )
    with path.open("rb") as file:  # opened here, so that a file one may not read says so itself
        is_zip = zipfile.is_zipfile(file)
    if not is_zip:
        raise ValueError(
            f"{path} is not an .npz file, or a truncated one (an .npz file is a zip archive); "
            "write it again with `numpy.savez(path, x=x, y=y)`"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            arrays = {name: archive[name] for name in KEYS if name in names}
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} could not be read: {error}. It is damaged, or holds Python objects, which are never unpickled; "
            "write it again with numeric arrays (`numpy.savez(path, x=x, y=y)`)"
        ) from error
    for needed in ("x", "y"):
        if needed not in arrays:
            raise ValueError(
                f"{path} has no array {needed!r}, found {sorted(names)}; save it with "
                "`numpy.savez(path, x=x, y=y)`, optionally with x_valid, y_valid, x_test and y_test"
            )
    return arrays


def mean_and_std(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each feature; 1 for a constant feature, where dividing would explode."""
    values = x.numpy()
    mean = values.mean(axis=0, dtype=np.float64)
    std = values.std(axis=0, dtype=np.float64)
    constant = std <= np.maximum(LEAST_RELATIVE_STD * np.abs(mean), LEAST_STD)
    std = np.where(constant, 1.0, std)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def _given_part(path: Path, arrays: dict[str, npt.NDArray[Any]], part: str, classes: int) -> Arrays | None:
    x_name, y_name = f"x_{part}", f"y_{part}"
    if (x_name in arrays) != (y_name in arrays):
        given, absent = (x_name, y_name) if x_name in arrays else (y_name, x_name)
        raise ValueError(
            f"{path} has {given} but no {absent}; give both, or neither to have the part split off x and y"
        )
    if x_name not in arrays:
        return None
    # A label that training never shows cannot be learned: most often the two parts number their labels differently.
    return check_arrays(arrays[x_name], arrays[y_name], classes, f"{path} ({x_name}, {y_name})", least_classes=1)
