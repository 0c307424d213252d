"""Load a user's own single-cell data: an AnnData file (`.h5ad`) with the classes in a column of `obs`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.cells import adata_values
from dynamicgate.data.checks import check_arrays
from dynamicgate.data.schema import Column, Schema
from dynamicgate.data.sparse_rows import SparseRows, check_structure
from dynamicgate.lab.datasets.class_encoding import encode_classes
from dynamicgate.lab.datasets.limits import most_bytes
from dynamicgate.lab.datasets.normalisation import mean_and_std, sparse_mean_and_std
from dynamicgate.lab.datasets.single_cell.h5ad_probe import refuse_dangerous
from dynamicgate.lab.datasets.single_cell.preprocessing import (
    MIN_GENE_STD,
    Fit,
    Hvg,
    import_scanpy,
    preprocess_counts,
    split_cells,
)
from dynamicgate.lab.datasets.splits import PARTS, Splits, by_class_and_group, groups_of_parts, read_groups

SYMBOLS = ("symbol", "gene_symbols", "feature_name")
"""Columns of var that hold the symbols of genes which are named by their ids."""


def load_h5ad(
    path: Path,
    seed: int,
    target: str,
    *,
    layer: str | None = None,
    preprocess: Literal["none", "counts"] = "none",
    genes: int | None = None,
    hvg: Hvg = "counts",
    fit: Fit = "train",
    group: str | None = None,
) -> Splits:
    """Cells are rows, X (or `layer`, or raw) the features, the column `target` of obs the classes; a sparse X stays so.

    Test cells are a fixed 20 %, validation 15 % of the rest by `seed`. Cells without a class are left out, with a
    warning that counts them. preprocess="none" uses the values as they are; "counts" passes raw counts through
    `preprocess_counts`: normalise, log1p and, with `genes`, select that many highly variable genes (`hvg` and `fit` as
    there). Mean and standard deviation of each feature are those of the training cells; after "counts" the standard
    deviation is at least 0.3, so that a gene they hardly express is not blown up. group: a column of obs that says
    which batch, donor or laboratory a cell is from; then each part has cells of each.
    """
    if preprocess not in ("none", "counts"):
        raise ValueError(f"preprocess must be 'none' or 'counts', got {preprocess!r}")
    if preprocess == "none" and genes is not None:
        raise ValueError(f"genes={genes} selects genes from raw counts: use it with preprocess='counts'")
    cells = adata_values(with_target(read_h5ad(path), target, path), layer, str(path))
    numbers, names = encode_classes(cells.obs[target], f"{path}: obs column {target!r}")
    y = torch.from_numpy(numbers)
    groups = None if group is None else _groups(cells, str(group), path)
    parts = split_cells(y if groups is None else by_class_and_group(y, groups), seed, what=str(path))
    measured = cells.n_vars
    if preprocess == "counts":
        cells = preprocess_counts(cells, parts[0], genes=genes, hvg=hvg, fit=fit, what=str(path))
    rows, mean, std = _features(cells.X, y, parts[0], path, MIN_GENE_STD if preprocess == "counts" else 0.0)
    train, valid, test = (rows.take(index) for index in parts)
    schema = cell_schema(
        cells,
        mean,
        names,
        source=path.stem,
        rows=len(train),
        target=target,
        counts_of=measured * (preprocess != "none"),
        symbols=next((name for name in SYMBOLS if name in cells.var), None),
    )
    found = None if groups is None else groups_of_parts(groups, dict(zip(PARTS, parts, strict=True)))
    return Splits(path.stem, train, valid, test, len(names), mean, std, names, schema, found)


def _groups(cells: Any, group: str, path: Path) -> tuple[str, ...]:
    if group not in cells.obs.columns:
        raise ValueError(f"{path}: obs has no column {group!r} for the groups, found {list(cells.obs.columns)}")
    return read_groups(cells.obs[group], str(path))


def cell_schema(
    cells: Any,
    mean: torch.Tensor,
    classes: tuple[str, ...],
    *,
    source: str,
    rows: int,
    counts_of: int,
    target: str | None = None,
    symbols: str | None = None,
) -> Schema | None:
    """The schema of cells by genes: genes by name, and by their symbol where a column of var has it. A gene that other
    cells lack may be filled in with its mean. `counts_of` is how many genes counts were scaled over, 0 if they were
    not. None if two genes have one name."""
    genes = [str(name) for name in cells.var_names]
    if len(set(genes)) < len(genes):
        warnings.warn(
            f"{source}: two genes have the same name, so that the model will know its genes by position only; make the "
            "names unique first (`adata.var_names_make_unique()`)",
            stacklevel=3,
        )
        return None
    aliases: list[str | None] = [None] * len(genes)
    if symbols is not None:
        aliases = [text if isinstance(text, str) and text else None for text in cells.var[symbols]]
    fills = [float(value) for value in mean.flatten().tolist()]
    x = cells.X.data if hasattr(cells.X, "tocsr") else np.asarray(cells.X)
    return Schema(
        "cells",
        len(genes),
        len(classes),
        columns=tuple(
            Column(name, fill=fill, alias=alias) for name, fill, alias in zip(genes, fills, aliases, strict=True)
        ),
        classes=classes,
        target=target,
        preprocess="counts" if counts_of else "none",
        measured_genes=counts_of or None,
        least=None if counts_of else min(float(x.min(initial=0.0)), 0.0),
        source=source,
        rows=rows,
    )


def read_h5ad(path: Path) -> Any:
    """The AnnData in this file, or an error that says why it cannot be read."""
    _, ad = import_scanpy()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}; give the path of an .h5ad file")
    with path.open("rb"):  # so that a permission error is reported as such
        pass
    try:
        with warnings.catch_warnings():
            # Gene symbols are often not unique and are not used as names here; files of old versions are still valid.
            warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
            warnings.filterwarnings("ignore", message=".*written without encoding", category=PendingDeprecationWarning)
            refuse_dangerous(path, most_bytes(path))
            cells = ad.read_h5ad(path)
    except Exception as error:  # on damaged bytes the libraries raise almost anything
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} could not be read as an AnnData file ({reason}); write it again with `adata.write_h5ad(path)`"
        ) from error
    _check_indices(cells, path)
    return cells


def _check_indices(cells: Any, path: Path) -> None:
    """Check every sparse matrix in the file: taking cells from it takes rows of all of them."""
    parts = {"X": cells.X, "raw": None if cells.raw is None else cells.raw.X}
    for kind in ("layers", "obsm", "varm", "obsp", "varp"):
        parts |= {f"{kind}[{name!r}]": matrix for name, matrix in getattr(cells, kind).items()}
    for name, matrix in parts.items():
        if hasattr(matrix, "tocsr"):
            check_structure(matrix, f"{path}: {name}")


def with_target(cells: Any, target: str, path: Path) -> Any:
    """The cells that have a class; a warning counts the others."""
    if target not in cells.obs.columns:
        raise ValueError(f"{path}: obs has no column {target!r} for the classes, found {list(cells.obs.columns)}")
    if 0 in cells.shape:
        raise ValueError(f"{path} is empty: it has {cells.n_obs} cells and {cells.n_vars} genes")
    missing = cells.obs[target].isna().to_numpy()
    if missing.all():
        raise ValueError(f"{path}: obs column {target!r} is empty in all {len(missing)} cells")
    if missing.any():
        warnings.warn(
            f"{path}: {missing.sum()} of {len(missing)} cells have no {target!r} and are left out", stacklevel=3
        )
    return cells[~missing].copy() if missing.any() else cells


def _features(
    x: Any, y: torch.Tensor, train: torch.Tensor, path: Path, min_std: float
) -> tuple[Arrays, torch.Tensor, torch.Tensor]:
    """All cells as Arrays, with mean and standard deviation of the training cells."""
    if hasattr(x, "tocsr"):
        rows = SparseRows(x, f"{path}: X")
        mean, std = sparse_mean_and_std(rows, train, min_std)
        return Arrays(rows, y), mean, std
    arrays = check_arrays(x, y, what=str(path))
    return arrays, *mean_and_std(arrays.values[train])
