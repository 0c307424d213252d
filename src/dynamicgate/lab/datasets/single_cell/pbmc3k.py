"""PBMC 3k: gene counts of 2,700 blood cells (10x Genomics), with cell types from two published analyses.

Files: the 10x matrix (`pbmc3k_filtered_gene_bc_matrices.tar.gz`, its unpacked folder, or an `.h5ad` of the counts) and
`pbmc3k_labels.tsv`: columns barcode, louvain (scanpy's tutorial, 8 types) and seurat_annotations (Seurat's, 9 types).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from dynamicgate.data.checks import check_arrays
from dynamicgate.data.sparse_rows import SparseRows
from dynamicgate.lab.datasets.archive import is_archive, read_members
from dynamicgate.lab.datasets.limits import gunzip
from dynamicgate.lab.datasets.normalisation import sparse_mean_and_std
from dynamicgate.lab.datasets.single_cell.h5ad_file import cell_schema, read_h5ad
from dynamicgate.lab.datasets.single_cell.preprocessing import (
    MIN_GENE_STD,
    Fit,
    Hvg,
    import_scanpy,
    leiden_clusters,
    preprocess_counts,
    split_cells,
)
from dynamicgate.lab.datasets.splits import TEST_SEED, Splits

Labels: TypeAlias = Literal["louvain", "seurat_annotations", "leiden"]

FOLDERS = (".", "pbmc3k")
COUNTS = (
    "pbmc3k_filtered_gene_bc_matrices.tar.gz",
    "filtered_gene_bc_matrices/hg19",
    "pbmc3k_raw.h5ad",
    "pbmc3k.h5ad",
)
LABELS = "pbmc3k_labels.tsv"
TEST_FRACTION, VALID_FRACTION = 0.20, 0.10 / 0.80  # validation as a fraction of what is not test
HOW_TO_FIX = (
    "Put it there, or give the folder with --data-dir (data_dir=) or the environment variable DYNAMICGATE_DATA."
)


def load_pbmc3k(
    data_dir: Path,
    seed: int,
    *,
    labels: Labels = "louvain",
    fit: Fit = "train",
    hvg: Hvg = "counts",
    genes: int | None = 2000,
    min_cluster_size: int = 30,
    split: Literal["fixed", "paper"] = "fixed",
) -> Splits:
    """Log-normalised values of highly variable genes; x is [n, genes], zero where the count is zero; parts 70/10/20.

    `labels` are cell types from the label file (2,638 cells; those without a label are left out), or "leiden" as in the
    paper: clusters of the same features, made on all 2,700 cells including the test cells; clusters smaller than
    `min_cluster_size` are merged. Leiden labels are circular and transductive (see `leiden_clusters`) and only serve to
    compare with the paper.

    By default genes are selected from the counts of training cells; `fit="all", hvg="log"` is what the published code
    does. With split="fixed" the test cells never change and `seed` draws the validation cells; split="paper" draws all
    three parts by `seed`. Mean and standard deviation are per gene, over the training cells; the standard deviation is
    at least 0.3, so that a gene they hardly express is not blown up.
    """
    if split not in ("fixed", "paper"):
        raise ValueError(f"split must be 'fixed' or 'paper', got {split!r}")
    if labels not in ("louvain", "seurat_annotations", "leiden"):
        raise ValueError(f"labels must be 'louvain', 'seurat_annotations' or 'leiden', got {labels!r}")
    source = find_counts(data_dir)
    counts = read_counts(source)
    if labels == "leiden":
        numbers, names = leiden_clusters(counts, min_size=min_cluster_size)
    else:
        labelled = read_labels(_find(data_dir, (LABELS,), "the cell types of PBMC 3k"), labels)
        counts, label_of_cell = _with_labels(counts, labelled, f"{LABELS} with {source}")
        unique, numbers = np.unique(label_of_cell, return_inverse=True)
        names = tuple(map(str, unique))
    y = torch.from_numpy(numbers)
    test_seed = TEST_SEED if split == "fixed" else seed
    parts = split_cells(
        y,
        seed,
        test_fraction=TEST_FRACTION,
        valid_fraction=VALID_FRACTION,
        test_seed=test_seed,
        what=f"pbmc3k ({labels})",
    )
    cells = preprocess_counts(counts, parts[0], genes=genes, hvg=hvg, fit=fit, what=str(source))
    mean, std = sparse_mean_and_std(SparseRows(cells.X), parts[0], MIN_GENE_STD)
    rows = check_arrays(cells.X.toarray(), y, len(names), f"pbmc3k ({labels})")
    train, valid, test = (rows.take(index) for index in parts)
    symbols = "symbol" if "symbol" in cells.var else None
    schema = cell_schema(cells, mean, names, source="pbmc3k", rows=len(train), counts_of=counts.n_vars, symbols=symbols)
    return Splits("pbmc3k", train, valid, test, len(names), mean, std, names, schema)


def find_counts(data_dir: Path) -> Path:
    """The first archive, folder or file found with the counts."""
    return _find(data_dir, COUNTS, "PBMC 3k")


def read_counts(source: Path) -> Any:
    """AnnData of the raw counts, cells x genes, named by barcode and gene id."""
    _, ad = import_scanpy()
    if source.suffix == ".h5ad":
        return read_h5ad(source)
    files = _read_10x(source)
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    from scipy.io import mmread  # type: ignore[import-untyped, unused-ignore]

    try:
        matrix = mmread(io.BytesIO(files["matrix.mtx"])).T.tocsr().astype(np.float32)
    except (ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{source}: matrix.mtx could not be read ({error}); download it again") from error
    barcodes = [line.split("\t")[0] for line in files["barcodes.tsv"].decode().splitlines()]
    features = [line.split("\t") for line in files["genes.tsv"].decode().splitlines()]
    if matrix.shape != (len(barcodes), len(features)):
        raise ValueError(
            f"{source}: matrix.mtx has {matrix.shape[0]} cells and {matrix.shape[1]} genes, but barcodes.tsv names "
            f"{len(barcodes)} and genes.tsv {len(features)}; use three files from the same download"
        )
    symbols = [fields[1] if len(fields) > 1 else fields[0] for fields in features]
    var = pd.DataFrame({"symbol": symbols}, index=[fields[0] for fields in features])
    return ad.AnnData(matrix, obs=pd.DataFrame(index=barcodes), var=var)


def read_labels(path: Path, column: str) -> dict[str, str]:
    """The label of each barcode in this column of the label file; "" if it has none."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        found = list(reader.fieldnames or [])
        for needed in ("barcode", column):
            if needed not in found:
                raise ValueError(f"{path} has no column {needed!r}, found {found}; columns are separated by tabs")
        labels: dict[str, str] = {}
        for row in reader:
            barcode = row["barcode"]
            if barcode in labels:
                raise ValueError(
                    f"{path} contains the barcode {barcode!r} twice, the second time in line {reader.line_num}"
                )
            labels[barcode] = (row[column] or "").strip()
    return labels


def _with_labels(counts: Any, labels: dict[str, str], what: str) -> tuple[Any, list[str]]:
    """The labelled cells, in the order of the matrix, and their labels."""
    barcodes = list(counts.obs_names)
    if len(set(barcodes)) < len(barcodes):
        raise ValueError(f"{what}: two cells have the same barcode, so labels cannot be assigned")
    unknown = set(labels) - set(barcodes)
    if unknown:
        raise ValueError(
            f"{what}: {len(unknown)} barcodes of the label file are not among the {len(barcodes)} cells, the first "
            f"{min(unknown)!r}; use counts and labels of the same dataset"
        )
    kept = [position for position, barcode in enumerate(barcodes) if labels.get(barcode)]
    if not kept:
        raise ValueError(f"{what}: none of the {len(barcodes)} cells has a label")
    return counts[kept], [labels[barcodes[position]] for position in kept]


def _find(data_dir: Path, names: tuple[str, ...], what: str) -> Path:
    looked = [data_dir / folder / name for folder in FOLDERS for name in names]
    for path in looked:
        if path.exists():
            return path
    also = (
        ' labels="leiden" needs no label file.'
        if names == (LABELS,)
        else " `dynamicgate data get pbmc3k` downloads the counts."
    )
    raise FileNotFoundError(f"{what} not found. Looked for: {', '.join(map(str, looked))}. {HOW_TO_FIX}{also}")


def _read_10x(source: Path) -> dict[str, bytes]:
    """The contents of matrix.mtx, genes.tsv (features.tsv in newer downloads) and barcodes.tsv, gunzipped."""
    key_of = {"matrix.mtx": "matrix.mtx", "genes.tsv": "genes.tsv", "features.tsv": "genes.tsv"}
    key_of["barcodes.tsv"] = "barcodes.tsv"
    files: dict[str, bytes] = {}
    for name, content in read_members(source, lambda name: _name_without_gz(name) in key_of):
        key = key_of[_name_without_gz(name)]
        if key in files:
            raise ValueError(f"{source} contains more than one {key}; keep the one of the hg19 genome, or unpack it")
        files[key] = gunzip(content, f"{source}: {name}") if name.endswith(".gz") else content
    missing = sorted(set(key_of.values()) - set(files))
    if missing:
        kind = "archive" if is_archive(source) else "folder"
        raise FileNotFoundError(f"the {kind} {source} lacks {', '.join(missing)}, plain or with .gz")
    return files


def _name_without_gz(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".gz")
