"""`load_aligned`: the rows of a dataset as a trained model reads them, columns and classes by name.

Nothing is fitted on these data: encoding, genes, filled-in values and class numbers are those in the model's schema.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.alignment import class_texts, encode_table, number_classes
from dynamicgate.data.arrays import Arrays
from dynamicgate.data.cells import adata_values, encode_cells, gene_names
from dynamicgate.data.checks import check_arrays
from dynamicgate.data.columns import listed, refuse_missing
from dynamicgate.data.schema import Schema
from dynamicgate.lab.datasets.loading import LOADERS, load_dataset
from dynamicgate.lab.datasets.npz_file import read_npz
from dynamicgate.lab.datasets.single_cell.h5ad_file import read_h5ad, with_target
from dynamicgate.lab.datasets.single_cell.preprocessing import split_cells
from dynamicgate.lab.datasets.splits import PARTS, Splits, part_positions
from dynamicgate.lab.datasets.table_file import (
    SUFFIXES,
    given_parts,
    read_frame,
    read_measurements,
    refuse_unknown,
)

CELLS = ".h5ad"
OF_TABLES = ("target", "drop", "split_column")
OF_CELLS = ("target", "layer", "gene_column")


@dataclass(frozen=True, eq=False)
class Aligned:
    """Rows as the model reads them, with its class numbers (0 where they were not asked for), and what was done."""

    rows: Arrays
    notes: tuple[str, ...]
    row_names: tuple[str, ...] | None = None


def load_aligned(
    name_or_path: str | Path,
    schema: Schema | None,
    *,
    part: str = "test",
    labelled: bool = True,
    data_dir: str | Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> Aligned:
    """A part of a dataset, or "all" of it, for a model with this schema; see `data.alignment` for `allow`.

    `labelled=False` needs no column with classes, and keeps rows that have none. The target is by default the column
    that the model was trained on. A file without names is compared by count only, which is noted.
    """
    name, options = str(name_or_path), dict(options or {})
    if part not in (*PARTS, "all"):
        raise ValueError(f"part must be one of {', '.join(PARTS)} or all, received {part!r}")
    path = Path(name).expanduser()
    if schema is not None and schema.columns and name not in LOADERS:
        if name.lower().endswith(SUFFIXES):
            return _table(path, schema, _known(options, OF_TABLES, name), part, labelled, seed, allow)
        if name.lower().endswith(CELLS):
            return _cells(path, schema, _known(options, OF_CELLS, name), part, labelled, seed, allow)
    if not labelled:
        return _unlabelled(path, schema)
    splits = load_dataset(name, data_dir=data_dir, seed=seed, options=options).flat()
    return _splits(splits, schema, name, part, allow)


def _table(
    path: Path, schema: Schema, options: dict[str, Any], part: str, labelled: bool, seed: int, allow: Collection[str]
) -> Aligned:
    frame = read_frame(path)
    target = options.get("target") or schema.target
    split_column = options.get("split_column")
    if split_column is None and part != "all" and schema.split_column in frame.columns:
        split_column = schema.split_column
    refuse_unknown(frame, [] if split_column is None else [split_column], path)
    drop = options.get("drop", ())
    dropped = set(drop.split(",") if isinstance(drop, str) else drop)
    if read := [column.name for column in schema.columns if column.name in dropped]:
        raise ValueError(f"{path}: {listed(read)} cannot be dropped: the model reads it")
    given = given_parts(frame, split_column, path)
    notes: list[str] = []
    positions = torch.arange(len(frame))
    y: npt.NDArray[Any] = np.zeros(len(frame), dtype=np.int64)
    if labelled:
        holds = "measurements" if schema.task == "regression" else "classes"
        target = _target(target, frame.columns, path, holds)
        refuse_missing(frame[target], str(path), "a row without one cannot be scored: remove it from the file")
        strata = np.zeros(len(frame), dtype=np.int64)
        if schema.task == "regression":
            y = read_measurements(frame[target], str(path))
        else:
            y, notes = number_classes(class_texts(frame[target]), schema, f"{path}: column {target!r}", allow=allow)
            strata = y
        kept = np.flatnonzero(strata >= 0)
        positions = torch.from_numpy(kept)
        if part != "all":
            parts = None if given is None else given[kept]
            found = part_positions(torch.from_numpy(strata[kept]), parts, seed, _all(path), schema.classes)
            positions = positions[found[part]]
    aside = {name for name in (target, split_column, schema.split_column) if name is not None}
    encoded = encode_table(frame.drop(columns=[c for c in aside if c in frame]), schema, str(path), allow=allow)
    rows = Arrays(torch.from_numpy(encoded.x), torch.from_numpy(y)).take(positions)
    return Aligned(rows, (*notes, *encoded.notes))


def _cells(
    path: Path, schema: Schema, options: dict[str, Any], part: str, labelled: bool, seed: int, allow: Collection[str]
) -> Aligned:
    cells = read_h5ad(path)
    notes: list[str] = []
    y = np.zeros(cells.n_obs, dtype=np.int64)
    if labelled:
        target = _target(options.get("target") or schema.target, cells.obs.columns, path)
        cells = with_target(cells, target, path)
        y, notes = number_classes(class_texts(cells.obs[target]), schema, f"{path}: {target!r}", allow=allow)
    cells = adata_values(cells, options.get("layer"), str(path))
    genes = gene_names(cells, options.get("gene_column"), str(path))
    found = encode_cells(cells.X, genes, schema, str(path), allow=allow)
    positions = torch.from_numpy(np.flatnonzero(y >= 0))
    if part != "all" and labelled:
        train, valid, test = split_cells(torch.from_numpy(y)[positions], seed, what=_all(path))
        positions = positions[{"train": train, "valid": valid, "test": test}[part]]
    rows = Arrays(found.rows, torch.from_numpy(y), found.prepare).take(positions)
    names = tuple(str(name) for name in cells.obs_names[positions.numpy()])
    return Aligned(rows, (*notes, *found.notes), names)


def _unlabelled(path: Path, schema: Schema | None) -> Aligned:
    """The rows of an .npz file, whose labels are not needed."""
    x = read_npz(path, needed=("x",))["x"]
    rows = check_arrays(x, np.zeros(len(x), dtype=np.int64), what=str(path), least_classes=1).flat()
    if schema is not None and rows.features != schema.features:
        raise ValueError(f"{path} has {rows.features} features, and the model reads {schema.features}")
    return Aligned(rows, (f"{path} has no names of columns: compared by count only ({rows.features})",))


def _splits(splits: Splits, schema: Schema | None, name: str, part: str, allow: Collection[str]) -> Aligned:
    """Data that a loader made on its own: columns have to be the same, classes are numbered anew by name."""
    rows = getattr(splits, part) if part != "all" else _all_parts(splits)
    if schema is None:
        return Aligned(rows, ("the model file does not say what it was trained on: columns and classes are compared by "
                              "count only",))  # fmt: skip
    notes = []
    own = splits.described()
    if schema.columns and own.columns:
        if schema.feature_names != own.feature_names:
            known = set(schema.feature_names)
            apart = [column for column in own.feature_names if column not in known] or own.feature_names
            raise ValueError(
                f"{name} has other columns than the model reads, such as {listed(apart, 3)}; it chooses its columns "
                "itself, so give the data as a file, whose columns are found by name"
            )
    elif schema.features != own.features:
        raise ValueError(f"{name} has {own.features} features, and the model reads {schema.features}")
    elif name not in LOADERS:
        notes.append(f"{name} has no names of columns that the model knows: compared by count only ({own.features})")
    if schema.classes and splits.class_names:
        y, found = number_classes([splits.class_names[k] for k in rows.y.tolist()], schema, name, allow=allow)
        rows = replace(rows, y=torch.from_numpy(y))
        return Aligned(rows.take(rows.y >= 0), (*notes, *found))
    if int(rows.y.max()) >= schema.outputs:
        raise ValueError(
            f"{name} has class {int(rows.y.max())}, and the model answers {schema.outputs} classes, counting from 0"
        )
    if schema.classes or splits.class_names:
        notes.append("only one of model and data has names of classes: they are compared by number only")
    return Aligned(rows, tuple(notes))


def _all_parts(splits: Splits) -> Arrays:
    """All rows, part after part; stores that are not tensors become one."""
    parts = [getattr(splits, part) for part in PARTS]
    return Arrays(torch.cat([part.values for part in parts]), torch.cat([part.y for part in parts]))


def _known(options: dict[str, Any], known: tuple[str, ...], name: str) -> dict[str, Any]:
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(
            f"{name}: {unknown[0]} is a choice that the model was trained with, and cannot be made again; options that "
            f"can be given are {', '.join(known)}"
        )
    return options


def _target(target: str | None, columns: Any, path: Path, holds: str = "classes") -> str:
    if target is None:
        raise ValueError(f"{path}: give the column with the {holds} with --target, found {list(columns)}")
    if target not in columns:
        raise ValueError(
            f"{path} has no column {target!r} with the {holds}, found {list(columns)}; give it with --target, or use "
            "`dynamicgate predict`, which needs none"
        )
    return target


def _all(path: Path) -> str:
    return f"{path} (measure all of its rows with --part all)"
