"""DDP, FSDP2 and accelerate: two nodes with a process each train to the losses, masks and gates of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.hf import two_processes
from tests.two_nodes import run_on_two_nodes

TOLERANCE = 3e-6  # decisions and penalties are float32; a token that is counted twice moves weights by 1e-4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of runs on one process and on two nodes."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for kind in ("plain", "accelerate"):
        two_processes.train(one, kind)
    two_processes.train_with_trainer(one, processes=1)
    done = run_on_two_nodes([str(Path(two_processes.__file__)), str(two)])
    assert [node.returncode for node in done] == [0, 0], done[0].stderr[-3000:] + done[1].stderr[-3000:]
    return one, two


def result(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return json.loads((folder / "log.json").read_text()), load_file(folder / two_processes.WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accelerate on one", "ddp", "fsdp", "accelerate"])
def test_processes_agree_with_one(runs: tuple[Path, Path], kind: str) -> None:
    one, two = runs
    expected, weights = result(one / "plain")
    found, theirs = result(one / "accelerate" if kind.endswith("one") else two / kind)
    assert [row["masks"] for row in found] == [row["masks"] for row in expected]
    assert len({row["masks"] for row in found}) > 2, "masks were updated"
    assert len({row["executed"] for row in found}) > 2, "gates have moved"
    for key in ("loss", "penalty", "executed"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], abs=TOLERANCE)
    assert theirs.keys() == weights.keys()
    for name, value in weights.items():
        assert float((theirs[name].float() - value.float()).abs().max()) < TOLERANCE, name


@pytest.mark.slow
def test_a_trainer_on_two_processes_agrees_with_one(runs: tuple[Path, Path]) -> None:
    """Processes hold different numbers of tokens, and the loss is divided by those of all of them."""
    (expected, weights), (found, theirs) = (result(folder / "trainer") for folder in runs)
    for key in ("executed_macs", "gate_penalty", "gate_lambda"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], abs=TOLERANCE)
    assert len({row["executed_macs"] for row in found}) > 2, "gates have moved"
    for name, value in weights.items():
        assert float((theirs[name].float() - value.float()).abs().max()) < TOLERANCE, name
