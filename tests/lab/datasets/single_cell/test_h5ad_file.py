"""A user's own .h5ad file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.data.sparse_rows import SparseRows
from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.single_cell.h5ad_file import load_h5ad
from dynamicgate.lab.datasets.single_cell.preprocessing import preprocess_counts, split_cells

ad = pytest.importorskip("anndata")
pytest.importorskip("scanpy")

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(RNG.lognormal(-1, 1.5, 200) * RNG.gamma(1, 1, (100, 200))).astype(np.float32)
KINDS = np.array(["T", "B", "NK", "B"])[np.arange(100) % 4]


def written(path: Path, x: Any = COUNTS, kinds: Any = KINDS, layers: dict[str, Any] | None = None) -> Path:
    import pandas as pd

    obs = pd.DataFrame({"kind": kinds, "donor": 1}, index=[f"c{position}" for position in range(len(kinds))])
    ad.AnnData(x, obs=obs, layers=layers).write_h5ad(path)
    return path


def as_sparse(x: np.ndarray, form: str = "csr_matrix") -> Any:
    from scipy import sparse

    return getattr(sparse, form)(x)


def store_of(rows: Any) -> Any:
    while hasattr(rows, "store"):
        rows = rows.store
    return rows


@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix"])
def test_a_sparse_x_stays_sparse_and_reads_as_the_same_numbers(tmp_path: Path, form: str) -> None:
    data = load_h5ad(written(tmp_path / "mine.h5ad", as_sparse(COUNTS, form)), 0, "kind")
    dense = load_h5ad(written(tmp_path / "dense.h5ad"), 0, "kind")
    assert isinstance(store_of(data.train.x), SparseRows)
    assert store_of(data.train.x) is store_of(data.test.x)  # one matrix, viewed by three parts
    for name in ("train", "valid", "test"):
        assert getattr(data, name).values.equal(getattr(dense, name).values)
        assert getattr(data, name).y.equal(getattr(dense, name).y)
    torch.testing.assert_close(data.mean, dense.mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(data.std, dense.std, rtol=1e-5, atol=1e-7)
    assert data.name == "mine"
    assert data.class_names == ("B", "NK", "T")
    assert [len(part) for part in (data.train, data.valid, data.test)] == [68, 12, 20]


def test_rows_keep_their_labels_and_values(tmp_path: Path) -> None:
    data = load_h5ad(written(tmp_path / "a.h5ad", as_sparse(COUNTS)), 3, "kind")
    _, numbers = np.unique(KINDS, return_inverse=True)
    train, valid, test = split_cells(torch.from_numpy(numbers), 3)
    for part, index in ((data.train, train), (data.valid, valid), (data.test, test)):
        assert np.array_equal(part.values.numpy(), COUNTS[index])
        assert part.y.tolist() == numbers[index].tolist()
    mean, _ = mean_and_std(torch.from_numpy(COUNTS)[train])
    torch.testing.assert_close(data.mean, mean, rtol=1e-5, atol=1e-7)


def test_a_layer_is_used_in_place_of_x(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5ad", layers={"twice": as_sparse(COUNTS * 2)})
    assert load_h5ad(path, 0, "kind", layer="twice").test.values.equal(load_h5ad(path, 0, "kind").test.values * 2)
    with pytest.raises(ValueError, match=r"has no layer 'thrice', found \['twice'\]"):
        load_h5ad(path, 0, "kind", layer="thrice")


def test_cells_without_a_class_are_left_out_with_a_warning_that_counts_them(tmp_path: Path) -> None:
    kinds = KINDS.astype(object)
    kinds[[0, 5, 9]] = None
    path = written(tmp_path / "a.h5ad", as_sparse(COUNTS), kinds)
    with pytest.warns(UserWarning, match="3 of 100 cells have no 'kind' and are left out"):
        data = load_h5ad(path, 0, "kind")
    assert sum(len(part) for part in (data.train, data.valid, data.test)) == 97
    with pytest.raises(ValueError, match="'kind' is empty in all 100 cells"):
        load_h5ad(written(path, kinds=np.full(100, np.nan)), 0, "kind")


@pytest.mark.parametrize("layer", [None, "raw"])
def test_raw_counts_are_preprocessed_without_looking_at_the_test_cells(tmp_path: Path, layer: str | None) -> None:
    pytest.importorskip("skmisc", reason="scanpy's seurat_v3 needs scikit-misc")
    x, layers = (COUNTS, None) if layer is None else (COUNTS * 0.5, {"raw": COUNTS})
    data = load_h5ad(
        written(tmp_path / "a.h5ad", x, layers=layers), 0, "kind", layer=layer, preprocess="counts", genes=30
    )
    _, numbers = np.unique(KINDS, return_inverse=True)
    train, _, test = split_cells(torch.from_numpy(numbers), 0)
    expected = preprocess_counts(ad.AnnData(COUNTS), train, genes=30).X.toarray()
    assert np.array_equal(data.train.values.numpy(), expected[train])
    assert data.std.min() >= 0.3
    changed = COUNTS.copy()
    changed[test] = COUNTS[test][:, ::-1] * 30
    other = load_h5ad(written(tmp_path / "b.h5ad", changed), 0, "kind", preprocess="counts", genes=30)
    assert other.train.values.numpy().tobytes() == data.train.values.numpy().tobytes()
    assert not other.test.values.equal(data.test.values)


def test_raw_counts_keep_all_genes_unless_some_are_selected(tmp_path: Path) -> None:
    data = load_h5ad(written(tmp_path / "a.h5ad", as_sparse(COUNTS)), 0, "kind", preprocess="counts")
    assert data.train.features == 200
    sums = torch.expm1(data.train.values.double()).sum(1)
    torch.testing.assert_close(sums, torch.full_like(sums, 1e4), rtol=1e-5, atol=0)


def test_numeric_classes_are_sorted_by_value(tmp_path: Path) -> None:
    kinds = np.array([10, 9, 200, 9])[np.arange(100) % 4]
    assert load_h5ad(written(tmp_path / "a.h5ad", kinds=kinds), 0, "kind").class_names == ("9", "10", "200")


@pytest.mark.parametrize("sparse", [True, False])
def test_a_missing_value_in_x_is_refused(tmp_path: Path, sparse: bool) -> None:
    x = COUNTS.copy()
    x[7, 3] = np.nan
    path = written(tmp_path / "a.h5ad", as_sparse(x) if sparse else x)
    with pytest.raises(ValueError, match=r"a\.h5ad.* finite in float32, found 1 NaN .*7.*3"):
        load_h5ad(path, 0, "kind")


def test_unknown_options_and_missing_columns_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5ad", COUNTS * 0.5)
    with pytest.raises(ValueError, match=r"obs has no column 'type' for the classes, found \['kind', 'donor'\]"):
        load_h5ad(path, 0, "type")
    with pytest.raises(ValueError, match="at least 2 classes, found only '1' in all 100 rows"):
        load_h5ad(path, 0, "donor")
    with pytest.raises(ValueError, match="genes=50 selects genes from raw counts"):
        load_h5ad(path, 0, "kind", genes=50)
    with pytest.raises(ValueError, match="preprocess must be 'none' or 'counts', got 'log'"):
        load_h5ad(path, 0, "kind", preprocess="log")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a\.h5ad must be raw counts"):
        load_h5ad(path, 0, "kind", preprocess="counts")


def test_missing_files_and_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.h5ad"):
        load_h5ad(tmp_path / "none.h5ad", 0, "kind")
    (tmp_path / "text.h5ad").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.h5ad could not be read as an AnnData file"):
        load_h5ad(tmp_path / "text.h5ad", 0, "kind")
    whole = written(tmp_path / "a.h5ad").read_bytes()
    (tmp_path / "cut.h5ad").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.h5ad could not be read as an AnnData file"):
        load_h5ad(tmp_path / "cut.h5ad", 0, "kind")
    import h5py

    with h5py.File(tmp_path / "other.h5ad", "w") as file:
        file["numbers"] = np.arange(3)
    with pytest.raises(ValueError, match=r"other\.h5ad"):
        load_h5ad(tmp_path / "other.h5ad", 0, "kind")


def test_an_empty_file_and_one_without_x_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is empty: it has 0 cells and 200 genes"):
        load_h5ad(written(tmp_path / "a.h5ad", COUNTS[:0], KINDS[:0]), 0, "kind")
    path = written(tmp_path / "b.h5ad", None, layers={"raw": COUNTS})
    with pytest.raises(ValueError, match=r"has no X; choose one of its layers with layer=, found \['raw'\]"):
        load_h5ad(path, 0, "kind")


@pytest.mark.parametrize("place", ["X", "layers/other", "obsm/other", "raw/X"])
@pytest.mark.parametrize(
    ("what", "at", "value"), [("indices", 5, -5000), ("indices", 5, 2_000_000_000), ("indptr", 30, 10**6)]
)
def test_a_file_whose_indices_point_outside_is_refused(
    place: str, what: str, at: int, value: int, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    cells = ad.AnnData(
        as_sparse(COUNTS), layers={"other": as_sparse(COUNTS)}, obsm={"other": as_sparse(COUNTS[:, :30])}
    )
    cells.obs["kind"] = KINDS
    cells.raw = cells.copy()
    cells.write_h5ad(tmp_path / "mine.h5ad")
    with h5py.File(tmp_path / "mine.h5ad", "r+") as file:
        file[f"{place}/{what}"][at] = value
    for options in ({}, {"preprocess": "counts", "genes": None}):
        with pytest.raises(ValueError, match=r"mine.h5ad"):
            load_h5ad(tmp_path / "mine.h5ad", 0, "kind", **options)


def test_a_file_that_promises_more_than_it_holds_or_refers_to_another_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = written(tmp_path / "mine.h5ad")
    with h5py.File(path, "r+") as file:
        file["layers"].create_dataset("huge", (1 << 20, 1 << 12), "f4", chunks=(1024, 1024), compression="gzip")
    with pytest.raises(ValueError, match=r"mine.h5ad could not be read .*would unpack to"):
        load_h5ad(path, 0, "kind")
    path = written(tmp_path / "mine.h5ad")
    with h5py.File(path, "r+") as file:
        file["layers/other"] = h5py.ExternalLink("/etc/passwd", "/x")
    with pytest.raises(ValueError, match=r"mine.h5ad could not be read .*is in another file"):
        load_h5ad(path, 0, "kind")
