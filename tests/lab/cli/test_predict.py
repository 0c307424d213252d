"""`dynamicgate predict`: every row of a file, without a column of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data.schema import Column, Schema
from dynamicgate.lab.cli import main

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

COLUMNS = (Column("age"), Column("site", ("Lima", "Oslo")))
TABLE = pd.DataFrame({"site": ["Oslo", "Lima", "Oslo"], "id": [7, 8, 9], "age": [1.0, -2.0, 0.5]})
X = torch.tensor([[1.0, 0, 1], [-2, 1, 0], [0.5, 0, 1]])


def saved(folder: Path, **changes: Any) -> tuple[str, nn.Module]:
    torch.manual_seed(0)
    model = dg.gate_(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), dg.GateConfig(block=2))
    schema = Schema("table", 3, 2, columns=COLUMNS, target="outcome", **{"classes": ("no", "yes"), **changes})
    dg.save(model, folder / "m.safetensors", schema=schema)
    return str(folder / "m.safetensors"), model.eval()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_every_row_gets_a_class_probabilities_and_a_cost(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = saved(tmp_path)
    TABLE.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / f"out.{suffix}"
    assert main(["predict", path, str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "not read by the model: 'id'" in printed
    assert "3 rows predicted" in printed
    found = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, sep="\t" if suffix == "tsv" else ",")
    with torch.no_grad():
        p = model(X).softmax(1).numpy()
    assert list(found.columns) == ["row", "prediction", "probability", "cost", "p(no)", "p(yes)"]
    np.testing.assert_allclose(found[["p(no)", "p(yes)"]].to_numpy(), p, rtol=1e-5)
    assert list(found["prediction"]) == [("no", "yes")[k] for k in p.argmax(1)]
    assert found["cost"].mean() == pytest.approx(dg.measure(model, X).relative)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(site="Rome"), "hold 'Rome', which the model never saw"),
        (lambda t: t.drop(columns="age"), "lacks 1 of the 2 columns that the model reads: 'age'"),
    ],
)
def test_what_the_model_was_not_made_for_is_refused_and_nothing_is_written(
    change: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved(tmp_path)
    change(TABLE).to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", path, str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_an_array_is_read_without_labels(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    np.savez(tmp_path / "new.npz", x=X.numpy())
    assert main(["predict", path, str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.csv")]) == 0
    with torch.no_grad():
        p = model(X).softmax(1).numpy()
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["p(yes)"], p[:, 1], rtol=1e-5)


@pytest.mark.parametrize(("task", "column"), [("regression", "value(yes)"), ("multilabel", "p(yes)")])
def test_other_tasks_have_values_or_a_probability_for_each_label(task: str, column: str, tmp_path: Path) -> None:
    path, model = saved(tmp_path, task=task)
    TABLE.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", path, str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    found = pd.read_csv(tmp_path / "out.csv")
    with torch.no_grad():
        out = model(X)[:, 1]
    np.testing.assert_allclose(found[column], (out if task == "regression" else out.sigmoid()).numpy(), rtol=1e-5)
    assert "prediction" not in found


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = saved(tmp_path)
    table = str(tmp_path / "new.csv")
    TABLE.to_csv(table, index=False)
    for data, out, message in (
        (table, "out.txt", "out.txt cannot be written: its name must end with .csv, .tsv"),
        ("cells.doc", "out.csv", "cells.doc cannot be read: its name must end with .csv"),
        (table, "out.h5ad", "only cells are written as .h5ad"),
        (table, table, "is the file with the data: choose another"),
    ):
        assert main(["predict", path, data, "--out", out]) == 2
        assert message in capsys.readouterr().err
    dg.save(nn.Linear(3, 2), tmp_path / "plain.safetensors")
    assert main(["predict", str(tmp_path / "plain.safetensors"), table, "--out", str(tmp_path / "o.csv")]) == 2
    assert "does not say which columns it reads" in capsys.readouterr().err


def test_cells_are_written_with_further_columns(tmp_path: Path) -> None:
    ad = pytest.importorskip("anndata")
    torch.manual_seed(0)
    columns = tuple(Column(name, fill=0.0) for name in ("a", "b", "c"))
    schema = Schema("cells", 3, 2, columns=columns, classes=("B", "T"), least=0.0)
    dg.save(nn.Sequential(nn.Linear(3, 2)), tmp_path / "m.safetensors", schema=schema)
    cells = ad.AnnData(np.eye(4, 3, dtype=np.float32))
    cells.var_names, cells.obs_names = ["c", "a", "b"], list("wxyz")
    cells.write_h5ad(tmp_path / "new.h5ad")
    command = ["predict", str(tmp_path / "m.safetensors"), str(tmp_path / "new.h5ad"), "--out"]
    assert main([*command, str(tmp_path / "out.h5ad")]) == 0
    assert main([*command, str(tmp_path / "out.csv")]) == 0
    written, listed = ad.read_h5ad(tmp_path / "out.h5ad"), pd.read_csv(tmp_path / "out.csv")
    assert list(listed["cell"]) == list("wxyz")
    assert list(written.obs["dynamicgate"]) == list(listed["prediction"])
    np.testing.assert_array_equal(written.X, cells.X)
