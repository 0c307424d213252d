"""Load a user's own table (`.csv`, `.tsv`, also `.gz`, or `.parquet`): one example a row, the class in one column."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.column_encoding import encode_classes, encode_features, fill_missing, refuse_missing
from dynamicgate.lab.datasets.limits import most_bytes, refuse_gzip_bomb, refuse_larger
from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.splits import PARTS, TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET)


@dataclass(frozen=True, eq=False)
class Table:
    """A table as numbers: features [n, f] (float32) with their names, class numbers [n], and the part of each row."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    parts: npt.NDArray[Any] | None


def load_table(
    path: Path,
    seed: int,
    target: str,
    *,
    drop: Collection[str] = (),
    split_column: str | None = None,
    max_categories: int = 100,
    missing: str = "refuse",
) -> Splits:
    """Use every column except `target`, `split_column` and those in `drop` as features, encoded as in `read_table`.

    `split_column` names a column with the values train, valid and test. A part it does not contain is split off from
    the training rows: test is a fixed 20 %, validation 15 % of the rest by `seed`. Mean and standard deviation of each
    feature are those of the training rows. With `missing="fill"`, so are the means that stand where a number is
    missing; a feature of its own says where that is.
    """
    if missing not in ("refuse", "fill"):
        raise ValueError(f"missing must be refuse or fill, received {missing!r}")
    table = read_table(
        path, target, drop=drop, split_column=split_column, max_categories=max_categories, fill=missing == "fill"
    )
    rows = check_arrays(table.x, table.y, len(table.class_names), str(path))
    given = {"train": rows}
    if table.parts is not None:
        given = {part: rows.take(torch.from_numpy(table.parts == part)) for part in set(table.parts.tolist())}
        untrained = set(table.y.tolist()) - set(given["train"].y.tolist())
        if untrained:
            names = ", ".join(repr(table.class_names[number]) for number in sorted(untrained))
            raise ValueError(f"{path}: the training rows of column {split_column!r} lack the classes {names}")
    train = given["train"]
    if "test" not in given:
        train, given["test"] = split_arrays(train, TEST_FRACTION, TEST_SEED, f"{path} (test part)")
    if "valid" not in given:
        train, given["valid"] = split_arrays(train, VALID_FRACTION, seed, f"{path} (validation part)")
    if missing == "fill":
        fill_missing([train.values, given["valid"].values, given["test"].values], table.feature_names)
    mean, std = mean_and_std(train.values)
    name = path.name[: -len(suffix_of(path))]
    classes = len(table.class_names)
    return Splits(name, train, given["valid"], given["test"], classes, mean, std, table.class_names)


def read_table(
    path: Path,
    target: str,
    *,
    drop: Collection[str] = (),
    split_column: str | None = None,
    max_categories: int = 100,
    fill: bool = False,
) -> Table:
    """Read the columns in file order: numbers as they are, booleans as 0 and 1, text and categories one-hot.

    A one-hot feature is named "column=value"; its values are those that occur in the file, in sorted order. Constant
    columns are kept. Missing values (unless `fill` leaves them for later), infinite ones, text with more than
    `max_categories` different values, dates and other kinds are refused, with the name of the column.
    """
    frame = read_frame(path)
    named = [target, *([drop] if isinstance(drop, str) else drop)] + ([] if split_column is None else [split_column])
    for name in named:
        if name not in frame.columns:
            raise ValueError(f"{path} has no column {name!r}, found {list(frame.columns)}")
    refuse_missing(frame[target], str(path), "a row without a class cannot be used: remove it from the file")
    y, class_names = encode_classes(frame[target], f"{path}: column {target!r}")
    parts = None if split_column is None else _parts(frame[split_column], path)
    features = frame.drop(columns=named)
    if features.shape[1] == 0:
        raise ValueError(f"{path} has no columns left as features, found only {list(frame.columns)}")
    encoded = [encode_features(features[name], str(path), max_categories, fill) for name in features.columns]
    names = tuple(name for _, of_column in encoded for name in of_column)
    return Table(np.concatenate([values for values, _ in encoded], axis=1), y, names, class_names, parts)


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


def _parts(column: Any, path: Path) -> npt.NDArray[Any]:
    """The part each row belongs to, as text."""
    parts = column.astype(str).to_numpy(str)
    found = sorted(set(parts.tolist()))
    if not set(found) <= set(PARTS) or "train" not in found:
        raise ValueError(
            f"{path}: the split column {str(column.name)!r} must contain train and may contain valid and test, "
            f"found {found[:10]}"
        )
    return parts
