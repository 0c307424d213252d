"""`measure` and `predict` on tables and cells in memory: columns, genes and classes by name, as on the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.accounting.prediction import predict
from dynamicgate.data import Column, Schema, put_schema_

pd = pytest.importorskip("pandas")

AGE = [20.0, 30.0, 60.0, 70.0, 40.0, 80.0]
TABLE = pd.DataFrame(
    {"age": AGE, "site": ["a", "b", "a", "b", "b", "a"], "ill": ["no", "no", "yes", "yes", "no", "yes"]}
)
COLUMNS = (Column("age", fill=50.0), Column("site", ("a", "b")))


def of_tables() -> nn.Module:
    """Answers yes where age is above 50, so that any other column in its place is a worse answer."""
    model = nn.Sequential(nn.Linear(3, 2, bias=True))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([50.0, -50.0]))
    put_schema_(model, Schema("table", 3, 2, columns=COLUMNS, classes=("no", "yes"), target="ill"))
    return model.eval()


def of_cells() -> nn.Module:
    """Answers T where the third gene is above the first."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    genes = tuple(Column(name, fill=0.0) for name in ("g0", "g1", "g2"))
    put_schema_(model, Schema("cells", 3, 2, columns=genes, classes=("B", "T"), target="type"))
    return model.eval()


def cells() -> Any:
    ad = pytest.importorskip("anndata")
    found = ad.AnnData(np.array([[3, 0, 1], [1, 2, 5], [0, 9, 4], [7, 1, 0]], dtype=np.float32))
    found.var_names = ["g0", "g1", "g2"]
    found.obs["type"] = ["B", "T", "T", "B"]
    return found


@pytest.mark.parametrize("order", [["age", "site", "ill"], ["ill", "site", "age"], ["site", "ill", "age"]])
def test_columns_of_a_table_are_found_by_name(order: list[str]) -> None:
    model, table = of_tables(), TABLE[order]
    assert dg.measure(model, (table, "ill")).accuracy == 1.0
    assert dg.measure(model, (table.drop(columns="ill"), table["ill"])).accuracy == 1.0
    assert dg.measure(model, (table, np.array([0, 0, 1, 1, 0, 1]))).accuracy == 1.0, "numbers are class numbers"
    assert dg.measure(model, (table, np.array(TABLE["ill"].tolist()))).accuracy == 1.0, "texts are class names"
    assert dg.measure(model, table).quality == {}
    assert predict(model, table).labels == TABLE["ill"].tolist()
    assert predict(model, (table, "ill")).labels == TABLE["ill"].tolist()


def test_classes_without_rows_keep_their_numbers_and_are_said() -> None:
    found = dg.measure(of_tables(), (TABLE[TABLE["ill"] == "yes"], "ill"))
    assert found.accuracy == 1.0
    assert found.notes == ["classes of the model without a row here: 'no'"]


def test_what_the_model_does_not_read_is_said() -> None:
    found = dg.measure(of_tables(), (TABLE.assign(more=1), "ill"))
    assert found.notes == ["not read by the model: 'more'"]
    assert predict(of_tables(), TABLE.assign(more=1)).notes == ("not read by the model: 'more'",)


@pytest.mark.parametrize("run", [dg.measure, predict])
def test_what_does_not_fit_is_refused_unless_it_is_allowed(run: Any) -> None:
    model = of_tables()
    with pytest.raises(ValueError, match=r"data lacks 1 of the 2 columns that the model reads: 'site'"):
        run(model, TABLE[["age"]])
    with pytest.raises(ValueError, match=r"data lacks 1 of the 2 columns .*: 'age'\. To fill in .*\(allow=\)"):
        run(model, TABLE[["site"]])
    assert run(model, TABLE[["site"]], allow=["missing-columns"]).notes
    with pytest.raises(ValueError, match=r"data: column 'site': 6 of 6 rows hold 'c', which the model never saw"):
        run(model, TABLE.assign(site="c"))
    assert run(model, TABLE.assign(site="c"), allow=["new-categories"]).notes


def test_classes_that_the_model_does_not_know_are_refused_or_left_out() -> None:
    table = TABLE.assign(ill=["no", "no", "yes", "yes", "no", "maybe"])
    with pytest.raises(ValueError, match=r"data: column 'ill': 1 of 6 rows are of 'maybe', which the model cannot"):
        dg.measure(of_tables(), (table, "ill"))
    found = dg.measure(of_tables(), (table, "ill"), allow=["new-classes"])
    assert (found.accuracy, found.count) == (1.0, 5)
    with pytest.raises(ValueError, match=r"column 'ill' has no value in 1 of 6 rows.*cannot be scored"):
        dg.measure(of_tables(), (TABLE.assign(ill=["no", "no", "yes", "yes", "no", None]), "ill"))


def test_genes_of_cells_are_found_by_name() -> None:
    model, data = of_cells(), cells()
    for genes in (["g0", "g1", "g2"], ["g2", "g1", "g0"], ["g1", "g2", "g0"]):
        permuted = data[:, genes].copy()
        assert dg.measure(model, (permuted, "type")).accuracy == 1.0
        assert predict(model, permuted).labels == ["B", "T", "T", "B"]
    with pytest.raises(ValueError, match="data lacks 1 of the 3 genes that the model reads: 'g1'"):
        dg.measure(model, data[:, ["g0", "g2"]].copy())
    assert dg.measure(model, (data[:, ["g2", "g0"]].copy(), "type"), allow=["missing-columns"]).accuracy == 1.0


def test_cells_without_a_type_are_left_out_and_counted() -> None:
    data = cells()
    data.obs["type"] = pd.Categorical(["B", None, "T", "B"])
    found = dg.measure(of_cells(), (data, "type"))
    assert (found.accuracy, found.count) == (1.0, 3)
    assert found.notes == ["1 of 4 cells have no 'type' and are left out"]


def test_data_without_names_are_taken_as_they_are() -> None:
    model = of_tables()
    rows = torch.tensor([[20.0, 1.0, 0.0], [70.0, 0.0, 1.0]])
    assert dg.measure(model, (rows, torch.tensor([0, 1]))).accuracy == 1.0
    with pytest.raises(ValueError, match="leave it out"):
        dg.measure(model, rows, allow=["missing-columns"])
    put_schema_(model, None)
    with pytest.raises(ValueError, match="leave it out"):
        dg.measure(model, TABLE[["age"]], allow=["missing-columns"])
