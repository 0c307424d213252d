"""Loggers write every number of a run once, also when it is interrupted and continued."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dynamicgate as dg
from dynamicgate.integrations import CsvLogger, FunctionLogger, MLflowLogger, TensorBoardLogger, loggers_for
from dynamicgate.lab.cli import main as command_line
from dynamicgate.training import Callback, History
from tests.training.easy import blobs, gated

Rows = list[tuple[str, int, float]]


class Interrupt(Callback):
    """Presses Ctrl-C in the middle of a run, after the checkpoint of an earlier step."""

    def on_log(self, row: dict[str, float], step: int) -> None:
        if step == 20:
            raise KeyboardInterrupt


def train(out: Path | None, *callbacks: Callback) -> History:
    budget = dg.Budget(target=0.5)
    return dg.fit(
        gated(), blobs(), valid=blobs(90, seed=2), budget=budget, epochs=4, batch=32, out=out, checkpoint_seconds=0,
        callbacks=callbacks, show=False,
    )  # fmt: skip


def logged(history: History) -> Rows:
    """What a logger should hold, in any order."""
    found: Rows = []
    for row in history.log:
        for name, value in flat(row).items():
            if name != "step":
                found.append((name, row["step"], value))
    return sorted(found)


def flat(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[prefix + key] = float(value)
    return found


def final(history: History) -> Rows:
    assert history.final is not None
    return [(f"final/{name}", history.steps, value) for name, value in history.final.items()]


def run_and_continue(out: Path, make: Any) -> History:
    with pytest.raises(KeyboardInterrupt):
        train(out, make(), Interrupt())
    return train(out, make())


def test_csv_has_a_line_for_each_row_also_after_an_interruption(tmp_path: Path) -> None:
    history = run_and_continue(tmp_path, lambda: CsvLogger(tmp_path / "log.csv"))
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [row["step"] for row in history.log]
    found = [
        (name, int(row["step"]), float(text)) for row in rows for name, text in row.items() if text and name != "step"
    ]
    assert sorted(found) == logged(history)


def test_a_function_like_that_of_wandb_hears_of_every_row() -> None:
    found: Rows = []

    def log(data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is not None
        found.extend((name, step, value) for name, value in data.items() if name != "step")

    history = train(None, FunctionLogger(log))
    assert sorted(found) == sorted(logged(history) + final(history))


def test_tensorboard_reads_every_number_once_also_after_an_interruption(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = run_and_continue(tmp_path / "run", lambda: TensorBoardLogger(tmp_path / "events"))
    events = EventAccumulator(str(tmp_path / "events"), {"scalars": 0})
    events.Reload()
    found = [(name, one.step, one.value) for name in events.Tags()["scalars"] for one in events.Scalars(name)]
    expected = sorted(logged(history) + final(history))
    assert [(name, step) for name, step, _ in sorted(found)] == [(name, step) for name, step, _ in expected]
    values = [value for *_, value in sorted(found)]
    assert values == pytest.approx([value for *_, value in expected], rel=1e-6), "TensorBoard stores float32"


def test_mlflow_has_one_run_with_every_number_also_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the server that needs no server
    uri = (tmp_path / "mlruns").as_uri()
    history = run_and_continue(tmp_path / "run", lambda: MLflowLogger("clouds", uri=uri, run_name="first"))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("clouds")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert run.data.params["batch"] == "32"
    histories = [(name, client.get_metric_history(run.info.run_id, name)) for name in run.data.metrics]
    found = {(name, one.step, one.value) for name, history_of in histories for one in history_of}
    assert found == {*logged(history), *final(history)}


def test_the_command_logs_where_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    words = ["train", "--data", "digits", "--model", "dense", "--epochs", "1", "--hidden", "8", "--out"]
    assert command_line([*words, str(tmp_path / "a"), "--log", "csv, tensorboard"]) == 0
    assert (tmp_path / "a" / "log.csv").read_text().startswith("step,")
    assert list((tmp_path / "a" / "tensorboard").iterdir())
    assert command_line([*words, str(tmp_path / "b"), "--log", "csv,paper"]) == 2
    assert "unknown loggers paper; choose from csv, tensorboard, mlflow" in capsys.readouterr().err
    words[words.index("dense")] = "cascade"
    assert command_line([*words, str(tmp_path / "c"), "--log", "csv"]) == 2
    assert "a cascade trains several networks" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_an_error_that_says_what_to_install(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[log\]'"):
        loggers_for([name], tmp_path)


def test_settings_can_be_read_by_people(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, CsvLogger(out / "log.csv"))
    assert not [path for path in out.iterdir() if path.suffix == ".json"], "only MLflow needs to remember its run"
    assert json.loads((out / "log.jsonl").read_text().splitlines()[0])["step"] == 1
