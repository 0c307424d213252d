"""Preprocess single-cell counts with scanpy, and split the cells, without looking at the test cells.

Normalising a cell to a fixed total and taking log1p use that cell alone. Selecting highly variable genes and scaling
them use many cells: by default the training cells only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.sparse_rows import check_structure
from dynamicgate.lab.datasets.splits import TEST_FRACTION, TEST_SEED, VALID_FRACTION, stratified_split

Fit: TypeAlias = Literal["train", "all"]
Hvg: TypeAlias = Literal["counts", "log"]

INSTALL = "pip install 'dynamicgate[omics]'"

# Floor for the standard deviation of a log-normalised gene. A gene found in a handful of training cells has 0.04: one
# molecule of it in a test cell of PBMC 3k would be 77 standard deviations out; with this floor, 18.
MIN_GENE_STD = 0.3

# seurat_v3 fits a curve of variance over mean: scikit-misc fails on 12 different means, and crashes the process on 2.
MIN_DISTINCT_MEANS = 20


@contextmanager
def threads_kept() -> Iterator[None]:
    """Leave torch with as many threads as it had. The first parallel function of Numba, which scanpy calls, gives all
    cores to OpenMP, and to torch with it: workers with one thread each would then wait for each other all the time."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@threads_kept()
def preprocess_counts(
    counts: Any,
    train_index: torch.Tensor,
    *,
    genes: int | None = 2000,
    hvg: Hvg = "counts",
    fit: Fit = "train",
    target_sum: float = 1e4,
    scale: bool = False,
    what: str = "counts",
) -> Any:
    """A new AnnData of the same cells: counts normalised, log1p, reduced to the `genes` most variable genes.

    `genes=None` keeps every gene; those kept stay in their order. `hvg` is what the seurat_v3 method ranks genes on:
    "counts" as intended, or "log" (log-normalised values) as in DynamicGate's published code. `fit` says on which cells
    genes are selected, and scaled if `scale` is set: the training cells, or all cells as in the published code, which
    leaks test cells. X is float32: sparse with the zeros of the counts, or dense if scaled.
    """
    sc, ad = import_scanpy()
    for name, value, known in (("hvg", hvg, ("counts", "log")), ("fit", fit, ("train", "all"))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    raw = _checked_counts(counts.X, what)
    # With default names: scanpy selects genes by name, and symbols are often not unique.
    normalised = ad.AnnData(raw.copy())
    sc.pp.normalize_total(normalised, target_sum=target_sum)
    sc.pp.log1p(normalised)
    fitted = train_index.cpu().numpy() if fit == "train" else np.arange(raw.shape[0])
    kept = np.arange(raw.shape[1])
    if genes is not None:
        kept = _most_variable(sc, ad.AnnData((raw if hvg == "counts" else normalised.X)[fitted]), genes, what)
    x = normalised.X[:, kept]
    if scale:
        scaled = ad.AnnData(x[fitted].toarray())
        sc.pp.scale(scaled)
        x = ((x.toarray() - scaled.var["mean"].to_numpy()) / scaled.var["std"].to_numpy()).astype(np.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        return ad.AnnData(x, obs=counts.obs.copy(), var=counts.var.iloc[kept].copy())


@threads_kept()
def leiden_clusters(
    counts: Any, *, genes: int = 2000, min_size: int = 30
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """The cluster of each cell and the cluster names, as in the published code; smaller than `min_size` is "rare".

    Genes are selected on log data of all cells, then 50 principal components (arpack), 15 neighbours, Leiden at
    resolution 0.6 with seed 0. As labels they are circular and transductive: every cell, test cells included, took part
    in making them, and they are a function of the very features that a model is then given. Use them only to compare
    with the paper.
    """
    sc, _ = import_scanpy()
    try:
        import igraph  # type: ignore[import-untyped, unused-ignore] # noqa: F401
        import leidenalg  # type: ignore[import-untyped, unused-ignore] # noqa: F401
    except ImportError as error:
        raise ImportError(f"Leiden clusters need igraph and leidenalg, which are not installed: {INSTALL}") from error
    all_cells = torch.arange(counts.n_obs)
    cells = preprocess_counts(counts, all_cells, genes=min(genes, counts.n_vars), hvg="log", fit="all")
    sc.pp.pca(cells, n_comps=50, svd_solver="arpack", random_state=0)
    sc.pp.neighbors(cells, n_neighbors=15, random_state=0)
    with warnings.catch_warnings():  # scanpy announces another default backend; we want the published one
        warnings.filterwarnings("ignore", message=".*default backend for leiden", category=FutureWarning)
        sc.tl.leiden(cells, resolution=0.6, random_state=0, flavor="leidenalg", key_added="cluster")
    clusters = cells.obs["cluster"].to_numpy().astype(np.int64)  # scanpy numbers them by size, as text
    sizes = np.bincount(clusters)
    large = np.flatnonzero(sizes >= min_size)
    number = np.full(len(sizes), len(large))
    number[large] = np.arange(len(large))
    names = tuple(map(str, large)) + (("rare",) if len(large) < len(sizes) else ())
    return number[clusters], names


def split_cells(
    y: torch.Tensor,
    seed: int,
    *,
    test_fraction: float = TEST_FRACTION,
    valid_fraction: float = VALID_FRACTION,
    test_seed: int = TEST_SEED,
    what: str = "cells",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices of training, validation (`valid_fraction` of what is not test) and test cells, stratified by class."""
    try:
        rest, test = stratified_split(y, test_fraction, test_seed)
        train, valid = stratified_split(y[rest], valid_fraction, seed)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return rest[train], rest[valid], test


def import_scanpy() -> tuple[Any, Any]:
    """The modules scanpy and anndata, or an error that names the extra to install."""
    try:
        import anndata  # type: ignore[import-untyped, unused-ignore]
        import scanpy  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"single-cell data need scanpy and anndata, which are not installed: {INSTALL}") from error
    return scanpy, anndata


def _checked_counts(matrix: Any, what: str) -> Any:
    from scipy import sparse  # type: ignore[import-untyped, unused-ignore]

    if sparse.issparse(matrix):
        check_structure(matrix, what)
    csr = sparse.csr_matrix(matrix, dtype=np.float32)
    wrong = csr.data[~((csr.data >= 0) & (csr.data == np.floor(csr.data)))]
    if len(wrong):
        raise ValueError(
            f"{what} must be raw counts (whole numbers, 0 or more), found {len(wrong)} other values, the first "
            f"{wrong[0]:g}; values that are already normalised need no preprocessing (an .h5ad file: preprocess='none')"
        )
    return csr


def _most_variable(sc: Any, cells: Any, genes: int, what: str) -> npt.NDArray[np.intp]:
    """Indices of the `genes` most variable genes by scanpy's seurat_v3, ascending."""
    if not 1 <= genes <= cells.n_vars:
        raise ValueError(f"{what}: genes must be 1 to {cells.n_vars}, or None to keep them all, got {genes}")
    try:
        import skmisc.loess  # type: ignore[import-untyped, import-not-found, unused-ignore] # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"selecting genes by seurat_v3 needs scikit-misc, which is not installed: {INSTALL}"
        ) from error
    refused = (
        f"{what}: scanpy cannot rank {cells.n_vars} genes on {cells.n_obs} cells by seurat_v3: too few genes differ in "
        "mean expression; give more cells, or keep all genes with genes=None"
    )
    if _distinct_means(cells.X) < MIN_DISTINCT_MEANS:
        raise ValueError(refused)
    with warnings.catch_warnings():  # on log data, which only hvg="log" asks for
        warnings.filterwarnings("ignore", message=".*expects raw count data", category=UserWarning)
        try:
            found = sc.pp.highly_variable_genes(cells, n_top_genes=genes, flavor="seurat_v3", inplace=False)
        except ValueError as error:
            raise ValueError(f"{refused} ({error})") from error
    return np.flatnonzero(found["highly_variable"].to_numpy())


def _distinct_means(matrix: Any) -> int:
    """How many distinct means there are among the genes that vary at all."""
    mean = np.asarray(matrix.mean(axis=0, dtype=np.float64)).ravel()
    mean_square = np.asarray(matrix.multiply(matrix).mean(axis=0, dtype=np.float64)).ravel()
    return len(np.unique(mean[mean_square - mean**2 > 1e-12 * mean_square]))
