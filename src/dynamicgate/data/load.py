"""From a name or a path to a dataset in three parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from dynamicgate.data.arrays import Splits
from dynamicgate.data.digits import load_digits
from dynamicgate.data.mnist import load_mnist
from dynamicgate.data.npz import load_npz

# Each loader takes the data folder and the seed of the validation part.
LOADERS: Mapping[str, Callable[[Path, int], Splits]] = MappingProxyType({"digits": load_digits, "mnist": load_mnist})


def load(name_or_path: str | Path, *, data_dir: str | Path | None = None, seed: int = 0) -> Splits:
    """A known dataset by name, or your own from the path of an `.npz` file; `seed` chooses the validation rows only.

    `data_dir` is where downloaded files lie; without it, `default_data_dir()`.
    """
    name = str(name_or_path)
    if name.lower().endswith(".npz"):
        return load_npz(Path(name).expanduser(), seed)
    if name not in LOADERS:
        raise ValueError(
            f"unknown data {name!r}: expected one of {', '.join(sorted(LOADERS))}, or the path of an .npz file "
            "with arrays x and y"
        )
    folder = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    return LOADERS[name](folder, seed)


def default_data_dir() -> Path:
    """The folder in DYNAMICGATE_DATA, else `dynamicgate` in this platform's folder for caches."""
    if chosen := os.environ.get("DYNAMICGATE_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "dynamicgate"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dynamicgate"
    return Path.home() / ".cache" / "dynamicgate"
