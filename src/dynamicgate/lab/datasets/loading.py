"""`load_dataset`: find the loader for a dataset name or a path, and convert its options from text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.digits import load_digits
from dynamicgate.lab.datasets.idx_folder import is_idx_folder, load_idx_folder
from dynamicgate.lab.datasets.images.cifar10 import load_cifar10
from dynamicgate.lab.datasets.images.image_folder import load_image_folder
from dynamicgate.lab.datasets.images.tiny_imagenet import load_tiny_imagenet
from dynamicgate.lab.datasets.mnist import load_mnist
from dynamicgate.lab.datasets.npz_file import load_npz
from dynamicgate.lab.datasets.single_cell.h5ad_file import load_h5ad
from dynamicgate.lab.datasets.single_cell.pbmc3k import load_pbmc3k
from dynamicgate.lab.datasets.speech.speech_commands import load_speech_commands
from dynamicgate.lab.datasets.speech.wav_folder import load_wav_folder
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.datasets.table_file import load_table

# Each loader takes the data folder, the seed of the validation split and, as keywords, its own options.
LOADERS: Mapping[str, Callable[..., Splits]] = MappingProxyType(
    {
        "digits": load_digits,
        "mnist": load_mnist,
        "cifar10": load_cifar10,
        "tiny-imagenet": load_tiny_imagenet,
        "speech-commands": load_speech_commands,
        "pbmc3k": load_pbmc3k,
    }
)
# Loaders of users' own files, by suffix; they take the path in place of the data folder.
FILE_LOADERS: Mapping[str, Callable[..., Splits]] = MappingProxyType(
    {
        ".npz": load_npz,
        ".csv": load_table,
        ".csv.gz": load_table,
        ".tsv": load_table,
        ".tsv.gz": load_table,
        ".parquet": load_table,
        ".pq": load_table,
        ".h5ad": load_h5ad,
    }
)


def load_dataset(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Splits:
    """A known dataset by name, or your own from a path; `seed` only chooses the validation rows.

    A path is a `.npz` file with x and y, a `.csv`, `.tsv`, `.parquet` or `.h5ad` file with the option `target`, a
    folder of idx files, or one that has a subfolder of images or wav files for each class. `data_dir` is the folder of
    downloaded files, `default_data_dir()` if None. `options` are keyword arguments of the loader; text is converted to
    their types.
    """
    if not isinstance(name_or_path, str | Path):
        raise TypeError(
            f"expected the name of a dataset or the path of a file, received {type(name_or_path).__name__}; data "
            "in memory is given to fit and measure as it is"
        )
    name = str(name_or_path)
    if name in LOADERS:
        loader, place = LOADERS[name], default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    else:
        place = Path(name).expanduser()
        loader = _loader_of_path(place, name)
    return loader(place, seed, **_typed_options(loader, options or {}, name))


def _loader_of_path(path: Path, name: str) -> Callable[..., Splits]:
    for suffix, loader in FILE_LOADERS.items():
        if name.lower().endswith(suffix):
            return loader
    if name and path.is_dir():
        if is_idx_folder(path):
            return load_idx_folder
        suffixes = {p.suffix.lower() for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")}
        return load_wav_folder if ".wav" in suffixes else load_image_folder
    raise ValueError(
        f"unknown dataset {name!r}: expected one of {', '.join(sorted(LOADERS))}, the path of a file ending in "
        f"{', '.join(FILE_LOADERS)}, a folder of idx files, or one with a subfolder of images or wav files for each "
        "class"
    )


def _typed_options(loader: Callable[..., Splits], options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Check the option names, and convert text from the command line to the types of the loader's defaults."""
    _place, _seed, *rest = inspect.signature(loader).parameters.values()
    known = {p.name: p for p in rest}
    found = {}
    for key, value in options.items():
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{name} has no option {key!r}; its options are: {listed}")
        found[key] = _converted(value, known[key].default, key) if isinstance(value, str) else value
    missing = [key for key, p in known.items() if p.default is p.empty and key not in found]
    if missing:
        raise ValueError(f"{name} needs the option {', '.join(missing)} (on the command line: --{missing[0]} NAME)")
    return found


def _converted(text: str, default: Any, key: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        if isinstance(default, bool):  # some of these options also take a word, which the loader checks
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
                text.lower(), text
            )
        if isinstance(default, int | float):
            return type(default)(text) if isinstance(default, float) or "." not in text else float(text)
        if isinstance(default, tuple):
            return tuple(part for part in text.split(",") if part)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"the option {key} takes {kind}, received {text!r}") from None
    if default is None:
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            return text
    return text
