"""Load a user's own table (`.csv`, `.tsv`, also `.gz`, or `.parquet`): one example a row, its target in one column."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays, check_features
from dynamicgate.data.columns import encode_column, fit_column, is_text, missing_option, numbers, refuse_missing
from dynamicgate.data.schema import Schema
from dynamicgate.lab.datasets.class_encoding import encode_classes, refuse_measurements
from dynamicgate.lab.datasets.limits import most_bytes, refuse_gzip_bomb, refuse_larger
from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.splits import (
    PARTS,
    Splits,
    by_class_and_group,
    groups_of_parts,
    part_positions,
    read_groups,
)

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET)


@dataclass(frozen=True, eq=False)
class Table:
    """A table as numbers: features [n, f] (float32), class numbers or measurements [n], the positions of the rows of
    each part, the schema that makes the same of other tables, and the group of each row where a column says it."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    parts: dict[str, torch.Tensor]
    schema: Schema
    groups: tuple[str, ...] | None = None


def load_table(
    path: Path,
    seed: int,
    target: str,
    *,
    drop: Collection[str] = (),
    split_column: str | None = None,
    max_categories: int = 100,
    missing: str = "refuse",
    task: str | None = None,
    group: str | None = None,
) -> Splits:
    """Use every column except `target`, `split_column`, `group` and those in `drop` as features, encoded as in
    `read_table`.

    `split_column` names a column with the values train, valid and test. A part it does not contain is split off from
    the training rows: test is a fixed 20 %, validation 15 % of the rest by `seed`. Mean and standard deviation of each
    feature are those of the training rows, and so is what `missing` puts where a value is missing. task: None is
    classification, unless the target looks like a measurement; "regression" takes its numbers as they are.
    group: a column that says which batch, donor or laboratory a row is from. Parts that are drawn have rows of each.
    """
    table = read_table(
        path,
        target,
        seed=seed,
        drop=drop,
        split_column=split_column,
        max_categories=max_categories,
        missing=missing,
        task=task,
        group=group,
    )
    schema = table.schema
    if schema.task == "regression":
        rows = Arrays(check_features(table.x, str(path)), torch.from_numpy(table.y))
    else:
        rows = check_arrays(table.x, table.y, schema.outputs, str(path))
    train, valid, test = (rows.take(table.parts[part]) for part in PARTS)
    mean, std = mean_and_std(train.values)
    names = schema.classes if schema.task == "classification" else ()
    groups = None if table.groups is None else groups_of_parts(table.groups, table.parts)
    return Splits(str(schema.source), train, valid, test, schema.outputs, mean, std, names, schema, groups)


def read_table(
    path: Path,
    target: str,
    *,
    seed: int = 0,
    drop: Collection[str] = (),
    split_column: str | None = None,
    max_categories: int = 100,
    missing: str = "refuse",
    task: str | None = None,
    group: str | None = None,
) -> Table:
    """Read the columns in file order: numbers as they are, booleans as 0 and 1, text and categories one-hot.

    A one-hot feature is named "column=value"; its values are those that occur in the file, in sorted order. Constant
    columns are kept. Missing values are refused, or filled in as `data.columns.missing_option` says. Infinite ones,
    text with more than `max_categories` different values, dates and other kinds are refused, with the column's name.
    """
    fill, what = missing_option(missing), str(path)
    frame = read_frame(path)
    others = [str(name) for name in (split_column, group) if name is not None]
    named = [target, *([drop] if isinstance(drop, str) else drop), *others]
    refuse_unknown(frame, named, path)
    if task not in (None, "classification", "regression"):
        raise ValueError(f"task must be classification or regression, received {task!r}")
    regression = task == "regression"
    refuse_missing(
        frame[target],
        what,
        f"a row without a {'measurement' if regression else 'class'} cannot be used: remove it from the file",
    )
    y: npt.NDArray[Any]
    class_names: tuple[str, ...]
    if regression:
        y, class_names = read_measurements(frame[target], what), (target,)
    else:
        y, class_names = encode_classes(frame[target], f"{path}: column {target!r}")
        if task is None:
            refuse_measurements(frame[target], f"{path}: column {target!r}")
    strata = torch.zeros(len(y), dtype=torch.int64) if regression else torch.from_numpy(y)
    groups = None if group is None else read_groups(frame[str(group)], what)
    if groups is not None and split_column is None:
        strata = by_class_and_group(strata, groups)
    features = frame.drop(columns=named)
    if features.shape[1] == 0:
        raise ValueError(f"{path} has no columns left as features, found only {list(frame.columns)}")
    # Columns that cannot be read are reported before rows that cannot be split.
    fit_all = [fit_column(features[name], what, max_categories=max_categories, missing=fill) for name in features]
    parts = part_positions(strata, given_parts(frame, split_column, path), seed, what, class_names)
    if fill is not None:
        train = parts["train"].numpy()
        fit_all = [
            fit_column(features[name], what, max_categories=max_categories, missing=fill, train=train)
            for name in features
        ]
    x = np.concatenate([encode_column(features[c.name], c, what) for c in fit_all], axis=1)
    schema = Schema(
        "table",
        x.shape[1],
        len(class_names),
        "regression" if regression else "classification",
        columns=tuple(fit_all),
        classes=class_names,
        target=target,
        split_column=split_column,
        source=path.name[: -len(suffix_of(path))],
        rows=len(parts["train"]),
    )
    return Table(x, y, parts, schema, groups)


def read_measurements(column: Any, what: str) -> npt.NDArray[np.float32]:
    """A column of numbers without missing ones, of which at least two differ."""
    name = str(column.name)
    if is_text(column, what, "choose another target"):
        raise ValueError(
            f"{what}: column {name!r} holds text ({str(column.iloc[0])!r:.40}), and a regression needs numbers: "
            "correct these values, or train on its classes, without --task regression"
        )
    values = numbers(column, what, "remove these rows")
    if len(values) > 1 and values.min() == values.max():
        raise ValueError(f"{what}: column {name!r} is {values[0]:g} in all rows: there is nothing to predict")
    return values


def refuse_unknown(frame: Any, names: Sequence[str], path: Path) -> None:
    """Raise if the table lacks one of these columns."""
    for name in names:
        if name not in frame.columns:
            raise ValueError(f"{path} has no column {name!r}, found {list(frame.columns)}")


def read_frame(path: Path) -> Any:
    """The file as a pandas DataFrame with at least one row."""
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("tables need pandas, which is not installed: pip install 'dynamicgate[data]'") from error
    suffix = suffix_of(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}; give the path of a table ({', '.join(SUFFIXES)})")
    with path.open("rb") as file:  # opened here, so that a permission error is reported as such
        if not file.read(1):
            raise ValueError(f"{path} is empty")
    try:
        with warnings.catch_warnings():  # pandas only warns about rows longer than the header, and cuts them
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = _read_parquet(path, pd) if suffix in PARQUET else _read_text(path, SEPARATORS[suffix], pd)
    except ImportError as error:
        raise ImportError("parquet needs pyarrow, which is not installed: pip install 'dynamicgate[data]'") from error
    except (ValueError, OSError, EOFError, MemoryError, zlib.error, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} could not be read as {suffix} ({reason}); is it damaged, or does it have the wrong name?"
        ) from error
    frame.columns = frame.columns.map(str)
    if len(frame) == 0:
        raise ValueError(f"{path} is empty: it has the columns {list(frame.columns)} but no rows")
    return frame


def _read_text(path: Path, separator: str, pd: Any) -> Any:
    if path.suffix.lower() == ".gz":
        refuse_gzip_bomb(path)
    return pd.read_csv(path, sep=separator, index_col=False, low_memory=False)


def _read_parquet(path: Path, pd: Any) -> Any:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]

    with ParquetFile(path) as file:  # a constant column takes no room, whatever number of rows the file promises
        refuse_larger(8 * file.metadata.num_rows * file.metadata.num_columns, most_bytes(path), str(path))
    return pd.read_parquet(path)


def suffix_of(path: Path) -> str:
    """The one of `SUFFIXES` that the file name ends with."""
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path} is not a table that can be read: its name must end with {', '.join(SUFFIXES)}")


def given_parts(frame: Any, split_column: str | None, path: Path) -> npt.NDArray[Any] | None:
    """The part that each row belongs to, as text; None if no column says it."""
    if split_column is None:
        return None
    column = frame[split_column]
    parts = column.astype(str).to_numpy(str)
    found = sorted(set(parts.tolist()))
    if not set(found) <= set(PARTS) or "train" not in found:
        raise ValueError(
            f"{path}: the split column {str(column.name)!r} must contain train and may contain valid and test, "
            f"found {found[:10]}"
        )
    return parts
