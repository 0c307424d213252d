"""Two processes, or two nodes, train to the same weights as one process."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dynamicgate.lab.cli import main as command_line
from dynamicgate.training import read_log
from tests import forked
from tests.page_snippets import blocks
from tests.places import ROOT
from tests.training import train_run
from tests.training.easy import largest_difference, weights_in
from tests.two_nodes import (
    SINGLE_THREAD,
    run_as_two_nodes,
    run_in_two_processes,
    run_on_two_nodes,
    start_two_processes,
)

# Two processes add the same float32 numbers in another order. The sum of a batch's gradients then differs by a few
# roundings (6e-8 relative), and so does each AdamW step of at most lr: measured 1e-7 after 14 steps. A row that is
# lost, counted twice or weighted wrongly moves weights by 1e-4 and more.
TOLERANCE = 3e-6


@pytest.mark.slow
def test_the_command_line_on_two_nodes_gives_the_weights_of_one_process(tmp_path: Path) -> None:
    # 1222 rows in batches of 203: 102 and 101 rows per process, and a last batch of 4
    arguments = ["train", "--model", "gate", "--dropout", "0", "--policy", "hard", "--epochs", "2", "--batch", "203"]
    arguments += ["--hidden", "37"]
    done = run_on_two_nodes(["-m", "dynamicgate", *arguments, "--out", str(tmp_path / "two")])
    assert [node.returncode for node in done] == [0, 0], done[0].stderr + done[1].stderr
    assert [node.stdout.count("saved ") for node in done] == [1, 0], "only one process prints"
    assert command_line([*arguments, "--out", str(tmp_path / "one")]) == 0
    one, two_ = (weights_in(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert largest_difference(one, two_) < TOLERANCE
    logs = [list(read_log(tmp_path / name / "log.jsonl")) for name in ("one", "two")]
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
    for key in ("loss", "penalty", "relative", "lambda"):
        assert [row[key] for row in logs[0]] == pytest.approx([row[key] for row in logs[1]], abs=1e-5)
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two")]
    assert runs[0]["macs"] == runs[1]["macs"]
    assert runs[0]["macs"]["relative"] == pytest.approx(0.3, abs=0.01), "both are calibrated"


@pytest.mark.slow
def test_the_fsdp2_loop_of_the_docs_gives_the_weights_of_one_process(tmp_path: Path) -> None:
    block = next(code for code in blocks(ROOT / "docs" / "cluster.md", "python") if "fully_shard" in code)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "loop.py").write_text(f"import os\nos.chdir({str(tmp_path / name)!r})\n{block}")
    one = forked.run([str(tmp_path / "one" / "loop.py")], env=SINGLE_THREAD)
    assert one.returncode == 0, one.stderr
    done = run_as_two_nodes([str(tmp_path / "two" / "loop.py")])
    assert [node.returncode for node in done] == [0, 0], done[0].stderr + done[1].stderr
    assert one.stdout.startswith("executes 0.600")
    assert [node.stdout for node in done] == [one.stdout, ""]
    weights = [weights_in(tmp_path / name / "whole.safetensors") for name in ("one", "two")]
    assert largest_difference(*weights) < 100 / 14 * TOLERANCE, "a hundred steps instead of 14"


@pytest.mark.slow
def test_nodes_that_do_not_share_the_folder_are_refused(tmp_path: Path) -> None:
    """One of them would not find the checkpoint that the other continues from."""
    arguments = ["-m", "dynamicgate", "train", "--model", "dense", "--epochs", "1", "--out"]
    done = run_as_two_nodes([*arguments, str(tmp_path / "here")], [*arguments, str(tmp_path / "there")])
    assert all(node.returncode != 0 for node in done)
    assert f"{tmp_path / 'here'} is not the same folder on all machines" in done[0].stderr
    assert f"{tmp_path / 'there'} is not the same folder on all machines" in done[1].stderr
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_two_killed_processes_resume_to_the_weights_of_one(tmp_path: Path) -> None:
    """With uneven parts (11 and 10 rows; in the last batch 3 and 2), uneven micro-batches (the last one of a process is
    empty), and a checkpoint after every step, which both processes must make together."""
    out = tmp_path / "two"
    settings = {"noisy": False, "rows": 89, "batch": 21, "epochs": 12, "lr": 2e-3}
    arguments = {**settings, "out": str(out), "accumulate": 3, "checkpoint_seconds": 0}
    words = [train_run.__file__, json.dumps(arguments)]
    run_and_kill(words, out)
    run_to_the_end(words)

    train_run.main(str(tmp_path / "one"), **settings)
    assert (
        largest_difference(*(weights_in(tmp_path / name / "final.safetensors") for name in ("one", "two"))) < TOLERANCE
    )
    logs = [list(read_log(tmp_path / name / "log.jsonl")) for name in ("one", "two")]
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
    assert len(logs[0]) == 12 * (5 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("sparsifier", ["rigl", "set"])
def test_two_processes_grow_the_same_masks_as_one(tmp_path: Path, sparsifier: str) -> None:
    settings = {"noisy": False, "sparsifier": sparsifier, "rows": 89, "batch": 21, "epochs": 10, "lr": 2e-3}
    run_to_the_end([train_run.__file__, json.dumps({**settings, "out": str(tmp_path / "two")})])
    train_run.main(str(tmp_path / "one"), **settings)  # type: ignore[arg-type]
    masks = [[row["masks"] for row in read_log(tmp_path / name / "log.jsonl")] for name in ("one", "two")]
    assert masks[0] == masks[1], "the same after every update"
    assert len(set(masks[0])) > 10
    final = [weights_in(tmp_path / name / "final.safetensors") for name in ("one", "two")]
    assert largest_difference(*final) < 1e-6


@pytest.mark.slow
def test_one_process_can_finish_a_run_of_two(tmp_path: Path) -> None:
    settings = {"noisy": False, "sparsifier": "rigl", "rows": 89, "batch": 21, "epochs": 12, "lr": 2e-3}
    arguments = {**settings, "out": str(tmp_path / "two"), "checkpoint_seconds": 0}
    run_and_kill([train_run.__file__, json.dumps(arguments)], tmp_path / "two")
    train_run.main(**arguments)  # type: ignore[arg-type]
    train_run.main(str(tmp_path / "one"), **settings)  # type: ignore[arg-type]
    masks = [[row["masks"] for row in read_log(tmp_path / name / "log.jsonl")] for name in ("one", "two")]
    assert masks[0] == masks[1]
    assert len(set(masks[0])) > 10
    final = [weights_in(tmp_path / name / "final.safetensors") for name in ("one", "two")]
    assert largest_difference(*final) < 1e-6


@pytest.mark.slow
def test_processes_with_different_masks_raise_an_error(tmp_path: Path) -> None:
    done = run_in_two_processes([str(Path(__file__).parent / "different_masks.py")])
    assert all(each.returncode != 0 for each in done)
    assert any("differ from those of another process" in each.stderr for each in done)


def run_to_the_end(words: list[str]) -> None:
    done = run_in_two_processes(words)
    assert [each.returncode for each in done] == [0, 0], done


def run_and_kill(words: list[str], out: Path) -> None:
    """Start the processes and kill them in the middle of training."""
    processes = start_two_processes(words)
    until, log = time.monotonic() + 120, out / "log.jsonl"
    while (
        all(process.poll() is None for process in processes)
        and time.monotonic() < until
        and not (log.exists() and len(log.read_text()) > 9000)
    ):
        time.sleep(0.002)
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    assert time.monotonic() < until, "the processes are in a deadlock"
    assert not (out / "final.safetensors").exists()
    assert (out / "last.safetensors").exists()
