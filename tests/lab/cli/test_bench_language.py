"""Timing a saved language model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.language.plan import BYTES
from dynamicgate.lab.cli import main
from dynamicgate.lab.cli.bench_language import bench_language, time_in_turns, token_counts
from dynamicgate.lab.cli.decoder_step import DecoderStep
from dynamicgate.lab.language.model_file import save_gpt
from dynamicgate.lab.language.tokenizers import Bytes
from dynamicgate.ops import native
from tests.inference.language.models import close, gpt

QUICK = ("--seconds", "0.01", "--no-torch-compile")


def saved(folder: Path, **sizes: Any) -> Path:
    """A gated GPT in a file."""
    path = folder / "gpt.safetensors"
    save_gpt(gpt(vocabulary=256, **sizes), Bytes(), path)
    return path


def test_a_saved_gpt_is_timed_with_and_without_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)  # which takes a minute
    path = saved(tmp_path)
    words = ["bench", "--model", str(path), "--prompt-tokens", "9", "--new-tokens", "3", "--seconds", "0.01"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for word in ("one more token after 9", "gated: 2 layers", "kernel gain", "gate gain"):
        assert word in printed, word
    found = json.loads((tmp_path / "timing.json").read_text())
    names = ["dense", "dense, torch.compile", "dense, compiled", "gates in torch", "ours"]
    assert found["rounds"] >= 5
    for row in found["rows"]:
        assert list(row["us"]) == names
        assert all(us > 0 for us in row["us"].values())
        assert row["us"][row["rival"]] == min(us for name, us in row["us"].items() if name.startswith("dense"))
        for gain in ("kernel_gain", "gate_gain"):
            assert row[gain] == sorted(row[gain])
    page = (tmp_path / "timing.html").read_text()
    assert page.count("<rect") == 2 * 2 * len(names), "for wide and for narrow screens, prompts and tokens"
    for word in ("attention", "gate gain", *names):
        assert word in page, word


def test_a_saved_gpt_needs_no_further_options(tmp_path: Path) -> None:
    path = saved(tmp_path, context=24)
    assert main(["bench", str(path), *QUICK]) == 0
    found = json.loads((tmp_path / "timing.json").read_text())
    assert (found["prompt_tokens"], found["new_tokens"]) == (12, 12)
    assert "dense, torch.compile" not in found["rows"][0]["us"]


def test_as_many_tokens_are_timed_as_the_context_has_room_for() -> None:
    assert token_counts(None, None, None) == (1024, 128)
    assert token_counts(8192, None, None) == (1024, 128)
    assert token_counts(1024, None, None) == (896, 128)
    assert token_counts(128, None, None) == (64, 64)
    assert token_counts(128, 100, None) == (100, 28)
    assert token_counts(128, None, 100) == (28, 100)
    assert token_counts(1, None, None) == (1, 1)
    assert token_counts(16, 300, 20) == (300, 20), "what was asked for"


def test_one_model_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], [str(tmp_path), "--model", str(tmp_path)]):
        assert main(["bench", *words]) == 2
        assert "give one model" in capsys.readouterr().err


def test_a_rival_that_cannot_be_compiled_is_left_out_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(step: Any, **_: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fail)
    assert main(["bench", str(saved(tmp_path)), "--prompt-tokens", "5", "--new-tokens", "2", "--seconds", "0.01"]) == 0
    assert "torch.compile is left out: RuntimeError: no compiler here" in capsys.readouterr().out
    assert "no compiler here" in (tmp_path / "timing.html").read_text()


def test_no_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        bench_language(tmp_path / "x", prompt_tokens=0, new_tokens=3)


def test_options_of_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--data", "digits"], ["--batches", "4"]):
        assert main(["bench", str(tmp_path), *option]) == 2
        assert f"{option[0]} means nothing for a language model" in capsys.readouterr().err


def other(kind: str) -> Any:
    """A small model of Hugging Face, whose scores are its output."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    grouped = {"num_key_value_heads": 2} if kind == "Qwen3" else {}
    made = getattr(transformers, f"{kind}Config")(**sizes, **grouped, max_position_embeddings=64)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(made).eval()
    model.register_forward_hook(lambda *found: found[-1].logits)
    return model


@pytest.mark.parametrize("kind", ["ours", "GPT2", "Qwen3"])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_step_of_the_rivals_is_that_of_the_model(in_place: bool, kind: str) -> None:
    model = gpt(gates=False) if kind == "ours" else other(kind)
    ids, past = torch.randint(50, (2, 12)), 7
    with torch.no_grad():
        want = model(ids)
        model._forward_hooks.clear()
        first, later = (DecoderStep(parts_of(model), count, in_place=in_place).eval() for count in (0, past))
        cache = first.cache(2, past)
        got = first(ids[:, :past], cache)
        if not in_place:
            got, cache = got
        assert close(got, want[:, :past])
        room = [torch.cat((kept, torch.zeros(2, kept.shape[1], 12 - past, kept.shape[3])), 2) for kept in cache]
        got = later(ids[:, past:], room if in_place else cache)
        assert close(got if in_place else got[0], want[:, past:])


def test_candidates_take_turns_that_start_with_another_one() -> None:
    order: list[str] = []

    def turn(name: str) -> tuple[float, float]:
        order.append(name)
        return 1.0, 2.0

    found = time_in_turns({name: lambda name=name: turn(name) for name in "abc"}, 0.0)  # type: ignore[misc]
    assert found == {name: [(1.0, 2.0)] * 5 for name in "abc"}
    assert "".join(order[3:]) == "abcbcacababcbca"


@pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
def test_weights_may_be_rounded_and_the_plan_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], take: Callable[[str], None]
) -> None:
    take(BYTES)
    path = saved(tmp_path)
    assert main(["bench", str(path), "--prompt-tokens", "9", "--new-tokens", "3", *QUICK, "--weights", "int8"]) == 0
    assert "rounded to int8" in capsys.readouterr().out
    found = json.loads((tmp_path / "timing.json").read_text())
    assert found["plan"]["chosen"] == found["dense_plan"]["chosen"] == BYTES
    assert set(found["plan"]["rounding"]) == {"loss", "rounded_loss", "same_token"}
