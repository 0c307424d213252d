"""Callbacks of `fit` that write a run's numbers where people look at them: a CSV file, TensorBoard, MLflow, or any
function with the signature of `wandb.Run.log`.

Every row is written as it comes. A run that is continued goes on in the same place; rows that come again replace those
of the earlier call in CSV files and TensorBoard, and are there twice, with the same numbers, in MLflow.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dynamicgate.files import read_json, write_text
from dynamicgate.training import Callback, History, RunInfo

MLFLOW_BATCH = 1000  # metrics that MLflow takes at once


class FunctionLogger(Callback):
    """Calls `log(row, step=step)` for every row, as `wandb.Run.log` takes it, with names such as `valid/accuracy`.

    >>> run = wandb.init(project="gates")
    >>> dg.fit(model, train, callbacks=[FunctionLogger(run.log)])
    """

    def __init__(self, log: Callable[..., Any]) -> None:
        """log: takes a dict of numbers, and the step by name."""
        self.log = log

    def on_log(self, row: dict[str, float], step: int) -> None:
        """Pass the row on."""
        self.log(dict(row), step=step)

    def on_end(self, history: History) -> None:
        """The last validation, of the calibrated model, as `final/accuracy` and so on."""
        if history.final is not None:
            self.log(_final(history), step=history.steps)


class CsvLogger(Callback):
    """A table with a column for each number; what a row does not have is empty there."""

    def __init__(self, path: str | Path) -> None:
        """path: of the file, which is replaced unless a run is continued."""
        self.path = Path(path)
        self.rows: list[dict[str, str]] = []
        self.columns: list[str] = ["step"]

    def on_start(self, run: RunInfo) -> None:
        """Begin, or take up what a run that is continued had written until then."""
        self.rows, self.columns = [], ["step"]
        if run.step and self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                found = csv.DictReader(file)
                self.rows = [row for row in found if int(row["step"]) <= run.step]
                self.columns = list(found.fieldnames or self.columns)
        self._rewrite()

    def on_log(self, row: dict[str, float], step: int) -> None:
        """Add a line; a number that is new gets a column, for which the file is written again."""
        texts = {name: repr(value) for name, value in row.items() if name != "step"} | {"step": str(step)}
        self.rows.append(texts)
        new = [name for name in texts if name not in self.columns]
        if new:
            self.columns += new
            self._rewrite()
        else:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text([texts]))

    def _rewrite(self) -> None:
        write_text(self.path, self._text([dict(zip(self.columns, self.columns, strict=True)), *self.rows]))

    def _text(self, rows: Iterable[Mapping[str, str]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


class TensorBoardLogger(Callback):
    """Event files for TensorBoard: `tensorboard --logdir FOLDER`. Needs the extra `log`."""

    def __init__(self, folder: str | Path) -> None:
        """folder: for the event files, one for each call of `fit`."""
        self._open = _summary_writer()
        self.folder = Path(folder)
        self.writer: Any = None

    def on_start(self, run: RunInfo) -> None:
        """Open a file; TensorBoard hides what earlier ones hold of the steps that come again."""
        self.writer = self._open(str(self.folder), purge_step=run.step + 1 if run.step else None)
        self.writer.add_text("settings", f"```\n{json.dumps(dict(run.settings), indent=1)}\n```", run.step)

    def on_log(self, row: dict[str, float], step: int) -> None:
        """Write the numbers of a row."""
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def on_end(self, history: History) -> None:
        """Write the last validation, and close the file."""
        for name, value in _final(history).items():
            self.writer.add_scalar(name, value, history.steps)
        self.writer.close()


class MLflowLogger(Callback):
    """A run in MLflow. Needs the extra `log`."""

    def __init__(self, experiment: str = "dynamicgate", *, uri: str | None = None, run_name: str | None = None) -> None:
        """experiment: made if it does not exist. uri: of the tracking server; None is what MLflow is set to, usually by
        the environment variable MLFLOW_TRACKING_URI."""
        self.client = _mlflow_client(uri)
        self.experiment, self.run_name = experiment, run_name
        self.run_id = ""

    def on_start(self, run: RunInfo) -> None:
        """Create a run; one that is continued has left its id in its folder."""
        known = None if run.out is None else run.out / "mlflow.json"
        if run.step and known is not None and known.exists():
            self.run_id = read_json(known)["run_id"]
            self.client.update_run(self.run_id, status="RUNNING")
            return
        found = self.client.get_experiment_by_name(self.experiment)
        parent = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        self.run_id = self.client.create_run(parent, run_name=self.run_name).info.run_id
        for name, value in run.settings.items():
            self.client.log_param(self.run_id, name, value)
        if known is not None:
            write_text(known, json.dumps({"run_id": self.run_id}))

    def on_log(self, row: dict[str, float], step: int) -> None:
        """Send the numbers of a row."""
        self._send(row, step)

    def on_end(self, history: History) -> None:
        """Send the last validation, and end the run."""
        self._send(_final(history), history.steps)
        self.client.set_terminated(self.run_id)

    def _send(self, row: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in row.items() if name != "step"]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MLFLOW_BATCH])


def _final(history: History) -> dict[str, float]:
    return {f"final/{name}": value for name, value in (history.final or {}).items()}


def _summary_writer() -> Callable[..., Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoardLogger needs TensorBoard: pip install 'dynamicgate[log]'") from error
    return SummaryWriter


def _mlflow_client(uri: str | None) -> Any:
    try:
        from mlflow import MlflowClient, MlflowException
    except ImportError as error:
        raise ImportError("MLflowLogger needs MLflow: pip install 'dynamicgate[log]'") from error
    try:
        return MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise ValueError(f"MLflow cannot write to {uri or 'its default place'}: {error}") from error


LOGGERS: Mapping[str, Callable[[Path], Callback]] = MappingProxyType(
    {
        "csv": lambda folder: CsvLogger(folder / "log.csv"),
        "tensorboard": lambda folder: TensorBoardLogger(folder / "tensorboard"),
        "mlflow": lambda folder: MLflowLogger(run_name=folder.name),
    }
)


def loggers_for(names: Iterable[str], folder: Path) -> list[Callback]:
    """The loggers of these names, for a run in a folder."""
    asked = list(dict.fromkeys(names))
    unknown = [name for name in asked if name not in LOGGERS]
    if unknown:
        raise ValueError(f"unknown loggers {', '.join(unknown)}; choose from {', '.join(LOGGERS)}")
    return [LOGGERS[name](folder) for name in asked]
