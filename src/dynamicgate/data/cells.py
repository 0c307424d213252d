"""Cells by genes as a model's `Schema` describes them: genes by name, on the scale that the model was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dynamicgate.data.alignment import check_allowed, refuse_absent
from dynamicgate.data.columns import listed
from dynamicgate.data.schema import Schema
from dynamicgate.data.sparse_rows import SparseRows

TARGET_SUM = 1e4
"""Counts that each cell is scaled to."""
ROUNDING = 1.01
"""How far above it a cell may lie whose values were stored with few digits."""


@dataclass(frozen=True, eq=False)
class PlaceGenes:
    """Puts the genes that were found where the model expects them, and the model's own values where there are none."""

    fill: torch.Tensor
    places: torch.Tensor

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """[n, genes found] to [n, genes of the model]."""
        found = self.fill.to(batch).expand(len(batch), -1).clone()
        found[:, self.places.to(batch.device)] = batch
        return found


@dataclass(frozen=True, eq=False)
class EncodedCells:
    """Cells as the model reads them: stored rows, and what makes a batch of them complete."""

    rows: SparseRows
    prepare: PlaceGenes
    coverage: float
    """The fraction of the model's genes that the data has."""
    notes: list[str]


def encode_cells(
    matrix: Any, genes: Sequence[str], schema: Schema, what: str = "the cells", *, allow: Collection[str] = ()
) -> EncodedCells:
    """The genes of a matrix of cells by genes that the model reads, in its order. `genes` names the columns, by the
    names or the aliases (ids or symbols) of the model's genes, whichever fit more of them.

    A model of counts takes counts, which are scaled and logarithmed as in its training, or what is so already.
    """
    from scipy import sparse  # type: ignore[import-untyped, unused-ignore]

    allowed = check_allowed(allow)
    if not schema.columns or any(column.categories is not None for column in schema.columns):
        raise ValueError("the model was not trained on named genes: it cannot tell which of these it reads")
    notes: list[str] = []
    found = match_genes(genes, schema, what)
    absent = [column for k, column in enumerate(schema.columns) if k not in found]
    refuse_absent(absent, schema, what, allowed, "gene", notes)
    if others := len(genes) - len(found):
        read = set(found.values())
        rest = [name for k, name in enumerate(genes) if k not in read]
        notes.append(f"not read by the model: {others} of {len(genes)} genes, such as {listed(rest, 3)}")
    csr = SparseRows(sparse.csr_matrix(matrix), what).matrix
    if schema.preprocess == "counts":
        csr = _logarithms(csr, schema, what, allowed, notes)
    elif schema.least is not None and csr.nnz:
        _refuse_other_range(float(min(csr.data.min(), 0.0)), schema.least, what, allowed, notes)
    places = sorted(found)
    fill = torch.tensor([float(column.fill or 0.0) for column in schema.columns])
    rows = SparseRows(csr[:, [found[k] for k in places]], what)
    return EncodedCells(rows, PlaceGenes(fill, torch.tensor(places)), len(found) / len(schema.columns), notes)


def adata_values(adata: Any, layer: str | None, what: str = "adata") -> Any:
    """AnnData whose X are the values to read: `adata` itself, one of its layers, or what it keeps as raw."""
    if layer is None:
        if adata.X is None:
            raise ValueError(f"{what} has no X; choose one of its layers with layer=, found {list(adata.layers)}")
        return adata
    if layer in adata.layers:
        values = adata.copy()
        values.X = adata.layers[layer]
        return values
    if layer == "raw" and adata.raw is not None:
        return adata.raw.to_adata()
    also = " and raw" if adata.raw is not None else ""
    raise ValueError(f"{what} has no layer {layer!r}, found {list(adata.layers)}{also}; without this option X is used")


def gene_names(cells: Any, column: str | None, what: str = "adata") -> list[str]:
    """The names of the genes of AnnData: those of var, or of one of its columns."""
    if column is None:
        return [str(name) for name in cells.var_names]
    if column not in cells.var.columns:
        raise ValueError(f"{what}: var has no column {column!r} with names of genes, found {list(cells.var.columns)}")
    return [str(name) for name in cells.var[column]]


def match_genes(genes: Sequence[str], schema: Schema, what: str) -> dict[int, int]:
    """For each gene of the model that the data has, by its position in the model, the position in `genes`."""
    best: dict[int, int] = {}
    by_name = [column.name for column in schema.columns]
    by_alias = [column.alias for column in schema.columns]
    for wanted in (by_name, by_alias):
        counts = Counter(wanted)
        known = {name: k for k, name in enumerate(wanted) if name is not None and counts[name] == 1}
        matched: dict[int, int] = {}
        for position, gene in enumerate(genes):
            k = known.get(str(gene))
            if k is None:
                continue
            if k in matched:
                raise ValueError(
                    f"{what} has two genes named {str(gene)!r}, and the model reads one; make the names unique"
                )
            matched[k] = position
        if len(matched) > len(best):
            best = matched
    return best


def _logarithms(csr: Any, schema: Schema, what: str, allowed: frozenset[str], notes: list[str]) -> Any:
    """log1p of counts per 10,000, from counts, or from values that are so already."""
    if (csr.data < 0).any():
        raise ValueError(
            f"{what} holds negative values, so that it was scaled; the model reads counts, or log1p of counts per "
            "10,000: give these, which are often kept in a layer or in raw"
        )
    if (csr.data == np.floor(csr.data)).all():
        if schema.measured_genes and csr.shape[1] < 0.9 * schema.measured_genes:
            notes.append(
                f"counts are scaled to 10,000 over the {csr.shape[1]:,} genes that are here; in training over "
                f"{schema.measured_genes:,}, so that values are too large where much is missing"
            )
        totals = np.asarray(csr.sum(axis=1, dtype=np.float64)).ravel()
        scaled = csr.copy()
        scaled.data = np.log1p(
            scaled.data * np.repeat(TARGET_SUM / np.maximum(totals, 1.0), np.diff(csr.indptr))
        ).astype(np.float32)
        return scaled
    linear = csr.copy()
    with np.errstate(over="ignore"):
        linear.data = np.expm1(csr.data.astype(np.float64))
    most = float(np.asarray(linear.sum(axis=1)).max())
    if most > ROUNDING * TARGET_SUM:
        said = f"the values of a cell stand for {most:,.0f} counts, and the model reads log1p of counts per 10,000"
        if "other-range" not in allowed:
            raise ValueError(
                f"{what}: {said}; give counts, or normalise with `scanpy.pp.normalize_total(target_sum=1e4)` and "
                "`log1p`, or use the values as they are with --allow other-range (allow=)"
            )
        notes.append(f"{said}: used as they are")
    else:
        notes.append("values are taken as log1p of counts per 10,000")
    return csr


def _refuse_other_range(least: float, trained: float, what: str, allowed: frozenset[str], notes: list[str]) -> None:
    """Scaled values have negative ones, counts and their logarithms have none."""
    if (least < 0) == (trained < 0):
        return
    said = f"the smallest value is {least:g}, in the model's training rows it was {trained:g}"
    if "other-range" not in allowed:
        raise ValueError(
            f"{what}: {said}, so that one of them was scaled and the other not; give values on the scale of the "
            "training rows, or use them as they are with --allow other-range (allow=)"
        )
    notes.append(f"{said}: used as they are")
