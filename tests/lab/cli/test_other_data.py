"""A model meets data it was not trained on: the right answer or a clear refusal, never a lower number in silence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamicgate.io.model_file import schema_in
from dynamicgate.lab.cli import main

pd = pytest.importorskip("pandas")

TRAIN = ["--hidden", "16", "--epochs", "10", "--budget", "0.6", "--model", "gate"]
SITES = ("Kyoto", "Lima", "Oslo")
KINDS = ("high", "low", "mid")


def patients(rows: int = 300) -> Any:
    """A table whose classes follow from a number and a category, so that a permuted column is a worse answer."""
    rng = np.random.default_rng(0)
    age, weight, site = rng.normal(50, 9, rows), rng.normal(70, 12, rows), rng.integers(0, 3, rows)
    kind = np.where(site == 0, "low", np.where(age > 50, "high", "mid"))
    return pd.DataFrame(
        {"id": np.arange(rows), "age": age.round(2), "weight": weight.round(2), "smoker": rng.random(rows) < 0.5,
         "site": np.array(SITES)[site], "outcome": kind}
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with full.csv, and the model that was trained on it."""
    folder = tmp_path_factory.mktemp("own")
    patients().to_csv(folder / "full.csv", index=False)
    out = folder / "run"
    command = ["train", "--data", str(folder / "full.csv"), "--target", "outcome", "--data-option", "drop=id"]
    assert main([*command, *TRAIN, "--out", str(out)]) == 0
    return folder, out / "model.safetensors"


def measured(model: Path, table: Any, folder: Path, *more: str) -> dict[str, Any]:
    path = folder / "new.csv"
    table.to_csv(path, index=False)
    assert main(["measure", str(model), "--data", str(path), "--out", str(folder / "found.json"), *more]) == 0
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def refused(model: Path, table: Any, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    path = folder / "new.csv"
    table.to_csv(path, index=False)
    capsys.readouterr()
    assert main(["measure", str(model), "--data", str(path), *more]) == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def expected(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = measured(trained[1], patients(), tmp_path_factory.mktemp("expected"))
    run = json.loads((trained[1].parent / "run.json").read_text())
    assert found["quality"] == run["quality"], "without --target and drop=id, which the model knows"
    assert found["quality"]["accuracy"] > 0.7, "the model must have learned, or nothing could get worse"
    return found


def test_the_file_says_what_the_model_knows(trained: tuple[Path, Path]) -> None:
    schema = schema_in(trained[1])
    assert schema is not None
    assert schema.feature_names == ("age", "weight", "smoker", "site=Kyoto", "site=Lima", "site=Oslo")
    assert (schema.kind, schema.task, schema.classes, schema.target) == ("table", "classification", KINDS, "outcome")
    assert (schema.source, schema.rows, schema.budget) == ("full", 204, 0.6)
    assert schema.budget_unit == "executed MACs per sample, as a fraction of the dense network asked for"
    assert schema.dense_macs == 6 * 16 + 16 * 3


def test_shuffled_columns_give_the_same_answer(
    trained: tuple[Path, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    table = patients()
    found = measured(trained[1], table[list(table.columns[::-1])], tmp_path)
    assert {key: found[key] for key in ("quality", "macs")} == {key: expected[key] for key in ("quality", "macs")}


def test_a_class_without_rows_does_not_move_the_others(trained: tuple[Path, Path], tmp_path: Path) -> None:
    table = patients()
    everything = measured(trained[1], table, tmp_path, "--part", "all")
    lows, rest = (table[table["outcome"] == "low"], table[table["outcome"] != "low"])
    hits = [
        measured(trained[1], part, tmp_path, "--part", "all")["quality"]["accuracy"] * len(part)
        for part in (lows, rest)
    ]
    assert sum(hits) == pytest.approx(everything["quality"]["accuracy"] * len(table))
    found = measured(trained[1], rest, tmp_path, "--part", "all")
    assert found["notes_on_data"][0] == "classes of the model without a row here: 'low'"
    assert found["count"] == len(rest)


def test_a_renamed_category_is_refused_and_allowed_by_name(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = patients()
    renamed = table.assign(site=table["site"].replace("Kyoto", "Paris"))
    count = (table["site"] == "Kyoto").sum()
    said = refused(trained[1], renamed, tmp_path, capsys)
    assert f"column 'site': {count} of 300 rows hold 'Paris', which the model never saw" in said
    assert "--allow new-categories" in said
    found = measured(trained[1], renamed, tmp_path, "--allow", "new-categories")
    assert any("read as none of the known categories" in note for note in found["notes_on_data"])


def test_a_category_that_does_not_occur_does_not_move_the_others(trained: tuple[Path, Path], tmp_path: Path) -> None:
    table = patients()
    here = table[table["site"] != "Kyoto"]
    found = measured(trained[1], here, tmp_path, "--part", "all")
    everything = measured(trained[1], table, tmp_path, "--part", "all")
    there = measured(trained[1], table[table["site"] == "Kyoto"], tmp_path, "--part", "all")
    hits = sum(x["quality"]["accuracy"] * x["count"] for x in (found, there))
    assert hits == pytest.approx(everything["quality"]["accuracy"] * 300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="age"), "lacks 1 of the 4 columns that the model reads: 'age'; the model"),
        (lambda t: t.assign(age=t["age"].where(t.index != 3)), "column 'age' has no value in 1 of 300 rows"),
        (lambda t: t.assign(age="old"), "column 'age' holds text ('old'), and the model reads numbers"),
        (lambda t: t.assign(outcome=t["outcome"].replace("low", "none")), "are of 'none', which the model cannot"),
        (lambda t: t.drop(columns="outcome"), "has no column 'outcome' with the classes"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(
    change: Any, message: str, trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(trained[1], change(patients()), tmp_path, capsys)


def test_rows_of_new_classes_are_left_out_where_allowed(trained: tuple[Path, Path], tmp_path: Path) -> None:
    table = patients()
    lows = (table["outcome"] == "low").sum()
    renamed = table.assign(outcome=table["outcome"].replace("low", "none"))
    found = measured(trained[1], renamed, tmp_path, "--allow", "new-classes", "--part", "all")
    assert found["count"] == 300 - lows
    assert f"{lows} of 300 rows are of 'none', which the model cannot answer: left out" in found["notes_on_data"][0]


def test_choices_of_the_training_cannot_be_made_again(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(trained[1], patients(), tmp_path, capsys, "--data-option", "missing=median")
    assert "missing is a choice that the model was trained with" in said
    assert "'everything' cannot be allowed" in refused(
        trained[1], patients(), tmp_path, capsys, "--allow", "everything"
    )


def test_a_file_without_names_is_compared_by_count_and_says_so(trained: tuple[Path, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "new.npz", x=rng.normal(size=(60, 6)), y=np.arange(60) % 3)
    out = tmp_path / "found.json"
    assert main(["measure", str(trained[1]), "--data", str(tmp_path / "new.npz"), "--out", str(out)]) == 0
    assert "compared by count only (6)" in json.loads(out.read_text())["notes_on_data"][0]
    np.savez(tmp_path / "new.npz", x=rng.normal(size=(60, 7)), y=np.arange(60) % 3)
    assert main(["measure", str(trained[1]), "--data", str(tmp_path / "new.npz")]) == 2


def test_the_parts_of_a_split_column_are_kept_from_another_path(tmp_path: Path) -> None:
    parts = np.array(["train", "train", "valid", "test", "test"])[np.arange(300) % 5]
    table = patients().assign(part=parts)
    table.to_csv(tmp_path / "a.csv", index=False)
    command = ["train", "--data", str(tmp_path / "a.csv"), "--target", "outcome", *TRAIN]
    assert main([*command, "--data-option", "drop=id,split_column=part", "--out", str(tmp_path / "run")]) == 0
    model = tmp_path / "run" / "model.safetensors"
    found = measured(model, table, tmp_path)
    assert found["count"] == 120
    assert found["quality"] == json.loads((model.parent / "run.json").read_text())["quality"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """AnnData of three kinds of cells, and the model that was trained on it."""
    ad = pytest.importorskip("anndata")
    pytest.importorskip("scanpy")
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 240)
    rates = rng.gamma(0.6, 2.0, (3, 40))
    found = ad.AnnData(rng.poisson(rates[kind]).astype(np.float32))
    found.obs["kind"] = np.array(["B", "Mono", "T"])[kind]
    found.var_names = [f"G{number}" for number in range(40)]
    folder = tmp_path_factory.mktemp("cells")
    found.write_h5ad(folder / "cells.h5ad")
    command = ["train", "--data", str(folder / "cells.h5ad"), "--target", "kind", *TRAIN]
    assert main([*command, "--data-option", "preprocess=counts", "--out", str(folder / "run")]) == 0
    return found, folder / "run" / "model.safetensors"


def of_cells(model: Path, data: Any, folder: Path, *more: str) -> dict[str, Any]:
    data.write_h5ad(folder / "new.h5ad")
    command = ["measure", str(model), "--data", str(folder / "new.h5ad"), "--out", str(folder / "found.json")]
    assert main([*command, *more]) == 0
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def test_permuted_genes_give_the_same_answer(cells: tuple[Any, Path], tmp_path: Path) -> None:
    data, model = cells
    run = json.loads((model.parent / "run.json").read_text())
    assert run["quality"]["accuracy"] > 0.8
    permuted = data[:, np.random.default_rng(1).permutation(data.n_vars)].copy()
    assert of_cells(model, permuted, tmp_path)["quality"] == run["quality"]


def test_the_report_shows_genes_by_their_symbols(cells: tuple[Any, Path], tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    data = cells[0].copy()
    data.var["symbol"] = [f"CD{number}" for number in range(data.n_vars)]
    data.var_names = [f"ENSG{number:05}" for number in range(data.n_vars)]
    data.write_h5ad(tmp_path / "cells.h5ad")
    command = [
        "compare",
        "--data",
        str(tmp_path / "cells.h5ad"),
        "--target",
        "kind",
        "--models",
        "gate",
        "--seeds",
        "1",
    ]
    assert main([*command, "--hidden", "16", "--epochs", "2", "--budget", "0.6", "--out", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = re.findall(r'<th scope="row">([^<]*)</th><td>[+−]', page)
    assert shown
    assert all(re.fullmatch(r"CD\d+", name) for name in shown), shown


def test_a_missing_cell_type_does_not_move_the_others(cells: tuple[Any, Path], tmp_path: Path) -> None:
    data, model = cells
    hits = [
        (found := of_cells(model, data[keep].copy(), tmp_path, "--part", "all"))["quality"]["accuracy"] * found["count"]
        for keep in (data.obs["kind"] != "B", data.obs["kind"] == "B", data.obs["kind"] != "")
    ]
    assert hits[0] + hits[1] == pytest.approx(hits[2])


def test_missing_genes_are_refused_or_filled_in_where_allowed(
    cells: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = cells
    fewer = data[:, 2:].copy()
    fewer.write_h5ad(tmp_path / "fewer.h5ad")
    assert main(["measure", str(model), "--data", str(tmp_path / "fewer.h5ad")]) == 2
    said = capsys.readouterr().err
    assert "lacks 2 of the 40 genes that the model reads: 'G0', 'G1'." in said
    assert "--allow missing-columns" in said
    found = of_cells(model, fewer, tmp_path, "--allow", "missing-columns")
    assert "filled in 2 of the 40 genes that the model reads: 'G0', 'G1'" in found["notes_on_data"]


def test_cells_on_another_scale_are_refused(
    cells: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = cells
    scaled = data.copy()
    scaled.X = (data.X - data.X.mean(0)) / 2
    scaled.write_h5ad(tmp_path / "scaled.h5ad")
    assert main(["measure", str(model), "--data", str(tmp_path / "scaled.h5ad")]) == 2
    assert "holds negative values" in capsys.readouterr().err
    twice = data.copy()
    twice.X = np.log1p(data.X / data.X.sum(1, keepdims=True) * 1e6)
    twice.write_h5ad(tmp_path / "million.h5ad")
    assert main(["measure", str(model), "--data", str(tmp_path / "million.h5ad")]) == 2
    assert "stand for 1,000,000 counts" in capsys.readouterr().err


def test_what_was_normalised_before_is_read_as_it_is(cells: tuple[Any, Path], tmp_path: Path) -> None:
    data, model = cells
    logs = data.copy()
    logs.X = np.log1p(data.X / data.X.sum(1, keepdims=True) * 1e4)
    assert of_cells(model, logs, tmp_path)["quality"] == of_cells(model, data, tmp_path)["quality"]
