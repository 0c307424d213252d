"""The data of a job, and data that was prepared on another machine, for machines without the packages that read the
original files.

`python -m experiments.paper prepare pbmc3k --out FOLDER` writes one .npz for each seed of each table; put into a folder
`prepared` of the data folder, they are read instead of the originals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynamicgate.data import Arrays
from dynamicgate.files import write_atomically
from dynamicgate.lab.datasets import default_data_dir
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner.jobs import Change, Job, Table, fewer_rows

PARTS = ("train", "valid", "test")


def load_splits(job: Job, data_dir: Path | None) -> Splits:
    """The data of a job: prepared if there is such a file, else by its loader; flat, and with the table's changes. The
    last ones are kept, so that several runs of a seed read them once."""
    table = job.table
    options = json.dumps(dict(table.data_options))
    return _load(table.data, options, job.seed, table.changes, table.quick_rows if job.quick else None, data_dir)


@lru_cache(maxsize=4)
def _load(
    data: str, options: str, seed: int, changes: tuple[Change, ...], rows: int | None, data_dir: Path | None
) -> Splits:
    splits = load_original(data, json.loads(options), seed, data_dir)
    for change in changes:
        splits = change.apply(splits)
    return splits if rows is None else fewer_rows(splits, rows)


def load_original(data: str, options: Mapping[str, Any], seed: int, data_dir: Path | None) -> Splits:
    """A dataset as it is, flat: prepared if there is such a file, else by its loader."""
    path = (data_dir or default_data_dir()) / "prepared" / file_name(data, options, seed)
    if path.is_file():
        return read(path)
    return load_dataset(data, data_dir=data_dir, seed=seed, options=options).flat()


def prepare(tables: Iterable[Table], out: Path, data_dir: Path | None) -> list[Path]:
    """Write the data of all seeds of these tables, where they are not there yet."""
    written = []
    for table in tables:
        for seed in table.all_seeds():
            path = out / file_name(table.data, table.data_options, seed)
            if not path.exists():
                write(path, load_dataset(table.data, data_dir=data_dir, seed=seed, options=table.data_options).flat())
            written.append(path)
    return list(dict.fromkeys(written))


def file_name(data: str, options: Mapping[str, Any], seed: int) -> str:
    """Data with the same options and seed are the same data."""
    digest = hashlib.blake2b(json.dumps([data, dict(options)], sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{Path(data).stem}-{digest}-s{seed}.npz"


def write(path: Path, splits: Splits) -> None:
    """Splits whose rows are plain tensors, compressed."""
    arrays: dict[str, Any] = {"name": splits.name, "classes": splits.classes, "class_names": splits.class_names}
    arrays |= {"mean": splits.mean, "std": splits.std}
    for part in PARTS:
        rows: Arrays = getattr(splits, part)
        if rows.augment is not None:
            raise ValueError(
                f"{splits.name} augments its rows in training, which a file of rows cannot store: expected plain rows, "
                "copy the original files instead"
            )
        arrays |= {f"x_{part}": rows.values.numpy(), f"y_{part}": rows.y.numpy()}
    write_atomically(path, lambda temporary: _save(temporary, arrays))


def read(path: Path) -> Splits:
    """What `write` wrote."""
    with np.load(path, allow_pickle=False) as found:
        train, valid, test = (
            Arrays(torch.from_numpy(found[f"x_{part}"]), torch.from_numpy(found[f"y_{part}"])) for part in PARTS
        )
        mean, std = (torch.from_numpy(found[name]) for name in ("mean", "std"))
        names = tuple(map(str, found["class_names"]))
        return Splits(str(found["name"]), train, valid, test, int(found["classes"]), mean, std, names)


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
