"""Tables and cells in memory, as the model that reads them describes them: columns, genes and classes by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynamicgate.data.alignment import check_allowed, class_texts, encode_table, number_classes
from dynamicgate.data.arrays import Arrays
from dynamicgate.data.cells import adata_values, encode_cells, gene_names
from dynamicgate.data.columns import refuse_missing
from dynamicgate.data.contract import Inputs, inputs_of, is_table_pair, iterate
from dynamicgate.data.schema import Schema
from dynamicgate.data.tables import is_annotated, is_frame, take_column
from dynamicgate.data.targets import as_targets

WHAT = "data"  # in errors


class Batches(NamedTuple):
    """Batches as a model reads them, and what was done to them."""

    batches: Iterator[tuple[Inputs, Tensor | None]]
    notes: list[str]


def batches_by_name(
    data: Any, schema: Schema | None, size: int, *, allow: Collection[str] = (), targets: bool = True
) -> Batches:
    """`contract.iterate`, for a model with this schema. Columns of a DataFrame and genes of AnnData are found by name.

    So are classes, in a column that is named, a Series or an array of texts; a tensor and an array of numbers hold
    class numbers. What does not fit is refused, unless it is one of `data.alignment.ALLOWED` and `allow` names it.
    targets: False leaves them out, and needs none.
    """
    if size < 1:
        raise ValueError(f"a batch has 1 row or more, received {size}")
    allowed = check_allowed(allow)
    table, y = data if is_table_pair(data) else (data, None)
    if schema is None or not schema.columns or not (is_frame(table) or is_annotated(table)):
        if allowed:
            raise ValueError(
                f"allow={sorted(allowed)} is for tables and cells whose columns are found by name, with a model that "
                "carries a schema; leave it out"
            )
        return Batches(iterate(data, size), [])
    if isinstance(y, str):
        table, y = take_column(table, y, WHAT)
    kept, numbers, notes = _targets(y if targets else None, schema, len(table), is_annotated(table), allowed)
    if is_annotated(table):
        values = adata_values(table, None, WHAT)
        cells = encode_cells(values.X, gene_names(values, None, WHAT), schema, WHAT, allow=allowed)
        rows, notes = Arrays(cells.rows, kept, cells.prepare), [*notes, *cells.notes]
    else:
        encoded = encode_table(table, schema, WHAT, allow=allowed)
        rows, notes = Arrays(torch.from_numpy(encoded.x), kept), [*notes, *encoded.notes]
    return Batches(_batches(rows, kept, numbers, size), notes)


def inputs_by_name(data: Any, schema: Schema | None, *, rows: int) -> Tensor:
    """`contract.inputs_of`, for a model with this schema."""
    batches = batches_by_name(data, schema, rows, targets=False).batches
    return inputs_of((inputs for inputs, _ in batches), rows=rows)


def _batches(rows: Arrays, kept: Tensor, numbers: Tensor | None, size: int) -> Iterator[tuple[Inputs, Tensor | None]]:
    for index in kept.split(size):
        yield rows.rows(index), None if numbers is None else numbers[index]


def _targets(
    y: Any, schema: Schema, rows: int, cells: bool, allowed: frozenset[str]
) -> tuple[Tensor, Tensor | None, list[str]]:
    """The positions of rows that are used, the target of every row, and what was found."""
    if y is None:
        return torch.arange(rows), None, []
    if len(y) != rows:
        raise ValueError(f"{WHAT}: x has {rows} rows but y has {len(y)}; give exactly one for each row")
    by_name = y.dtype.kind in "OU" if isinstance(y, np.ndarray) else hasattr(y, "isna") and y.ndim == 1
    if schema.task != "classification" or not schema.classes or not by_name:
        return torch.arange(rows), torch.as_tensor(as_targets(y, WHAT)), []
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    column = pd.Series(y)
    absent, notes = column.isna().to_numpy(), []
    if cells and absent.any() and not absent.all():  # as in files of cells, where some often have no type
        notes.append(f"{absent.sum()} of {rows} cells have no {str(column.name)!r} and are left out")
    else:
        refuse_missing(column, WHAT, "a row without a class cannot be scored: remove it")
    named = "y" if column.name is None else f"column {str(column.name)!r}"
    found = number_classes(class_texts(column[~absent]), schema, f"{WHAT}: {named}", allow=allowed)
    numbers = np.full(rows, -1, dtype=np.int64)
    numbers[~absent] = found.y
    return torch.from_numpy(np.flatnonzero(numbers >= 0)), torch.from_numpy(numbers), [*notes, *found.notes]
