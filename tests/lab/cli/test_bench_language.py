"""Timing a saved language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamicgate.inference.language.plan import BYTES
from dynamicgate.lab.cli import main
from dynamicgate.lab.cli.bench_language import bench_language
from dynamicgate.lab.language.model_file import save_gpt
from dynamicgate.lab.language.tokenizers import Bytes
from dynamicgate.ops import native
from tests.inference.language.models import gpt


def test_a_saved_gpt_is_timed_with_and_without_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpt.safetensors"
    save_gpt(gpt(vocabulary=256), Bytes(), path)
    words = ["bench", str(path), "--prompt-tokens", "9", "--new-tokens", "3", "--seconds", "0.01"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for words in ("one more token after 9", "gated: 2 layers", "gates in torch", "ours"):
        assert words in printed, words
    found = json.loads((tmp_path / "timing.json").read_text())
    assert set(found["seconds"]) == {"dense", "gates in torch", "ours"}
    assert all(taken > 0 for times in found["seconds"].values() for taken in times.values())


def test_no_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        bench_language(tmp_path / "x", prompt_tokens=0, new_tokens=3)


def test_options_of_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--data", "digits"]) == 2
    assert "--data means nothing for a language model" in capsys.readouterr().err


@pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
def test_weights_may_be_rounded_and_the_plan_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamicgate.inference.language.pipeline.choose", lambda regimes: BYTES)
    path = tmp_path / "gpt.safetensors"
    save_gpt(gpt(vocabulary=256), Bytes(), path)
    words = ["bench", str(path), "--prompt-tokens", "9", "--new-tokens", "3", "--seconds", "0.01", "--weights", "int8"]
    assert main(words) == 0
    assert "rounded to int8" in capsys.readouterr().out
    plan = json.loads((tmp_path / "timing.json").read_text())["plan"]
    assert plan["chosen"] == BYTES
    assert set(plan["rounding"]) == {"loss", "rounded_loss", "same_token"}
    assert main(["bench", str(path), "--weights", "int8"]) == 2
    assert "--weights is for language models" in capsys.readouterr().err
