"""Text that a dense model writes itself, for students to learn from: drawn, kept, and mixed with the other texts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from experiments.conversion import own_text, tables
from experiments.conversion.models import TINY
from experiments.conversion.own_text import START, VALID, read_own_text, write_own_text
from experiments.conversion.texts import OWN_TEXT, Texts, Windows, own_texts
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from dynamicgate.lab.runner import Experiment

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a tiny random model with a tokenizer that has the token with which documents begin."""
    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": 7}
    LlamaForCausalLM(LlamaConfig(**TINY, **ids, num_key_value_heads=2)).save_pretrained(tmp_path)
    words = {f"word{number}": number for number in range(1, TINY["vocab_size"])}
    Tokenizer(WordLevel({START: 0, **words}, unk_token=START)).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(own_text, "model_folder", lambda _model: tmp_path)
    return tmp_path


def test_drawn_text_begins_as_documents_do_and_is_found_again(folder: Path, tmp_path: Path) -> None:
    text = write_own_text("tiny", tmp_path / "data", 100, VALID + 8, CPU, length=12)
    assert {part: len(ids) for part, ids in text.tokens.items()} == {"train": 2 * 8 * 12, "valid": 2 * VALID * 12}
    rows = torch.from_numpy(text.tokens["train"].astype("int64")).view(-1, 12)
    assert bool((rows[:, 0] == 0).all())
    assert len(rows[:, 1:].unique()) > 100, "nearly random logits"
    assert text.vocabulary == TINY["vocab_size"]
    again = read_own_text("tiny", tmp_path / "data")
    assert again.sha256 == text.sha256
    same = write_own_text("tiny", tmp_path / "other", 100, VALID + 8, CPU, length=12)
    assert same.sha256 == text.sha256, "the same seed"
    other = write_own_text("tiny", tmp_path / "third", 100, VALID + 8, CPU, length=12, seed=1)
    assert other.sha256["train"] != text.sha256["train"]


def test_what_is_missing_is_answered_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run python -m experiments\.conversion draw --out"):
        read_own_text("tiny", tmp_path)
    with pytest.raises(ValueError, match=f"received {VALID}"):
        write_own_text("tiny", tmp_path, 100, VALID, CPU)
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match="has no token"):
        write_own_text("tiny", tmp_path, 100, VALID + 1, CPU)


def test_students_see_as_much_of_it_as_of_each_other_text(folder: Path, tmp_path: Path) -> None:
    own = write_own_text("tiny", tmp_path, 400, VALID + 40, CPU, length=12)
    texts = own_texts(("books", "python"))
    windows = Windows(Texts({**texts.texts, OWN_TEXT: own}, None), "train", 8, CPU)
    assert Texts({OWN_TEXT: own, **texts.texts}, None).trained_on == ["books", "python", OWN_TEXT]
    assert len(windows.tokens) == 3
    assert windows.draw(6, torch.Generator().manual_seed(0)).shape == (6, 8)


def test_the_table_has_the_dense_model_with_the_same_text(tmp_path: Path) -> None:
    table = Experiment("conversion", tables.tables(), tmp_path).table("smollm2-own-text")
    assert OWN_TEXT in table.data
    assert tables.DENSE in table.models
    assert table.load is tables.load_with_own_text
