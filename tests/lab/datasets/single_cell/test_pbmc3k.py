"""PBMC 3k: the real data against published counts and scanpy, and small files in every form."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.single_cell.pbmc3k import LABELS, load_pbmc3k, read_counts, read_labels
from dynamicgate.lab.datasets.single_cell.preprocessing import preprocess_counts, split_cells
from dynamicgate.lab.datasets.splits import Splits
from tests.places import real_folder

from ..small_arrays import rows_of

sc = pytest.importorskip("scanpy")
pytest.importorskip("skmisc", reason="scanpy's seurat_v3 needs scikit-misc")

ARCHIVE = "pbmc3k_filtered_gene_bc_matrices.tar.gz"
LOUVAIN = {
    "B cells": 342,
    "CD14+ Monocytes": 480,
    "CD4 T cells": 1144,
    "CD8 T cells": 316,
    "Dendritic cells": 37,
    "FCGR3A+ Monocytes": 150,
    "Megakaryocytes": 15,
    "NK cells": 154,
}
SEURAT = {
    "B": 344,
    "CD14+ Mono": 480,
    "CD8 T": 271,
    "DC": 32,
    "FCGR3A+ Mono": 162,
    "Memory CD4 T": 483,
    "NK": 155,
    "Naive CD4 T": 697,
    "Platelet": 14,
}


# --- the real data ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder() -> Path:
    return real_folder(f"pbmc3k/{ARCHIVE}")


@pytest.fixture(scope="session")
def counts(folder: Path) -> Any:
    return read_counts(folder / "pbmc3k" / ARCHIVE)


@pytest.fixture(scope="session")
def louvain(folder: Path) -> Splits:
    return load_pbmc3k(folder, 0)


@pytest.fixture(scope="session")
def leiden(folder: Path) -> Splits:
    """With every choice as in the published code."""
    return load_pbmc3k(folder, 42, labels="leiden", fit="all", hvg="log", split="paper")


def cells_per_type(data: Splits) -> dict[str, int]:
    per_part = data.info()["class_counts"].values()
    return dict(zip(data.class_names, map(sum, zip(*per_part, strict=True)), strict=True))


def scanpy_pipeline(counts: Any, layer: str | None, chosen_on: np.ndarray) -> Any:
    """scanpy's own calls, one after the other."""
    cells = counts.copy()
    cells.layers["counts"] = cells.X.copy()
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    some = cells[chosen_on].copy()
    sc.pp.highly_variable_genes(some, n_top_genes=2000, flavor="seurat_v3", layer=layer)
    return cells[:, some.var["highly_variable"].to_numpy()].copy()


def test_the_real_matrix_has_the_published_size(counts: Any) -> None:
    assert counts.shape == (2_700, 32_738)
    assert (counts.X.nnz, counts.X.sum(dtype=np.float64)) == (2_286_884, 6_390_631)
    assert counts.obs_names[0] == "AAACATACAACCAC-1"


def test_the_real_louvain_types_have_the_published_counts_in_parts_of_70_10_20(louvain: Splits) -> None:
    assert cells_per_type(louvain) == LOUVAIN
    info = louvain.info()
    assert (info["train"], info["valid"], info["test"], info["features"]) == (1_846, 264, 528, 2_000)
    assert min(min(counts) for counts in info["class_counts"].values()) >= 1


def test_the_real_seurat_types_have_the_published_counts(folder: Path) -> None:
    assert cells_per_type(load_pbmc3k(folder, 0, labels="seurat_annotations")) == SEURAT


def test_the_real_values_equal_scanpys_own_with_genes_chosen_on_training_cells(
    louvain: Splits, counts: Any, folder: Path
) -> None:
    type_of = read_labels(folder / "pbmc3k" / LABELS, "louvain")
    labelled = counts[[bool(type_of[barcode]) for barcode in counts.obs_names]].copy()
    y = torch.tensor([louvain.class_names.index(type_of[barcode]) for barcode in labelled.obs_names])
    train, _, test = split_cells(y, 0, test_fraction=0.2, valid_fraction=0.125)
    expected = scanpy_pipeline(labelled, "counts", train.numpy()).X.toarray()
    np.testing.assert_allclose(louvain.train.values.numpy(), expected[train], rtol=0, atol=1e-6)
    np.testing.assert_allclose(louvain.test.values.numpy(), expected[test], rtol=0, atol=1e-6)
    assert louvain.test.y.equal(y[test])


def test_no_real_cell_is_in_two_parts_and_zeros_are_kept(louvain: Splits) -> None:
    parts = [rows_of(part.values) for part in (louvain.train, louvain.valid, louvain.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 2_638
    assert 0.88 < (louvain.test.values == 0).float().mean() < 0.92


def test_mean_and_std_are_those_of_the_real_training_cells_with_a_minimum_std(louvain: Splits) -> None:
    mean, std = mean_and_std(louvain.train.values)
    torch.testing.assert_close(louvain.mean, mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(louvain.std, std.clamp(min=0.3), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("split", ["fixed", "paper"])
def test_the_seed_changes_validation_cells_and_only_if_asked_the_test_cells(
    folder: Path, split: Any, louvain: Splits
) -> None:
    first, second = (load_pbmc3k(folder, seed, split=split, genes=500, fit="all") for seed in (0, 1))
    assert not first.valid.values.equal(second.valid.values)
    assert first.test.values.equal(second.test.values) == (split == "fixed")
    assert first.train.features == 500
    assert first.test.y.equal(louvain.test.y) == (split == "fixed")


def test_real_test_cells_affect_neither_the_genes_nor_a_bit_of_the_training_cells(counts: Any) -> None:
    train = torch.from_numpy(np.random.default_rng(0).permutation(2_700)[:1_890])
    held_out = np.setdiff1d(np.arange(2_700), train.numpy())
    changed = counts.copy()
    order = np.arange(2_700)
    order[held_out] = held_out[::-1]
    changed.X = counts.X[order].multiply(1 + 9 * np.isin(np.arange(2_700), held_out)[:, None]).tocsr()
    first, second = (preprocess_counts(cells, train) for cells in (counts, changed))
    assert list(first.var_names) == list(second.var_names)
    assert first.X[train.numpy()].toarray().tobytes() == second.X[train.numpy()].toarray().tobytes()
    assert (first.X[held_out] != second.X[held_out]).nnz > 0


def test_the_papers_split_has_nine_leiden_labels_and_1890_270_540_cells(leiden: Splits) -> None:
    assert [len(part) for part in (leiden.train, leiden.valid, leiden.test)] == [1_890, 270, 540]
    assert leiden.class_names == ("0", "1", "2", "3", "4", "5", "6", "7", "rare")
    sizes = cells_per_type(leiden)
    assert sizes.pop("rare") < 30 <= min(sizes.values())
    assert min(min(counts) for counts in leiden.info()["class_counts"].values()) >= 1


@pytest.mark.filterwarnings("ignore:.*expects raw count data", "ignore:.*default backend for leiden")
def test_the_papers_labels_and_values_equal_those_of_scanpys_own_calls(leiden: Splits, counts: Any) -> None:
    cells = scanpy_pipeline(counts, None, np.arange(2_700))
    sc.pp.pca(cells, n_comps=50, svd_solver="arpack")
    sc.pp.neighbors(cells, n_neighbors=15)
    sc.tl.leiden(cells, resolution=0.6, random_state=0)
    clusters = cells.obs["leiden"].astype(str).to_numpy()
    names = [name if name in leiden.class_names else "rare" for name in clusters]
    y = torch.tensor([leiden.class_names.index(name) for name in names])
    train, valid, test = split_cells(y, 42, test_fraction=0.2, valid_fraction=0.125, test_seed=42)
    assert leiden.valid.y.equal(y[valid])
    for part, index in ((leiden.train, train), (leiden.test, test)):
        assert part.y.equal(y[index])
        np.testing.assert_allclose(part.values.numpy(), cells.X[index.numpy()].toarray(), rtol=0, atol=1e-6)


# --- small files ------------------------------------------------------------------------------------------------------


KINDS = np.array(["B", "T", "NK", ""])[np.arange(120) % 4]
BARCODES = [f"CELL{position:03d}-1" for position in range(120)]


def small_counts(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(-1, 1.5, 200) * rng.gamma(1, 1, (120, 200)))


def write_10x(folder: Path, counts: np.ndarray, suffix: str = "", features: str = "genes.tsv") -> Path:
    from scipy.io import mmwrite
    from scipy.sparse import coo_matrix

    matrix = io.BytesIO()
    mmwrite(matrix, coo_matrix(counts.T), field="integer")
    files = {
        "matrix.mtx": matrix.getvalue(),
        features: "".join(f"ID{position}\tsymbol\n" for position in range(counts.shape[1])).encode(),
        "barcodes.tsv": "".join(f"{barcode}\n" for barcode in BARCODES[: len(counts)]).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    return folder


def write_labels(folder: Path, barcodes: list[str] = BARCODES, header: str = "barcode\tlouvain") -> None:
    lines = [f"{barcode}\t{kind}" for barcode, kind in zip(barcodes, KINDS, strict=False)]
    (folder / LABELS).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


HG19 = "filtered_gene_bc_matrices/hg19"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_10x(tmp_path / HG19, small_counts())
    write_labels(tmp_path)
    return tmp_path


def test_cells_without_a_label_are_left_out_and_labels_are_matched_by_barcode(small: Path) -> None:
    data = load_pbmc3k(small, 0, genes=None)
    assert (data.class_names, cells_per_type(data)) == (("B", "NK", "T"), {"B": 30, "NK": 30, "T": 30})
    (small / LABELS).write_text(
        "barcode\tlouvain\n"
        + "".join(f"{b}\t{k}\n" for b, k in reversed(list(zip(BARCODES, KINDS, strict=True))) if k),
        encoding="utf-8",
    )
    again = load_pbmc3k(small, 0, genes=None)
    assert again.train.values.equal(data.train.values)
    assert again.train.y.equal(data.train.y)


@pytest.mark.parametrize("kind", ["folder", "gz", "features", "archive", "h5ad"])
@pytest.mark.parametrize("place", [".", "pbmc3k"])
def test_counts_are_found_in_each_form_and_place(small: Path, tmp_path_factory: Any, kind: str, place: str) -> None:
    expected = load_pbmc3k(small, 0, genes=50)
    base = tmp_path_factory.mktemp("other") / place
    base.mkdir(exist_ok=True)
    write_labels(base)
    if kind == "archive":
        with tarfile.open(base / ARCHIVE, "w:gz") as archive:
            archive.add(small / HG19, HG19)
    elif kind == "h5ad":
        read_counts(small / HG19).write_h5ad(base / "pbmc3k_raw.h5ad")
    else:
        names = {"folder": ("", "genes.tsv"), "gz": (".gz", "genes.tsv"), "features": (".gz", "features.tsv")}
        write_10x(base / HG19, small_counts(), *names[kind])
    found = load_pbmc3k(base if place == "." else base.parent, 0, genes=50)
    assert found.train.values.equal(expected.train.values)
    assert found.test.y.equal(expected.test.y)


def test_counts_of_test_cells_affect_neither_the_genes_nor_the_training_data(small: Path, tmp_path: Path) -> None:
    before = load_pbmc3k(small, 0, genes=50)
    kept = np.flatnonzero(KINDS != "")
    y = torch.from_numpy(np.unique(KINDS[kept], return_inverse=True)[1])
    test = kept[split_cells(y, 0, test_fraction=0.2, valid_fraction=0.125)[2]]
    changed = small_counts()
    changed[test] = small_counts(1)[test][:, ::-1] * 20
    write_10x(tmp_path / "changed" / HG19, changed)
    write_labels(tmp_path / "changed")
    after = load_pbmc3k(tmp_path / "changed", 0, genes=50)
    assert not after.test.values.equal(before.test.values)
    for name in ("train", "valid"):
        assert getattr(after, name).values.numpy().tobytes() == getattr(before, name).values.numpy().tobytes()
    assert after.mean.equal(before.mean)
    assert after.std.equal(before.std)
    leaky = [load_pbmc3k(folder, 0, genes=50, fit="all") for folder in (small, tmp_path / "changed")]
    assert not leaky[0].train.values.equal(leaky[1].train.values)  # so the check above can fail


def test_missing_counts_or_labels_say_where_they_are_expected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"PBMC 3k not found.*{ARCHIVE}.*hg19.*h5ad.*DYNAMICGATE_DATA"):
        load_pbmc3k(tmp_path, 0)
    write_10x(tmp_path / HG19, small_counts())
    with pytest.raises(FileNotFoundError, match=rf'cell types.*{LABELS}.*labels="leiden" needs no label file'):
        load_pbmc3k(tmp_path, 0)


@pytest.mark.parametrize(
    ("barcodes", "header", "message"),
    [
        (
            [*BARCODES[:5], "NOBODY-1"],
            "barcode\tlouvain",
            "1 barcodes of the label file are not among the 120 .*'NOBODY-1'",
        ),
        (
            [*BARCODES[:5], BARCODES[2]],
            "barcode\tlouvain",
            "contains the barcode 'CELL002-1' twice, the second time in line 7",
        ),
        (BARCODES, "barcode\tseurat", r"has no column 'louvain', found \['barcode', 'seurat'\]"),
        (BARCODES, "cell\tlouvain", "has no column 'barcode'"),
        (BARCODES[3:4], "barcode\tnothing\tlouvain", "none of the 120 cells has a label"),
    ],
)
def test_labels_that_do_not_match_the_cells_are_refused(
    small: Path, barcodes: list[str], header: str, message: str
) -> None:
    write_labels(small, barcodes, header)
    with pytest.raises(ValueError, match=message):
        load_pbmc3k(small, 0)


def test_files_of_different_downloads_are_refused(small: Path) -> None:
    (small / HG19 / "barcodes.tsv").write_text("A\nB\n")
    with pytest.raises(ValueError, match=r"120 cells and 200 genes, but barcodes.tsv names 2 and genes.tsv 200"):
        load_pbmc3k(small, 0)


def test_missing_duplicate_and_damaged_files_are_refused(small: Path) -> None:
    (small / HG19 / "matrix.mtx").write_text("nothing of the kind")
    with pytest.raises(ValueError, match=r"matrix.mtx could not be read"):
        load_pbmc3k(small, 0)
    (small / HG19 / "barcodes.tsv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"contains more than one barcodes\.tsv"):
        load_pbmc3k(small, 0)
    (small / HG19 / "barcodes.tsv").unlink()
    (small / HG19 / "barcodes.tsv.gz").write_bytes(gzip.compress(b"A\n")[:-4])
    with pytest.raises(ValueError, match=r"barcodes.tsv.gz is a truncated or damaged gzip file"):
        load_pbmc3k(small, 0)
    (small / HG19 / "barcodes.tsv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"hg19 lacks barcodes.tsv"):
        load_pbmc3k(small, 0)


@pytest.mark.parametrize("wrong", [{"split": "random"}, {"labels": "celltypes"}])
def test_unknown_options_are_refused(small: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(split|labels) must be '"):
        load_pbmc3k(small, 0, **wrong)
