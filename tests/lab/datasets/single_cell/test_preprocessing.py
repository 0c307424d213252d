"""Preprocessing of single-cell counts: equal to scanpy's own calls, and blind to test cells."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.single_cell.preprocessing import leiden_clusters, preprocess_counts, split_cells

sc = pytest.importorskip("scanpy")
ad = pytest.importorskip("anndata")
pytest.importorskip("skmisc", reason="scanpy's seurat_v3 needs scikit-misc")

TRAIN = torch.arange(0, 120, 2)
CELLS, GENES = 120, 300


def random_counts(seed: int = 0) -> np.ndarray:
    """Genes of very different means, some over-dispersed, some never expressed."""
    rng = np.random.default_rng(seed)
    mean = rng.lognormal(-1, 1.5, GENES) * (np.arange(GENES) % 10 > 0)
    return rng.poisson(mean * rng.gamma(0.5 + np.arange(GENES) % 3, 1, (CELLS, GENES))).astype(np.float32)


def counted(x: np.ndarray) -> Any:
    from scipy.sparse import csr_matrix

    return ad.AnnData(csr_matrix(x))


def dense(cells: Any) -> np.ndarray:
    return cells.X if isinstance(cells.X, np.ndarray) else cells.X.toarray()


@pytest.mark.filterwarnings("ignore:.*expects raw count data")
@pytest.mark.parametrize("hvg", ["counts", "log"])
@pytest.mark.parametrize("fit", ["train", "all"])
def test_the_result_equals_that_of_scanpys_own_calls(hvg: Any, fit: Any) -> None:
    x = random_counts()
    prepared = preprocess_counts(counted(x), TRAIN, genes=40, hvg=hvg, fit=fit)

    expected = counted(x)
    expected.layers["counts"] = expected.X.copy()
    sc.pp.normalize_total(expected, target_sum=1e4)
    sc.pp.log1p(expected)
    cells = expected[TRAIN.numpy()].copy() if fit == "train" else expected.copy()
    layer = "counts" if hvg == "counts" else None
    sc.pp.highly_variable_genes(cells, n_top_genes=40, flavor="seurat_v3", layer=layer)
    chosen = cells.var_names[cells.var["highly_variable"]]
    assert list(prepared.var_names) == list(chosen)
    assert prepared.X.dtype == np.float32
    np.testing.assert_allclose(dense(prepared), dense(expected[:, chosen]), rtol=0, atol=1e-6)


def test_zeros_stay_zeros_and_the_counts_are_not_changed() -> None:
    x = random_counts()
    counts = counted(x)
    prepared = preprocess_counts(counts, TRAIN, genes=40)
    assert np.array_equal(dense(prepared) == 0, x[:, prepared.var_names.astype(int)] == 0)
    assert np.array_equal(counts.X.toarray(), x)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("hvg", ["counts", "log"])
def test_test_cells_affect_neither_the_genes_nor_a_bit_of_the_training_cells(hvg: Any, scale: bool) -> None:
    x = random_counts()
    other = x.copy()
    held_out = np.setdiff1d(np.arange(CELLS), TRAIN.numpy())
    other[held_out] = random_counts(1)[held_out][:, ::-1] * 50
    first, second = (preprocess_counts(counted(each), TRAIN, genes=40, hvg=hvg, scale=scale) for each in (x, other))
    assert list(first.var_names) == list(second.var_names)
    assert dense(first)[TRAIN].tobytes() == dense(second)[TRAIN].tobytes()
    # The published way does leak test cells, so the check above can fail.
    leaky = [preprocess_counts(counted(each), TRAIN, genes=40, hvg=hvg, fit="all") for each in (x, other)]
    assert list(leaky[0].var_names) != list(leaky[1].var_names)


@pytest.mark.parametrize("fit", ["train", "all"])
def test_scaling_equals_scanpys_with_mean_and_std_of_the_fitted_cells(fit: Any) -> None:
    x = random_counts()
    plain = preprocess_counts(counted(x), TRAIN, genes=40, fit=fit)
    scaled = preprocess_counts(counted(x), TRAIN, genes=40, fit=fit, scale=True)
    fitted = TRAIN.numpy() if fit == "train" else np.arange(CELLS)
    expected = ad.AnnData(dense(plain)[fitted])
    sc.pp.scale(expected, zero_center=True)
    np.testing.assert_allclose(scaled.X[fitted], expected.X, rtol=0, atol=1e-5)
    assert scaled.X.dtype == np.float32


def test_all_genes_are_kept_if_none_are_selected_and_names_need_not_be_unique() -> None:
    x = random_counts()
    counts = counted(x)
    counts.var_names = [f"g{position // 2}" for position in range(GENES)]
    assert preprocess_counts(counts, TRAIN, genes=None).shape == (CELLS, GENES)
    few = preprocess_counts(counts, TRAIN, genes=40)
    assert few.shape == (CELLS, 40)
    assert np.array_equal(dense(few), dense(preprocess_counts(counted(x), TRAIN, genes=40)))


def test_dense_integer_counts_give_the_same_as_sparse_ones() -> None:
    x = random_counts()
    cells = preprocess_counts(ad.AnnData(x.astype(np.int64)), TRAIN, genes=40)
    assert np.array_equal(dense(cells), dense(preprocess_counts(counted(x), TRAIN, genes=40)))


@pytest.mark.parametrize("value", [0.5, -1, np.nan, np.inf])
def test_values_that_are_not_counts_are_refused(value: float) -> None:
    x = random_counts()
    x[3, 4] = value
    if np.isinf(value):
        x[3, 5] = -np.inf
    with pytest.raises(ValueError, match=r"mine must be raw counts .* found [12] other values, the first"):
        preprocess_counts(counted(x), TRAIN, what="mine")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"genes": 301}, "genes must be 1 to 300, or None to keep them all, got 301"),
        ({"genes": 0}, "genes must be 1 to 300"),
        ({"hvg": "raw"}, "hvg must be one of 'counts', 'log', got 'raw'"),
        ({"fit": "test"}, "fit must be one of 'train', 'all', got 'test'"),
    ],
)
def test_unknown_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preprocess_counts(counted(random_counts()), TRAIN, **wrong)


def test_too_few_cells_to_rank_genes_are_refused_with_what_to_do() -> None:
    counts = counted(np.eye(4, dtype=np.float32))
    with pytest.raises(ValueError, match=r"cannot rank 4 genes on 2 cells .* keep all genes with genes=None"):
        preprocess_counts(counts, torch.tensor([0, 1]), genes=2)


def test_parts_are_disjoint_and_complete_and_only_validation_depends_on_the_seed() -> None:
    y = torch.arange(200) % 4
    first, second = split_cells(y, 0), split_cells(y, 1)
    assert torch.cat(first).sort().values.equal(torch.arange(200))
    assert [len(part) for part in first] == [136, 24, 40]
    assert first[2].equal(second[2])
    assert not first[1].equal(second[1])
    with pytest.raises(ValueError, match=r"mine: cannot split 3 rows"):
        split_cells(torch.arange(3), 0, what="mine")


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("scanpy", lambda: preprocess_counts(None, TRAIN)),
        ("skmisc", lambda: preprocess_counts(counted(random_counts()), TRAIN, genes=40)),
        ("leidenalg", lambda: leiden_clusters(None)),
    ],
)
def test_a_missing_package_is_reported_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, call: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "skmisc.loess", raising=False)
    with pytest.raises(ImportError, match=r"not installed: pip install 'dynamicgate\[omics\]'"):
        call()


def test_torch_keeps_its_number_of_threads() -> None:
    """In a process of its own, because Numba takes threads once."""
    words = """
import anndata, numpy, torch
from dynamicgate.lab.datasets.single_cell.preprocessing import preprocess_counts
torch.set_num_threads(1)
counts = numpy.random.default_rng(0).poisson(1.0, (60, 50)).astype("float32")
preprocess_counts(anndata.AnnData(counts), torch.arange(60), genes=None)
print(torch.get_num_threads())
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", words], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1"]
