"""Callbacks follow a run of `fit`, and may stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dynamicgate as dg
from dynamicgate.training import Callback, History, RunInfo
from dynamicgate.training.callbacks import numbers_of
from tests.training.easy import blobs, dense, differences, gated


class Recorder(Callback):
    """Writes down what it hears, and asks to stop at a step."""

    def __init__(self, stop_at: int | None = None, on: str = "loss") -> None:
        self.stop_at, self.on = stop_at, on
        self.started: list[RunInfo] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.ended: list[History] = []

    def on_start(self, run: RunInfo) -> None:
        self.started.append(run)

    def on_log(self, row: dict[str, float], step: int) -> bool | None:
        self.rows.append((step, row))
        return self.stop_at is not None and step >= self.stop_at and self.on in row

    def on_end(self, history: History) -> None:
        self.ended.append(history)


def run(model: Any, callback: Callback, **options: Any) -> History:
    settings = {"epochs": 4, "batch": 40, "valid": blobs(60, seed=1), "show": False, **options}
    return dg.fit(model, blobs(), callbacks=[callback], **settings)


def test_a_callback_hears_the_start_every_row_of_the_log_and_the_end() -> None:
    heard = Recorder()
    model = gated()
    history = run(model, heard, budget=dg.Budget(target=0.6))
    assert [step for step, _ in heard.rows] == [row["step"] for row in history.log]
    assert heard.started[0].model is model
    assert (heard.started[0].step, heard.started[0].steps, heard.started[0].steps_per_epoch) == (0, 24, 6)
    assert heard.started[0].settings["batch"] == 40
    assert heard.started[0].settings["macs"] == 0.6
    assert heard.ended == [history]
    row = heard.rows[0][1]
    assert row["loss"] == history.log[0]["loss"]
    assert row["sites/layers.1/g"] == history.log[0]["sites"]["layers.1"]["g"]
    valid = [row for _, row in heard.rows if "valid/accuracy" in row]
    assert [row["valid/accuracy"] for row in valid] == [row["valid"]["accuracy"] for row in history.log if row["valid"]]
    assert all(isinstance(value, float) for _, row in heard.rows for value in row.values())


def test_a_callback_changes_nothing_about_the_result() -> None:
    alone, heard = dense(), dense()
    dg.fit(alone, blobs(), valid=blobs(60, seed=1), epochs=4, batch=40, show=False)
    run(heard, Recorder())
    assert not differences(alone.state_dict(), heard.state_dict())


def test_a_callback_stops_training_after_its_step_and_the_gates_still_meet_the_budget() -> None:
    heard, model = Recorder(stop_at=8), gated()
    history = run(model, heard, budget=dg.Budget(target=0.6), epochs=20)
    assert (history.steps, history.stopped_early) == (8, True)
    assert heard.ended == [history]
    assert dg.measure(model, blobs(60, seed=1)).relative == pytest.approx(0.6, abs=0.02)


def test_a_callback_stops_training_after_a_validation() -> None:
    history = run(dense(), Recorder(stop_at=12, on="valid/loss"))
    assert (history.steps, history.stopped_early) == (12, True)


def test_a_run_that_was_stopped_stays_stopped_when_it_is_continued(tmp_path: Path) -> None:
    run(dense(), Recorder(stop_at=8), out=tmp_path)
    later = Recorder()
    history = run(dense(), later, out=tmp_path)
    assert (history.steps, history.stopped_early) == (8, True)
    assert later.started[0].step == 8
    assert not later.rows


def test_what_a_callback_raises_ends_the_run() -> None:
    class Broken(Callback):
        def on_log(self, row: dict[str, float], step: int) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(dense(), Broken())


def test_what_is_not_a_callback_is_refused_before_training() -> None:
    with pytest.raises(TypeError, match=r"instances of dynamicgate\.training\.Callback"):
        run(dense(), print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"instances of dynamicgate\.training\.Callback"):
        run(dense(), Recorder)  # type: ignore[arg-type]


def test_numbers_of_a_row_are_flat() -> None:
    row = {"a": 1, "b": None, "c": {"x.y": {"p": 0.5}, "n": None}, "d": [0.1, 0.2], "masks": "f00"}
    assert numbers_of(row) == {"a": 1.0, "c/x.y/p": 0.5, "d/0": 0.1, "d/1": 0.2}
