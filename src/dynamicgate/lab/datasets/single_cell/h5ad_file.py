"""Your own single-cell data: an AnnData file (`.h5ad`) with the classes in a column of `obs`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.column_encoding import class_numbers
from dynamicgate.lab.datasets.npz_file import mean_and_std
from dynamicgate.lab.datasets.single_cell.preprocessing import (
    LEAST_GENE_STD,
    Fit,
    Hvg,
    import_scanpy,
    prepare_cells,
    split_cells,
)
from dynamicgate.lab.datasets.single_cell.sparse_rows import SparseRows, sparse_mean_and_std
from dynamicgate.lab.datasets.splits import Splits


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
) -> Splits:
    """Cells as rows, X (or `layer`) as features, the column `target` of obs as classes; a sparse X stays sparse.

    Test cells are a fixed 20 %, validation 15 % of the rest by `seed`. Cells without a class are left out, with a
    warning that counts them. preprocess="none" uses the values as they are; "counts" takes raw counts through
    `prepare_cells`: normalise, log1p, and with `genes` choose that many of the most variable (`hvg`, `fit` as there).
    Mean and standard deviation of each feature are those of the training cells; after "counts" the latter is at least
    0.3, so that a gene they hardly express is not magnified.
    """
    if preprocess not in ("none", "counts"):
        raise ValueError(f"preprocess must be 'none' or 'counts', got {preprocess!r}")
    if preprocess == "none" and genes is not None:
        raise ValueError(f"genes={genes} chooses genes from raw counts: ask for preprocess='counts' with it")
    cells = _labelled(read_h5ad(path), target, path)
    _use_layer(cells, layer, path)
    numbers, names = class_numbers(cells.obs[target], f"{path}: obs column {target!r}")
    y = torch.from_numpy(numbers)
    parts = split_cells(y, seed, what=str(path))
    if preprocess == "counts":
        cells = prepare_cells(cells, parts[0], genes=genes, hvg=hvg, fit=fit, what=str(path))
    everything, mean, std = _features(cells.X, y, parts[0], path, LEAST_GENE_STD if preprocess == "counts" else 0.0)
    train, valid, test = (everything.take(index) for index in parts)
    return Splits(path.stem, train, valid, test, len(names), mean, std, names)


def read_h5ad(path: Path) -> Any:
    """The AnnData in this file, or a sentence saying why it cannot be read."""
    _, ad = import_scanpy()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}; give the path of an .h5ad file")
    with path.open("rb"):  # a file one may not read says so itself
        pass
    try:
        with warnings.catch_warnings():
            # Gene symbols often are not unique, and are not used as names here; files of old versions are still right.
            warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
            warnings.filterwarnings("ignore", message=".*written without encoding", category=PendingDeprecationWarning)
            return ad.read_h5ad(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path} could not be read as an AnnData file ({error}); write it again with `adata.write_h5ad(path)`"
        ) from error


def _labelled(cells: Any, target: str, path: Path) -> Any:
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


def _use_layer(cells: Any, layer: str | None, path: Path) -> None:
    if layer is not None:
        if layer not in cells.layers:
            raise ValueError(f"{path} has no layer {layer!r}, found {list(cells.layers)}; layer=None uses X")
        cells.X = cells.layers[layer]
    elif cells.X is None:
        raise ValueError(f"{path} has no X; name one of its layers with layer=, found {list(cells.layers)}")


def _features(
    x: Any, y: torch.Tensor, train: torch.Tensor, path: Path, least_std: float
) -> tuple[Arrays, torch.Tensor, torch.Tensor]:
    """All cells as Arrays, and the constants of the training cells."""
    if hasattr(x, "tocsr"):
        rows = SparseRows(x, f"{path}: X")
        mean, std = sparse_mean_and_std(rows, train, least_std)
        return Arrays(rows, y), mean, std
    arrays = check_arrays(x, y, what=str(path))
    return arrays, *mean_and_std(arrays.values[train])
