"""A GPT with its gates and its tokenizer in one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynamicgate.io import load, save
from dynamicgate.io.model_file import read_notes
from dynamicgate.io.tensor_file import check_size, naming_damage, read_tensors
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.lab.language.relu_router import ReluRouterBudget, routers_of
from dynamicgate.lab.language.tokenizers import Tokenizer, read_tokenizer


def save_gpt(model: GPT, tokenizer: Tokenizer, path: Path, *, notes: dict[str, Any] | None = None) -> None:
    """Write everything that `load_gpt` needs; `notes` are JSON values of your own."""
    own: dict[str, Any] = {"gpt": model.config.to_dict(), "tokenizer": tokenizer.to_dict()}
    if routers := routers_of(model):  # unlike gates and masks, `save` does not know how to add them again
        own["relu_router"] = {"block": routers[0].block}
    save(model, path, notes={**(notes or {}), **own})


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
        block = notes["relu_router"]["block"] if "relu_router" in notes else None
        check_size(lambda: _built(config, block), tensors, path)
        model = load(path, into=_built(config, block))
        assert isinstance(model, GPT)
        return model, read_tokenizer(notes["tokenizer"]), notes


def _built(config: GPTConfig, relu_router_block: int | None) -> GPT:
    model = GPT(config)
    if relu_router_block is not None:
        ReluRouterBudget(rate=1.0).attach_(model, relu_router_block)
    return model
