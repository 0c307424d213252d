"""What conversions read: books and Python source to train on, and WikiText-2 to test on, in tokens of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynamicgate.lab.language.corpora import PLAIN, load_text, write_sample
from dynamicgate.lab.language.text import PARTS, Text, draw_windows, fixed_windows, on_device
from dynamicgate.lab.language.tokenizers import Bytes
from experiments import ROOT

TRAINED_ON = ("books", "python")
OWN_TEXT = "own-text"  # drawn from the dense model itself, see `own_text`
TESTED_ON = (PLAIN, *TRAINED_ON)
OWN = {"books": "docs/*.md", "python": "src/dynamicgate/*/*.py", PLAIN: "*.md"}  # for quick runs, which need no files
EACH = 3  # of so many files of our own one is for validation and one to test on
BYTES_A_TOKEN = {"books": 4.2, "python": 3.5}  # of training text, to say how much of it makes a number of tokens


@dataclass(frozen=True)
class Texts:
    """Texts by name. folder: with the pretrained model; None: a tiny random one."""

    texts: dict[str, Text]
    folder: Path | None

    @property
    def trained_on(self) -> list[str]:
        """The texts that students learn from."""
        return [name for name in (*TRAINED_ON, OWN_TEXT) if name in self.texts]

    def sizes(self) -> dict[str, Any]:
        """What tells a reader, and the next run, which texts these were."""
        first = next(iter(self.texts.values()))
        counts = {
            part: sum(len(text.tokens[part]) for text in self.texts.values() if part in text.tokens) for part in PARTS
        }
        return {
            "name": "+".join(self.texts), "features": first.tokenizer, "classes": first.vocabulary, **counts,
            "sha256": {name: text.sha256 for name, text in self.texts.items()},
        }  # fmt: skip


def load_texts(model: str, names: Sequence[str], data_dir: Path | None) -> Texts:
    """The texts in tokens of a pretrained model, written once by `load_text`."""
    folder = model_folder(model)
    vocabulary = folder / "tokenizer.json"
    return Texts({name: load_text(name, model, data_dir=data_dir, vocabulary=vocabulary) for name in names}, folder)


def write_texts(model: str, names: Sequence[str], out: Path, data_dir: Path | None, tokens: int) -> None:
    """The same in a folder of their own, with about `tokens` tokens to train on, equally many of each text."""
    each = tokens / sum(name in TRAINED_ON for name in names)
    vocabulary = model_folder(model) / "tokenizer.json"
    for name in names:
        most = round(each * BYTES_A_TOKEN.get(name, 0.0))
        text = write_sample(name, model, out, data_dir=data_dir, vocabulary=vocabulary, most=most)
        counts = ", ".join(f"{part} {len(found):,}" for part, found in text.tokens.items())
        print(f"{name} for {model}: {counts} tokens")


def model_folder(model: str) -> Path:
    """The folder of pretrained weights."""
    folder = os.environ.get("DYNAMICGATE_MODELS")
    if folder is None or not (Path(folder).expanduser() / model).is_dir():
        raise ValueError(
            f"there is no {model} in DYNAMICGATE_MODELS={folder}: run python examples/hf_weights.py {model} FOLDER "
            "and name that folder in DYNAMICGATE_MODELS"
        )
    return Path(folder).expanduser() / model


def own_texts(names: Sequence[str]) -> Texts:
    """Text of this repository, in bytes: enough to see that everything runs."""
    found = {}
    for name in names:
        files = [path.read_bytes() for path in sorted(ROOT.glob(OWN[name]))]
        raw = {
            "test": b"\n".join(files[0::EACH]), "valid": b"\n".join(files[1::EACH]), "train": b"\n".join(files[2::EACH])
        }  # fmt: skip
        tokens: dict[str, np.ndarray] = {part: Bytes().encode(text) for part, text in raw.items()}
        found[name] = Text(name, "bytes", Bytes.size, tokens, {part: len(text) for part, text in raw.items()}, {})
    return Texts(found, None)


class Windows:
    """Windows of a part of several texts, equally many of each, on a device."""

    def __init__(self, texts: Texts, part: str, context: int, device: torch.device) -> None:
        """Of the texts that are trained on."""
        self.tokens = [on_device(texts.texts[name].tokens[part], device) for name in texts.trained_on]
        self.context = context

    def draw(self, batch: int, places: torch.Generator) -> Tensor:
        """`batch` windows at random places."""
        sizes = shares(batch, len(self.tokens))
        drawn = [draw_windows(t, n, self.context, places)[0] for t, n in zip(self.tokens, sizes, strict=True) if n]
        return torch.cat(drawn)

    def fixed(self, count: int, batch: int) -> list[Tensor]:
        """`count` windows, spread evenly over each text, in batches that hold all texts."""
        rows = [
            torch.cat([ids for ids, _ in fixed_windows(t, n, self.context, n)])
            for t, n in zip(self.tokens, shares(count, len(self.tokens)), strict=True)
            if n
        ]
        longest = max(map(len, rows))
        mixed = [row[i] for i in range(longest) for row in rows if i < len(row)]
        return list(torch.stack(mixed).split(batch))


def shares(count: int, parts: int) -> list[int]:
    """A number in nearly equal parts, the larger ones first."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def measured_batches(text: Text, part: str, context: int, most: int, batch: int) -> Iterator[dict[str, Tensor]]:
    """Windows of a text as `dynamicgate.hf.measure` reads them."""
    tokens = on_device(text.tokens[part], torch.device("cpu"))
    for ids, _ in fixed_windows(tokens, batch, context, most):
        yield {"input_ids": ids}
