"""A run that was killed or interrupted resumes to the same bits."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dynamicgate as dg
from dynamicgate import Budget, fit
from dynamicgate.training import interrupt, read_log
from tests import forked
from tests.training.easy import blobs, dense, differences, gated, weights_in

SCRIPT = Path(__file__).parent / "train_run.py"


def start(out: Path, **settings: Any) -> forked.Program:
    return forked.start([str(SCRIPT), json.dumps({"out": str(out), **settings})])


def kill_at(process: forked.Program, log: Path, rows: int) -> None:
    """kill -9 as soon as the log has this many rows, in the middle of a step or between two."""
    while process.poll() is None:
        if log.exists() and log.read_text().count("\n") >= rows:
            process.kill()
            break
        time.sleep(0.001)
    assert process.wait().returncode == -signal.SIGKILL, "the run ended before it could be killed"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without interruption and without intermediate checkpoints."""
    out = tmp_path_factory.mktemp("uninterrupted")
    assert start(out, patience=4).wait().returncode == 0
    return out


@pytest.mark.slow
def test_the_uninterrupted_run_uses_early_stopping_and_calibration(uninterrupted: Path) -> None:
    summary = json.loads((uninterrupted / "summary.json").read_text())
    last = weights_in(uninterrupted / "last.safetensors")
    final = weights_in(uninterrupted / "final.safetensors")
    assert summary["stopped_early"]
    assert summary["steps"] == 9 * (summary["best"]["epoch"] + 1 + 4), "9 steps per epoch, 4 epochs after the best"
    assert differences(last, final), "the best weights are restored, not the last"
    best = weights_in(uninterrupted / "best.safetensors")
    assert differences(best, final) == ["layers.1.gate.net.1.bias", "layers.2.gate.net.1.bias"], (
        "only calibration changes them"
    )
    assert final["layers.1.gate.tau"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["early", "midway", "after the best epoch"])
def test_a_run_that_is_killed_and_restarted_ends_with_the_same_bits(
    moment: str, uninterrupted: Path, tmp_path: Path
) -> None:
    best = 10 * (json.loads((uninterrupted / "summary.json").read_text())["best"]["epoch"] + 1)  # in rows of the log
    rows = {"early": 7, "midway": best // 2 + 3, "after the best epoch": best + 4}[moment]
    kill_at(start(tmp_path, patience=4, checkpoint_seconds=0), tmp_path / "log.jsonl", rows)
    assert (tmp_path / "last.safetensors").exists()
    assert not (tmp_path / "final.safetensors").exists()
    assert start(tmp_path, patience=4, checkpoint_seconds=0).wait().returncode == 0
    for name in ("final.safetensors", "best.safetensors"):
        assert differences(weights_in(tmp_path / name), weights_in(uninterrupted / name)) == []
    assert (tmp_path / "log.jsonl").read_bytes() == (uninterrupted / "log.jsonl").read_bytes()
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(
        (uninterrupted / "summary.json").read_text()
    )


def options(out: Path, **changes: Any) -> dict[str, Any]:
    return {"epochs": 4, "batch": 30, "seed": 2, "out": out, "checkpoint_seconds": 0.0, "show": False, **changes}


def noisy() -> dg.nn.GatedMLP:
    return gated(dropout=0.2, train="bernoulli")


class StopAt:
    """Calls `send` in the middle of a step: after the backward pass, before the optimizer."""

    def __init__(self, step: int, send: Callable[[], None]) -> None:
        self.left, self.send = step, send

    def __enter__(self) -> None:
        self.handle = register_optimizer_step_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.send()

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


# 240 rows in batches of 30: an epoch is 8 steps; 8 is followed by validation, 32 is the last.
@pytest.mark.parametrize("step", [1, 8, 13, 32])
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["often", "never"])
def test_ctrl_c_in_the_middle_of_a_step_does_not_change_the_result(step: int, seconds: float, tmp_path: Path) -> None:
    def run(out: Path) -> tuple[dict[str, torch.Tensor], dg.training.History]:
        model = noisy()
        history = fit(
            model, blobs(), valid=blobs(60, seed=1), budget=Budget(target=0.6), patience=9,
            **options(out, checkpoint_seconds=seconds),
        )  # fmt: skip
        return model.state_dict(), history

    expected, history = run(tmp_path / "straight")
    with StopAt(step, ctrl_c), pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped")
    assert [row["step"] for row in read_log(tmp_path / "stopped" / "log.jsonl")][-1] == step
    continued, again = run(tmp_path / "stopped")
    assert differences(continued, expected) == []
    assert again.log == history.log
    assert (again.best, again.steps) == (history.best, history.steps)


def test_a_second_ctrl_c_does_not_wait_for_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "SECOND_PRESS", 0.0)

    def twice() -> None:
        ctrl_c()
        ctrl_c()
        raise AssertionError("the second Ctrl-C should have interrupted")

    with StopAt(3, twice), pytest.raises(KeyboardInterrupt):
        fit(dense(), blobs(), **options(tmp_path, checkpoint_seconds=1e9))
    assert not (tmp_path / "last.safetensors").exists()


def test_sigterm_acts_like_ctrl_c_only_with_the_handler_of_ctrl_c(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with StopAt(3, lambda: signal.raise_signal(signal.SIGTERM)), pytest.raises(KeyboardInterrupt):
            fit(dense(), blobs(), **options(tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        with StopAt(3, lambda: signal.raise_signal(signal.SIGTERM)):
            fit(dense(), blobs(), **options(tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_signal_handlers_are_restored_after_training(tmp_path: Path) -> None:
    with StopAt(3, ctrl_c), pytest.raises(KeyboardInterrupt):
        fit(dense(), blobs(), **options(tmp_path))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_calling_fit_again_after_the_end_restores_the_model_without_training(tmp_path: Path) -> None:
    def run() -> dict[str, torch.Tensor]:
        model = noisy()
        with StopAt(10**9, ctrl_c):
            fit(model, blobs(), valid=blobs(60, seed=1), budget=Budget(target=0.6), patience=2, **options(tmp_path))
        return model.state_dict()

    first = run()
    with StopAt(1, lambda: pytest.fail("it trained again")):
        second = run()
    assert differences(first, second) == []


def test_a_run_with_schedules_in_its_budget_can_be_continued(tmp_path: Path) -> None:
    def run() -> None:
        budget = dg.budget.OpenLoopBudget(
            form="linear", weight=dg.schedule.linear(0.0, 1.0), tau=dg.schedule.cosine(1.0, 0.5)
        )
        fit(gated(), blobs(), budget=budget, **options(tmp_path))

    with StopAt(3, ctrl_c), pytest.raises(KeyboardInterrupt):
        run()
    run()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with StopAt(5, ctrl_c), pytest.raises(KeyboardInterrupt):
        fit(gated(), blobs(), budget=Budget(target=0.6), **options(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 1e-3}, r"was made with lr=0.002, this run has lr=0.001"),
        ({"seed": 3}, r"seed=2, this run has seed=3"),
        ({"epochs": 5}, r"epochs=4, this run has epochs=5"),
        ({"batch": 31}, "batch=30"),
        ({"bf16": True}, "bf16=False"),
        ({"clip": 1.0}, "clip=None"),
        ({"class_weights": "balanced"}, "class_weights=None"),
        ({"budget": Budget(target=0.7)}, r"budget=\{'kind': 'Budget', .*'target': 0.6"),
        ({"budget": None}, r"budget=\{'kind': 'Budget', .*'target': 0.6"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(changes: dict[str, Any], named: str, stopped: Path) -> None:
    before = (stopped / "last.safetensors").read_bytes()
    with pytest.raises(ValueError, match=named) as caught:
        fit(gated(), blobs(), **{"budget": Budget(target=0.6), **options(stopped), **changes})
    assert str(stopped / "last.safetensors") in str(caught.value)
    assert "choose another output folder, or delete that file to start over" in str(caught.value)
    assert (stopped / "last.safetensors").read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(stopped: Path) -> None:
    with pytest.raises(ValueError, match="was made with data="):
        fit(gated(), blobs(seed=5), budget=Budget(target=0.6), **options(stopped))


def test_a_checkpoint_of_other_gates_is_refused(stopped: Path) -> None:
    with pytest.raises(ValueError, match=r"was made with gates=.*'train': 'hard'"):
        fit(gated(train="soft"), blobs(), budget=Budget(target=0.6), **options(stopped))


def test_a_checkpoint_of_another_model_lists_the_differences(tmp_path: Path) -> None:
    fit(dense(), blobs(), **options(tmp_path))
    wider = torch.nn.Sequential(torch.nn.Linear(8, 17), torch.nn.ReLU(), torch.nn.Linear(17, 3))
    with pytest.raises(ValueError, match=r"module '[02]'='.*16.*', this run has module '[02]'='.*17"):
        fit(wider, blobs(), **options(tmp_path))


@pytest.mark.parametrize("keep", [0, 7, 2000])
def test_a_truncated_checkpoint_is_an_error_with_its_name(keep: int, stopped: Path) -> None:
    path = stopped / "last.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"last.safetensors is not a readable safetensors file \(truncated"):
        fit(gated(), blobs(), budget=Budget(target=0.6), **options(stopped))


def test_a_checkpoint_of_a_newer_version_is_refused(stopped: Path) -> None:
    path = stopped / "last.safetensors"
    save_file(load_file(path), path, {"dynamicgate": json.dumps({"format": 99, "kind": "checkpoint"})})
    with pytest.raises(ValueError, match="has format 99, this version reads up to 2: upgrade dynamicgate"):
        fit(gated(), blobs(), budget=Budget(target=0.6), **options(stopped))


def test_a_model_file_is_not_accepted_as_a_checkpoint(tmp_path: Path) -> None:
    dg.save(dense(), tmp_path / "last.safetensors")
    with pytest.raises(ValueError, match="holds a model, expected a checkpoint"):
        fit(dense(), blobs(), **options(tmp_path))


def test_a_checkpoint_leaves_no_temporary_file(stopped: Path) -> None:
    assert sorted(os.listdir(stopped)) == ["last.safetensors", "log.jsonl"]


def test_ctrl_c_interrupts_without_an_output_folder_too() -> None:
    with StopAt(3, ctrl_c), pytest.raises(KeyboardInterrupt):
        fit(dense(), blobs(), epochs=2, batch=30, show=False)
