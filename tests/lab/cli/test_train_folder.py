"""One folder, one run: what `dynamicgate train` finds there is never taken for another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamicgate.lab.cli import main
from dynamicgate.training.folder_lock import only_process

TRAIN = ["train", "--data", "digits", "--model", "dense", "--epochs", "1", "--hidden", "8"]


def test_a_run_without_its_mark_is_compared_by_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*TRAIN, "--out", str(tmp_path)]
    assert main(asked) == 0
    (tmp_path / "settings.hash").unlink()
    assert main([*asked, "--seed", "1"]) == 2
    assert "seed" in capsys.readouterr().err
    assert main(asked) == 0, "a refused request leaves the run as it was"


def test_a_finished_run_without_its_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*TRAIN, "--out", str(tmp_path)]
    assert main(asked) == 0
    (tmp_path / "model.safetensors").unlink()
    assert main(asked) == 2
    assert "model.safetensors is gone" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_process(tmp_path, ".train.lock"):
        assert main([*TRAIN, "--out", str(tmp_path)]) == 2
    assert "is in use by process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
