"""Models in stages on the command line: what train, compare and measure print, and that a cascade continues."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from dynamicgate.lab.cli import main
from tests import forked

from .quick_runs import QUICK, write_npz

NAMES = ["rigl", "staged", "cascade", "staged-random"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stages")
    command = ["compare", "--models", *NAMES, "--budget", "0.2", "--seeds", "1", *QUICK, "--out", str(out)]
    assert main(command) == 0
    return out


def test_compare_takes_models_separated_by_spaces_and_shows_stages(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert [run["model"] for run in results["runs"]] == NAMES
    assert ["stages" in run for run in results["runs"]] == [False, True, True, True]
    assert "Stages: how much of the network an input gets" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_comparison_with_stages_is_not_repeated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    command = ["compare", "--models", ",".join(NAMES), "--budget", "0.2", "--seeds", "1", *QUICK, "--out", str(folder)]
    assert main(command) == 0
    after = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    assert after == before
    printed = capsys.readouterr().out
    assert all(heading in printed.splitlines()[0].split() for heading in ("p5", "p50", "p95"))


def test_measure_prints_the_stages_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,) = folder.glob("runs/staged-s0-*/model.safetensors")
    assert main(["measure", str(model)]) == 0
    printed = capsys.readouterr().out
    assert ["stage", "opened", "stop", "at", "accuracy"] in [line.split() for line in printed.splitlines()]
    run = json.loads((model.parent / "run.json").read_text())
    assert all(f"{accuracy:.4f}" in printed for accuracy in run["stages"]["accuracy"])


@pytest.mark.parametrize("model", ["staged", "cascade"])
def test_train_says_what_each_stage_did_and_what_was_saved(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--model", model, "--stages", "two", "--budget", "0.2", *QUICK, "--out", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    run = json.loads((tmp_path / "run.json").read_text())
    stages = run["stages"]
    assert f"stage 2: opened by {stages['open'][1]:.1%} of the samples" in printed
    assert f"dealt at random the accuracy would be {stages['random']:.4f}" in printed
    saved = ["net-1/model.safetensors", "net-2/model.safetensors"] if model == "cascade" else ["model.safetensors"]
    assert f"saved {', '.join(str(tmp_path / name) for name in saved)}" in printed
    assert all((tmp_path / name).exists() for name in saved)
    other = [*command, "--lr", "0.001"]
    (tmp_path / "run.json").unlink()
    assert main(other) == 2
    assert "has a run with other settings" in capsys.readouterr().err


def test_a_cascade_stopped_in_its_second_network_continues_to_the_same_result(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz", "good")
    command = ["-m", "dynamicgate", "train", "--model", "cascade", "--data", str(data), "--budget"]
    command += ["0.3", "--hidden", "64", "--epochs", "20", "--batch", "4", "--out"]
    environment = {"OMP_NUM_THREADS": "1"}
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    log = stopped / "net-2" / "log.jsonl"
    process = forked.start([*command, str(stopped)], env=environment)
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 5):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert process.wait().returncode == 130
    assert (stopped / "net-1" / "run.json").exists()
    assert (stopped / "net-2" / "last.safetensors").exists()
    assert not (stopped / "net-2" / "run.json").exists()
    first = (stopped / "net-1" / "run.json").stat().st_mtime_ns
    for out in (stopped, whole):
        ended = forked.run([*command, str(out)], env=environment)
        assert ended.returncode == 0, ended.stderr
    assert (stopped / "net-1" / "run.json").stat().st_mtime_ns == first, "the first network is not trained again"
    runs = [json.loads((out / "run.json").read_text()) for out in (stopped, whole)]
    assert {**runs[0], "seconds": 0} == {**runs[1], "seconds": 0}
