"""A GPT with its gates and its tokenizer in one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynamicgate.io import load, save
from dynamicgate.io.model_file import read_notes
from dynamicgate.io.tensor_file import check_size, naming_damage, read_tensors
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.lab.language.tokenizers import Tokenizer, read_tokenizer


def save_gpt(model: GPT, tokenizer: Tokenizer, path: Path, *, notes: dict[str, Any] | None = None) -> None:
    """Write everything that `load_gpt` needs; `notes` are JSON values of your own."""
    save(model, path, notes={**(notes or {}), "gpt": model.config.to_dict(), "tokenizer": tokenizer.to_dict()})


def load_gpt(path: Path) -> tuple[GPT, Tokenizer, dict[str, Any]]:
    """The model in evaluation mode, its tokenizer, and the notes."""
    notes = read_notes(path)
    if "gpt" not in notes:
        raise ValueError(f"{path} holds no language model: expected a file that `python -m experiments.language` wrote")
    tensors, _ = read_tensors(path, kind="model")
    with naming_damage(path):
        config = GPTConfig(**notes["gpt"])
        if config.layers > len(tensors):
            raise ValueError(f"{path} is damaged: it describes {config.layers} layers and has {len(tensors)} tensors")
        check_size(lambda: GPT(config), tensors, path)
        model = load(path, into=GPT(config))
        assert isinstance(model, GPT)
        return model, read_tokenizer(notes["tokenizer"]), notes
