"""The rows of log.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dynamicgate import Budget, fit
from dynamicgate.training import read_log
from tests.training.easy import blobs, dense, gated

KEYS = {
    "step", "epoch", "progress", "loss", "penalty", "lr", "relative", "reference", "target", "lambda", "sites",
    "valid", "stages", "sparsity", "masks",
}  # fmt: skip


def test_every_row_has_the_same_keys_and_is_in_the_history(tmp_path: Path) -> None:
    history = fit(
        gated(),
        blobs(),
        valid=blobs(60, seed=1),
        budget=Budget(target=0.6),
        epochs=3,
        batch=80,
        out=tmp_path,
        show=False,
    )
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows == history.log == list(read_log(tmp_path / "log.jsonl"))
    assert [row.keys() for row in rows] == [KEYS] * (9 + 3)
    steps = [row for row in rows if row["valid"] is None]
    assert [row["step"] for row in steps] == list(range(1, 10))
    assert [row["epoch"] for row in steps] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [row["progress"] for row in steps] == [step / 9 for step in range(1, 10)]
    for row in steps:
        assert row["sites"].keys() == {"layers.1"}
        assert row["sites"]["layers.1"].keys() == {"p", "g", "tau", "theta", "cut"}
        assert min(row["loss"], row["lr"], row["relative"], row["reference"]) > 0
        assert row["target"] == 0.6
    validations = [row for row in rows if row["valid"]]
    assert [row["step"] for row in validations] == [3, 6, 9]
    assert validations[0]["valid"].keys() == {"loss", "relative", "accuracy", "macro_f1"}


def test_the_reference_in_the_log_falls_to_the_target() -> None:
    history = fit(gated(), blobs(), budget=Budget(target=0.6, warmup=0.1), epochs=10, batch=24, show=False)
    references = [row["reference"] for row in history.log[10:]]
    assert references == sorted(references, reverse=True)
    assert references[0] > 1.0
    assert references[-1] == pytest.approx(0.6)
    assert history.log[0]["lambda"] == 0.0
    assert max(row["lambda"] for row in history.log) > 0.0


def test_a_dense_model_has_no_sites_and_no_budget() -> None:
    row = fit(dense(), blobs(), epochs=1, batch=240, show=False).log[0]
    assert row.keys() == KEYS
    assert [row[key] for key in ("relative", "reference", "target", "lambda")] == [None] * 4
    assert (row["sites"], row["penalty"]) == ({}, 0.0)


def test_gates_without_a_budget_are_logged_too() -> None:
    row = fit(gated(tau=2.0, theta=0.3), blobs(), epochs=1, batch=240, show=False).log[0]
    found = row["sites"]["layers.1"]
    assert found["g"] == 1.0
    assert (found["tau"], found["theta"]) == pytest.approx((2.0, 0.3))
    assert found["cut"] == pytest.approx(2.0 * torch.logit(torch.tensor(0.3)).item())


def test_a_long_run_logs_about_two_hundred_rows() -> None:
    history = fit(dense(), blobs(30), epochs=81, batch=6, show=False)
    steps = [row["step"] for row in history.log]
    assert 200 <= len(steps) <= 400
    assert steps[-1] == history.steps == 405


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in read_log(tmp_path / "log.jsonl")] == [1, 2]
    assert list(read_log(tmp_path / "absent.jsonl")) == []


def test_a_new_run_starts_a_new_log(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 77}\n')
    fit(dense(), blobs(), epochs=1, batch=240, out=tmp_path, show=False)
    assert [row["step"] for row in read_log(tmp_path / "log.jsonl")] == [1]


def test_a_damaged_line_of_the_log_does_not_stop_a_run_from_continuing(tmp_path: Path) -> None:
    options = {"batch": 80, "out": tmp_path, "show": False}
    whole = fit(dense(), blobs(), epochs=3, **options).log
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], b"\xff" + lines[2], *lines[3:]]))
    with pytest.warns(UserWarning, match="1 damaged lines were left out"):
        continued = fit(dense(), blobs(), epochs=3, **options).log
    assert continued == [*whole[:2], *whole[3:]]
