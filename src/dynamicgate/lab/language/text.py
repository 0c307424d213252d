"""Text as an array of tokens on disk, and windows of it as batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynamicgate.lab.language.tokenizers import Tokenizer, make_tokenizer

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Text:
    """A corpus in tokens, split into parts that share no book or package.

    tokens: by part, a memory-mapped array. bytes: how long the text of each part is, for bits per byte.
    """

    name: str
    tokenizer: str
    vocabulary: int
    tokens: dict[str, np.ndarray]
    bytes: dict[str, int]
    sha256: dict[str, str]
    merges: Path | None = None
    """The file with the merges of byte pairs."""

    def sizes(self) -> dict[str, Any]:
        """What tells a reader, and the next run, which text this was."""
        counts = {part: len(self.tokens[part]) for part in self.tokens}
        return {
            "name": self.name, "features": self.tokenizer, "classes": self.vocabulary, **counts,
            "bytes": self.bytes, "sha256": self.sha256,
        }  # fmt: skip

    def make_tokenizer(self) -> Tokenizer:
        """What turns text into tokens of this corpus."""
        return make_tokenizer(self.tokenizer, None, self.merges or Path())

    def bytes_a_token(self, part: str) -> float:
        """Mean length of a token of this part."""
        return self.bytes[part] / len(self.tokens[part])


def on_device(tokens: np.ndarray, device: torch.device) -> Tensor:
    """The whole array in the memory of the device, in as few bytes as there are."""
    kind = np.uint8 if tokens.dtype == np.uint8 else np.int32
    return torch.from_numpy(np.array(tokens, dtype=kind)).to(device)


def draw_windows(
    tokens: Tensor, batch: int, context: int, generator: torch.Generator, last: int | None = None
) -> tuple[Tensor, Tensor]:
    """`batch` windows at random places, and the same shifted by one token."""
    first = torch.randint(0, (last or len(tokens)) - context, (batch,), generator=generator)
    index = first[:, None] + torch.arange(context + 1)
    ids = tokens[index.to(tokens.device)].long()
    return ids[:, :-1], ids[:, 1:]


def fixed_windows(tokens: Tensor, batch: int, context: int, most: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows side by side, spread evenly over the text, at most `most` of them, in batches."""
    count = (len(tokens) - 1) // context
    if count < 1:
        raise ValueError(f"a text of {len(tokens)} tokens has no window of {context}: expected a longer text")
    chosen = torch.arange(count) if most is None or most >= count else (torch.arange(most) * count) // most
    for rows in chosen.split(batch):
        index = (rows[:, None] * context + torch.arange(context + 1)).to(tokens.device)
        ids = tokens[index].long()
        yield ids[:, :-1], ids[:, 1:]


def read_tokens(path: Path, dtype: str) -> np.ndarray:
    """An array of tokens that `prepare_text` wrote, not read until it is used."""
    return np.memmap(path, dtype=np.dtype(dtype), mode="r")
