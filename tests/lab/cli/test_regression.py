"""`--task regression`: a table with a measurement, from training to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynamicgate as dg
from dynamicgate.data import schema_of
from dynamicgate.lab.cli import main

pd = pytest.importorskip("pandas")

TRAIN = ["--target", "price", "--hidden", "16", "--epochs", "30", "--budget", "0.6"]


def houses(rows: int = 300) -> Any:
    """Prices of some 200,000, so that a network that learns them unscaled learns nothing in a few epochs."""
    rng = np.random.default_rng(0)
    area, town = rng.uniform(40, 160, rows), rng.integers(0, 3, rows)
    price = 2000 * area * (1 + town / 4) + rng.normal(0, 4000, rows)
    others = {f"noise{k}": rng.normal(size=rows) for k in range(8)}
    return pd.DataFrame({"area": area, **others, "town": np.array(["a", "b", "c"])[town], "price": price.round()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with houses.csv and the run."""
    folder = tmp_path_factory.mktemp("houses")
    houses().to_csv(folder / "houses.csv", index=False)
    out = ["--task", "regression", "--out", str(folder / "run")]
    assert main(["train", "--data", str(folder / "houses.csv"), *TRAIN, *out]) == 0
    return folder


def test_a_regression_is_trained_and_measured_in_the_units_of_the_target(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = json.loads((trained / "run" / "run.json").read_text())
    assert run["quality"].keys() == {"rmse", "mae", "r2"}
    assert run["quality"]["r2"] > 0.8
    assert 1_000 < run["quality"]["mae"] <= run["quality"]["rmse"] < 30_000
    assert run["macs"]["relative"] == pytest.approx(0.6, abs=0.02)
    model = str(trained / "run" / "model.safetensors")
    new = houses()[houses().columns[::-1]]
    new.to_csv(trained / "new.csv", index=False)
    found = trained / "found.json"
    assert main(["measure", model, "--data", str(trained / "new.csv"), "--out", str(found)]) == 0
    assert json.loads(found.read_text())["quality"] == pytest.approx(run["quality"])
    assert "r2" in capsys.readouterr().out
    whole = dg.measure(dg.load(model), (new, "price"))
    assert whole.quality["r2"] > 0.8


def test_predictions_are_values_of_the_target(trained: Path) -> None:
    model, out = str(trained / "run" / "model.safetensors"), trained / "out.csv"
    schema = schema_of(dg.load(model))
    assert schema is not None
    assert (schema.task, schema.outputs, schema.classes, schema.target) == ("regression", 1, ("price",), "price")
    houses().drop(columns="price").to_csv(trained / "new.csv", index=False)
    assert main(["predict", model, str(trained / "new.csv"), "--out", str(out)]) == 0
    found = pd.read_csv(out)
    assert list(found.columns) == ["row", "cost", "value(price)"]
    assert np.corrcoef(found["value(price)"], houses()["price"])[0, 1] > 0.9
    assert abs(found["value(price)"].mean() / houses()["price"].mean() - 1) < 0.1


def test_the_same_command_finds_the_finished_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = json.loads((trained / "run" / "run.json").read_text())
    out = ["--task", "regression", "--out", str(trained / "run")]
    assert main(["train", "--data", str(trained / "houses.csv"), *TRAIN, *out]) == 0
    assert f"R2 {run['quality']['r2']:.4f}" in capsys.readouterr().out


def test_the_report_speaks_of_r2(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    command = ["compare", "--data", str(trained / "houses.csv"), *TRAIN, "--task", "regression", "--loss", "huber"]
    models = ["--models", "dense,small,gate", "--seeds", "2", "--out", str(trained / "compared")]
    assert main([*command, *models]) == 0
    printed = capsys.readouterr().out
    assert "R², %" in printed
    assert "RMSE" in printed
    page = (trained / "compared" / "report.html").read_text(encoding="utf-8")
    assert "R² against executed MACs" in page
    assert "% R², over 2 seeds" in page
    assert "correlation of absolute error and cost" in page
    assert "% accuracy" not in page
    assert "macro-F1, %" not in page


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "train a regression on it with --task regression"),
        (
            ["--task", "regression", "--target", "town"],
            "column 'town' holds text ('b'), and a regression needs numbers",
        ),
        (["--task", "regression", "--model", "staged"], "staged stops by how sure it is of a class"),
        (["--task", "regression", "--balanced"], "--balanced is for classes"),
        (["--task", "regression", "--distill-weight", "0.5"], "--distill-weight is for classes"),
        (["--target", "town", "--loss", "huber"], "--loss huber is for a regression: give --task regression"),
    ],
)
def test_what_cannot_be_meant_names_the_option(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = houses(120)
    table["town"] = table["town"].replace("c", "b")
    table.to_csv(tmp_path / "houses.csv", index=False)
    target = [] if "--target" in more else ["--target", "price"]
    out = ["--out", str(tmp_path / "run"), "--epochs", "1"]
    assert main(["train", "--data", str(tmp_path / "houses.csv"), *target, *more, *out]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("values", [np.arange(120) % 60, np.arange(120) / 8])
def test_numbers_with_many_values_are_no_classes_unless_one_says_so(
    values: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({"x": np.arange(120), "y": values}).to_csv(tmp_path / "t.csv", index=False)
    command = ["train", "--data", str(tmp_path / "t.csv"), "--target", "y", "--model", "dense", "--out"]
    assert main([*command, str(tmp_path / "a")]) == 2
    assert "--task regression" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "b"), "--task", "regression"]) == 0
