"""`dynamicgate bench`: the table, the file beside the model, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import Column, Schema
from dynamicgate.lab.cli import bench_rows, main
from dynamicgate.lab.cli.bench import Bench

QUICK = ["--batches", "1,16", "--seconds", "0.02", "--no-torch-compile"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = dg.nn.GatedMLP((64, 32, 10), dg.GateConfig(block=16), normalize=dg.nn.Normalize(4.0, 6.0))
    dg.save(model, tmp_path / "model.safetensors", notes={"settings": {"data": "digits", "seed": 0}})
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("data", [[], ["--data", "random"], ["--data", "digits"]])
def test_bench_prints_the_plan_and_a_table_and_writes_the_times(
    saved: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(saved), *data, *QUICK]) == 0
    printed = capsys.readouterr().out
    for word in (
        "choice",
        "chosen us",
        "dense us",
        "gates in torch us",
        "ours us",
        "kernel gain",
        "gate gain",
        "wrote",
    ):
        assert word in printed
    found = json.loads((saved.parent / "timing.json").read_text(encoding="utf-8"))
    assert [row["batch"] for row in found["rows"]] == [1, 16]
    assert all(row[name] > 0 for row in found["rows"] for name in ("dense", "gates in torch", "ours"))
    assert found["meta"]["versions"]["torch"] == torch.__version__
    assert [regime["batch"] for regime in found["plan"]["chains"][0]] == [1, 16]


def test_bench_times_a_model_without_gates_and_writes_to_the_given_file(tmp_path: Path) -> None:
    dg.save(dg.nn.GatedMLP((12, 8, 3)), tmp_path / "model.safetensors")
    out = tmp_path / "elsewhere" / "times.json"
    assert main(["bench", str(tmp_path / "model.safetensors"), *QUICK, "--out", str(out)]) == 0
    assert set(json.loads(out.read_text(encoding="utf-8"))["rows"][0]) == {
        *("batch", "dense", "dense, compiled", "ours", "kernel_gain", "gate_gain")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "one"], "--batches takes whole numbers separated by commas, received 'one'"),
        (["--batches", "0,4"], "batches must be ascending numbers of rows, at least 1"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_bench_reports_wrong_options(
    saved: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(saved), *QUICK, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_bench_reports_a_missing_model_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path / "none.safetensors"), *QUICK]) == 2
    assert "no file at" in capsys.readouterr().err


def test_bench_reports_data_that_does_not_fit_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dg.save(dg.nn.GatedMLP((12, 8, 3)), tmp_path / "model.safetensors")
    assert main(["bench", str(tmp_path / "model.safetensors"), "--data", "digits", *QUICK]) == 2
    assert "cannot read the example" in capsys.readouterr().err


def test_bench_finds_columns_by_name_and_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": range(40), "site": ["x", "y"] * 20, "b": range(100, 140), "kind": ["no", "yes"] * 20})
    columns = (Column("a"), Column("site", ("x", "y")), Column("b"))
    model = dg.nn.GatedMLP((4, 8, 2))
    path = tmp_path / "model.safetensors"
    dg.save(model, path, schema=Schema("table", 4, 2, columns=columns, classes=("no", "yes"), target="kind"))

    def rows(found: Any) -> torch.Tensor:
        found.to_csv(tmp_path / "new.csv", index=False)
        return Bench(path, data=str(tmp_path / "new.csv"))._rows(dg.load(path))

    torch.testing.assert_close(rows(table[["kind", "b", "site", "a"]]), rows(table))
    capsys.readouterr()
    assert rows(table.assign(more=1)).shape == rows(table).shape
    assert capsys.readouterr().out.startswith("not read by the model: 'more'\n")
    table.drop(columns="b").to_csv(tmp_path / "new.csv", index=False)
    assert main(["bench", str(path), "--data", str(tmp_path / "new.csv"), *QUICK]) == 2
    assert "lacks 1 of the 3 columns that the model reads: 'b'" in capsys.readouterr().err


def test_options_of_a_dataset_are_refused_where_none_is_read(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(saved), *QUICK, "--data", "random", "--target", "kind"]) == 2
    assert "--target means nothing for random inputs" in capsys.readouterr().err


def test_a_model_that_dense_beats_in_every_timing_says_what_to_do() -> None:
    rows = [{"batch": batch, "gate_gain": gain} for batch, gain in ((1, [0.9, 1.0, 1.1]), (16, [0.3, 0.4, 0.5]))]
    said = bench_rows._verdict(rows)
    assert "slower than the dense network at its best at batch 16: run that one there" in said
    assert bench_rows._verdict(rows[:1]) == ""
