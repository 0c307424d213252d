"""Single-cell counts made ready for a model, by scanpy's own functions, without looking at the test cells.

Normalising a cell to a fixed total and taking log1p use that cell alone. Choosing the highly variable genes, and
scaling them, use many cells: by default those are the training cells only.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.lab.datasets.splits import TEST_SEED, TEST_SHARE, VALID_SHARE, stratified_split

Fit: TypeAlias = Literal["train", "all"]
Hvg: TypeAlias = Literal["counts", "log"]

OMICS = "pip install 'dynamicgate[omics]'"

# Floor for the standard deviation of a log-normalised gene. A gene seen in a handful of training cells has 0.04: one
# molecule of it in a test cell of PBMC 3k would lie 77 standard deviations out; with this floor, 18.
LEAST_GENE_STD = 0.3

# seurat_v3 fits a curve of variance over mean: scikit-misc fails on 12 different means, and crashes the process on 2.
LEAST_MEANS = 20


def prepare_cells(
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
    """From an AnnData of raw counts to a new one of the same cells: normalised, log1p, the `genes` most variable genes.

    `genes=None` keeps every gene; those kept stay in their order. `hvg` is what the seurat_v3 method ranks genes on:
    "counts" as it is meant, "log" (log-normalised values) as DynamicGate's published code did. `fit` is on which cells
    genes are chosen, and scaled where `scale` is asked: the training cells, or all of them as in the published code,
    which lets test cells take part. X is float32: sparse, with the zeros of the counts, or dense where scaled.
    """
    sc, ad = import_scanpy()
    for name, value, known in (("hvg", hvg, ("counts", "log")), ("fit", fit, ("train", "all"))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    raw = _checked_counts(counts.X, what)
    # Under plain names: scanpy chooses genes by name, and symbols are often not unique.
    prepared = ad.AnnData(raw.copy())
    sc.pp.normalize_total(prepared, target_sum=target_sum)
    sc.pp.log1p(prepared)
    fitted = train_index.cpu().numpy() if fit == "train" else np.arange(raw.shape[0])
    kept = np.arange(raw.shape[1])
    if genes is not None:
        kept = _most_variable(sc, ad.AnnData((raw if hvg == "counts" else prepared.X)[fitted]), genes, what)
    x = prepared.X[:, kept]
    if scale:
        scaled = ad.AnnData(x[fitted].toarray())
        sc.pp.scale(scaled)
        x = ((x.toarray() - scaled.var["mean"].to_numpy()) / scaled.var["std"].to_numpy()).astype(np.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        return ad.AnnData(x, obs=counts.obs.copy(), var=counts.var.iloc[kept].copy())


def leiden_clusters(counts: Any, *, genes: int = 2000, rare: int = 30) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """A cluster for each cell and the clusters' names, found as in the published code; fewer than `rare` cells: "rare".

    Genes chosen on log data of all cells, 50 principal components (arpack), 15 neighbours, Leiden at resolution 0.6
    with seed 0. As labels they are circular and transductive: every cell, the test cells too, took part in making them,
    and they are a function of the very features that a model is then given. Use them to compare with the paper only.
    """
    sc, _ = import_scanpy()
    try:
        import igraph  # type: ignore[import-untyped, unused-ignore] # noqa: F401
        import leidenalg  # type: ignore[import-untyped, unused-ignore] # noqa: F401
    except ImportError as error:
        raise ImportError(f"Leiden clusters need igraph and leidenalg, which are not installed: {OMICS}") from error
    everything = torch.arange(counts.n_obs)
    cells = prepare_cells(counts, everything, genes=min(genes, counts.n_vars), hvg="log", fit="all")
    sc.pp.pca(cells, n_comps=50, svd_solver="arpack", random_state=0)
    sc.pp.neighbors(cells, n_neighbors=15, random_state=0)
    with warnings.catch_warnings():  # scanpy announces another default back end; the published one is wanted
        warnings.filterwarnings("ignore", message=".*default backend for leiden", category=FutureWarning)
        sc.tl.leiden(cells, resolution=0.6, random_state=0, flavor="leidenalg", key_added="cluster")
    clusters = cells.obs["cluster"].to_numpy().astype(np.int64)  # scanpy numbers them by size, as text
    sizes = np.bincount(clusters)
    large = np.flatnonzero(sizes >= rare)
    number = np.full(len(sizes), len(large))
    number[large] = np.arange(len(large))
    names = tuple(map(str, large)) + (("rare",) if len(large) < len(sizes) else ())
    return number[clusters], names


def split_cells(
    y: torch.Tensor,
    seed: int,
    *,
    test_share: float = TEST_SHARE,
    valid_share: float = VALID_SHARE,
    test_seed: int = TEST_SEED,
    what: str = "cells",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions of training, validation (`valid_share` of what is not test) and test cells, stratified by class."""
    try:
        rest, test = stratified_split(y, test_share, test_seed)
        train, valid = stratified_split(y[rest], valid_share, seed)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return rest[train], rest[valid], test


def import_scanpy() -> tuple[Any, Any]:
    """The modules scanpy and anndata, or an error that names the extra to install."""
    try:
        import anndata  # type: ignore[import-untyped, unused-ignore]
        import scanpy  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"single-cell data need scanpy and anndata, which are not installed: {OMICS}") from error
    return scanpy, anndata


def _checked_counts(matrix: Any, what: str) -> Any:
    from scipy import sparse  # type: ignore[import-untyped, unused-ignore]

    csr = sparse.csr_matrix(matrix, dtype=np.float32)
    wrong = csr.data[~((csr.data >= 0) & (csr.data == np.floor(csr.data)))]
    if len(wrong):
        raise ValueError(
            f"{what} must be raw counts (whole numbers, 0 or more), found {wrong[0]:g} among {len(wrong)} others; "
            "values that are normalised already are used as they are, without this preparation"
        )
    return csr


def _most_variable(sc: Any, cells: Any, genes: int, what: str) -> npt.NDArray[np.intp]:
    """Positions of the `genes` genes that scanpy finds most variable by seurat_v3, ascending."""
    if not 1 <= genes <= cells.n_vars:
        raise ValueError(f"{what}: genes must be 1 to {cells.n_vars}, or None to keep them all, got {genes}")
    try:
        import skmisc.loess  # type: ignore[import-untyped, import-not-found, unused-ignore] # noqa: F401
    except ImportError as error:
        raise ImportError(f"choosing genes by seurat_v3 needs scikit-misc, which is not installed: {OMICS}") from error
    refused = (
        f"{what}: scanpy cannot rank {cells.n_vars} genes on {cells.n_obs} cells by seurat_v3, for too few of them are "
        "expressed differently; give more cells, or keep all genes with genes=None"
    )
    if _different_means(cells.X) < LEAST_MEANS:
        raise ValueError(refused)
    with warnings.catch_warnings():  # on log data, which only hvg="log" asks for
        warnings.filterwarnings("ignore", message=".*expects raw count data", category=UserWarning)
        try:
            found = sc.pp.highly_variable_genes(cells, n_top_genes=genes, flavor="seurat_v3", inplace=False)
        except ValueError as error:
            raise ValueError(f"{refused} ({error})") from error
    return np.flatnonzero(found["highly_variable"].to_numpy())


def _different_means(matrix: Any) -> int:
    """How many different means the genes that vary at all have."""
    mean = np.asarray(matrix.mean(axis=0, dtype=np.float64)).ravel()
    of_squares = np.asarray(matrix.multiply(matrix).mean(axis=0, dtype=np.float64)).ravel()
    return len(np.unique(mean[of_squares - mean**2 > 1e-12 * of_squares]))
