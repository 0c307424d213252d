"""Cells in memory, annotated by a model that knows its genes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data.schema import Column, Schema, put_schema_

ad = pytest.importorskip("anndata")
sc = pytest.importorskip("scanpy")

IDS = [f"ENSG{number:03}" for number in range(12)]
SYMBOLS = [f"S{number}" for number in range(12)]
CLASSES = ("B", "CD4+/CD45RO+", "T")


def cells(rows: int = 30) -> Any:
    rng = np.random.default_rng(0)
    found = ad.AnnData(rng.poisson(3.0, (rows, 12)).astype(np.float32))
    found.var_names, found.obs_names = IDS, [f"cell{row}" for row in range(rows)]
    found.var["symbol"] = SYMBOLS
    return found


def model(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    mean = torch.linspace(1.0, 4.0, 12)
    found = nn.Sequential(dg.nn.Normalize(mean, torch.ones(12)), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    dg.gate_(found, dg.GateConfig(block=4))
    columns = tuple(
        Column(name, fill=fill, alias=alias) for name, fill, alias in zip(IDS, mean.tolist(), SYMBOLS, strict=True)
    )
    given: dict[str, Any] = {"preprocess": "counts", "measured_genes": 12, **changes}
    put_schema_(found, Schema("cells", 12, 3, columns=columns, classes=CLASSES, **given))
    return found.eval()


def expected(of: nn.Module, data: Any) -> Any:
    scaled = data.copy()
    sc.pp.normalize_total(scaled, target_sum=1e4)
    sc.pp.log1p(scaled)
    return torch.from_numpy(np.asarray(scaled.X))


def test_labels_probabilities_and_cost_are_written_for_each_cell() -> None:
    data, of = cells(), model()
    done = dg.omics.annotate(data, of)
    with torch.no_grad():
        p = of(expected(of, data)).softmax(1)
    np.testing.assert_allclose(data.obsm["dynamicgate_probabilities"], p.numpy(), rtol=1e-4)
    assert list(data.obs["dynamicgate"]) == [CLASSES[k] for k in p.argmax(1)]
    assert list(data.obs["dynamicgate"].cat.categories) == data.uns["dynamicgate"]["classes"] == list(CLASSES)
    np.testing.assert_allclose(data.obs["dynamicgate_probability"], p.max(1).values.numpy(), rtol=1e-4)
    measured = dg.measure(of, expected(of, data))
    assert data.obs["dynamicgate_cost"].mean() == pytest.approx(measured.relative)
    assert (done.cells, done.coverage, done.notes) == (30, 1.0, ())
    assert "30 cells annotated; 12 of the model's 12 genes found (100.0%)" in str(done)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "dense"])
def test_the_order_of_genes_and_how_they_are_stored_do_not_matter(form: str) -> None:
    from scipy import sparse

    data, of = cells(), model()
    dg.omics.annotate(data, of)
    other = cells()[:, ::-1].copy()
    other.X = other.X if form == "dense" else getattr(sparse, form)(other.X)
    dg.omics.annotate(other, of)
    np.testing.assert_allclose(
        other.obsm["dynamicgate_probabilities"], data.obsm["dynamicgate_probabilities"], rtol=1e-6
    )


def test_genes_are_matched_by_id_by_symbol_or_by_a_column_of_var() -> None:
    data, of = cells(), model()
    dg.omics.annotate(data, of)
    by_symbol = cells()
    by_symbol.var_names = SYMBOLS
    by_column = cells()
    by_column.var_names = [str(number) for number in range(12)]
    for other, column in ((by_symbol, None), (by_column, "symbol")):
        assert dg.omics.annotate(other, of, gene_column=column).coverage == 1.0
        assert list(other.obs["dynamicgate"]) == list(data.obs["dynamicgate"])
    with pytest.raises(ValueError, match=r"var has no column 'gene' with names of genes, found \['symbol'\]"):
        dg.omics.annotate(by_column, of, gene_column="gene")
    with pytest.raises(ValueError, match=r"adata has none of the genes that the model reads: 'ENSG000 .S0.'"):
        dg.omics.annotate(by_column, of, allow=["missing-columns"])


def test_missing_genes_are_refused_or_have_the_mean_of_training_and_others_are_reported() -> None:
    data, of = cells(), model()
    fewer = ad.concat([data[:, 3:], ad.AnnData(np.ones((30, 2), np.float32), obs=data.obs)], axis=1)
    with pytest.raises(ValueError, match=r"lacks 3 of the 12 genes .*'ENSG000 \(S0\)', .*--allow missing-columns"):
        dg.omics.annotate(fewer, of)
    done = dg.omics.annotate(fewer, of, allow=["missing-columns"])
    assert (done.genes_found, done.coverage) == (9, 0.75)
    assert done.notes[0].startswith("filled in 3 of the 12 genes that the model reads: 'ENSG000 (S0)'")
    assert done.notes[1] == "not read by the model: 2 of 11 genes, such as '0', '1'"
    x = expected(of, fewer)[:, :9]
    filled = torch.cat([torch.linspace(1.0, 4.0, 12)[:3].expand(30, 3), x], 1)
    with torch.no_grad():
        p = of(filled).softmax(1)
    np.testing.assert_allclose(fewer.obsm["dynamicgate_probabilities"], p.numpy(), rtol=1e-4)


def test_a_layer_or_raw_takes_the_place_of_x() -> None:
    of, data = model(), cells()
    dg.omics.annotate(data, of)
    other = cells()
    other.layers["counts"] = other.X.copy()
    other.raw = other.copy()
    other.X = other.X - 3.0
    with pytest.raises(ValueError, match="holds negative values"):
        dg.omics.annotate(other, of)
    for layer in ("counts", "raw"):
        dg.omics.annotate(other, of, key=layer, layer=layer)
        assert list(other.obs[layer]) == list(data.obs["dynamicgate"])
    with pytest.raises(ValueError, match=r"has no layer 'none', found \['counts'\] and raw"):
        dg.omics.annotate(other, of, layer="none")


def test_values_as_they_are_have_to_be_on_the_scale_of_the_training_cells() -> None:
    scaled = model(preprocess="none", measured_genes=None, least=-2.0)
    with pytest.raises(ValueError, match="the smallest value is 0, in the model's training rows it was -2"):
        dg.omics.annotate(cells(), scaled)
    done = dg.omics.annotate(cells(), scaled, allow=["other-range"])
    assert done.notes == ("the smallest value is 0, in the model's training rows it was -2: used as they are",)


def test_two_genes_of_one_name_are_refused() -> None:
    data = cells()
    data.var_names = [IDS[0], IDS[0], *IDS[2:]]
    with pytest.raises(ValueError, match="adata has two genes named 'ENSG000'"):
        dg.omics.annotate(data, model())


def test_counts_over_far_fewer_genes_than_in_training_are_said() -> None:
    done = dg.omics.annotate(cells(), model(measured_genes=1000))
    assert "scaled to 10,000 over the 12 genes that are here; in training over 1,000" in done.notes[0]


def test_annotated_cells_can_be_written_and_models_are_taken_by_path(tmp_path: Path) -> None:
    data, of = cells(), model()
    dg.save(of, tmp_path / "m.safetensors")
    dg.omics.annotate(data, tmp_path / "m.safetensors")
    data.write_h5ad(tmp_path / "a.h5ad")
    again = ad.read_h5ad(tmp_path / "a.h5ad")
    assert list(again.obs["dynamicgate"]) == list(data.obs["dynamicgate"])
    assert list(again.uns["dynamicgate"]["classes"]) == list(CLASSES)


def test_a_model_that_does_not_know_its_genes_is_refused() -> None:
    with pytest.raises(ValueError, match="the model does not know its genes"):
        dg.omics.annotate(cells(), nn.Linear(12, 3))
