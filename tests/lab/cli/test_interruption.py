"""Ctrl-C and SIGTERM: a checkpoint is saved, and the same command continues to the same result."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dynamicgate.training import read_log
from tests import forked

from .quick_runs import write_npz

SINGLE_THREAD = {"OMP_NUM_THREADS": "1"}
PRESSED_AGAIN = """
import atexit, os, signal, sys, time, types

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)

def command(arguments):
    {answer}

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules["dynamicgate.lab.cli"] = types.SimpleNamespace(main=command)
atexit.register(press)
from dynamicgate.__main__ import main
sys.exit(main())
"""


def run_until_interrupted(command: list[str], out: Path, number: signal.Signals, rows: int) -> int:
    """Run until the log has this many rows, send the signal, check how it ends; returns the last step in the log."""
    log = out / "log.jsonl"
    process = forked.start(command, env=SINGLE_THREAD)
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= rows):
        time.sleep(0.002)
    process.send_signal(number)
    ended = process.wait()
    assert ended.returncode == 130
    assert "dynamicgate: stopped; run the same command again to continue" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (out / "last.safetensors").exists()
    assert not (out / "run.json").exists()
    return int([row["step"] for row in read_log(log)][-1])


def test_a_command_stopped_by_ctrl_c_and_by_kill_continues_to_the_same_result(tmp_path: Path) -> None:
    out, uninterrupted = tmp_path / "stopped", tmp_path / "uninterrupted"
    data = write_npz(tmp_path / "data.npz", "good")  # 41 training rows: 11 steps per epoch
    command = ["-m", "dynamicgate", "train", "--data", str(data), "--budget", "0.8", "--hidden", "24"]
    command += ["--epochs", "18", "--batch", "4", "--patience", "17", "--out"]
    first = run_until_interrupted([*command, str(out)], out, signal.SIGINT, rows=5)
    second = run_until_interrupted([*command, str(out)], out, signal.SIGTERM, rows=60)
    assert 0 < first < second < 18 * 11
    for folder in (out, uninterrupted):
        ended = forked.run([*command, str(folder)], env=SINGLE_THREAD)
        assert ended.returncode == 0, ended.stderr
    assert (out / "log.jsonl").read_bytes() == (uninterrupted / "log.jsonl").read_bytes()
    one, two = (load_file(folder / "model.safetensors") for folder in (out, uninterrupted))
    assert one.keys() == two.keys()
    assert [name for name in one if one[name].numpy().tobytes() != two[name].numpy().tobytes()] == []
    runs = [json.loads((folder / "run.json").read_text()) for folder in (out, uninterrupted)]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("answer", ["return 130", "press()"], ids=["at exit", "in the answer to the first, too"])
def test_a_second_ctrl_c_ends_quietly(answer: str) -> None:
    command = [sys.executable, "-c", PRESSED_AGAIN.format(answer=answer)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "" if answer == "return 130" else "\ndynamicgate: stopped\n")
