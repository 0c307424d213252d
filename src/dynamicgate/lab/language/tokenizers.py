"""From text to tokens and back: bytes as they are, or pairs of bytes that were merged because they are frequent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

PIECE = 1 << 16  # bytes that are encoded at once
TRAINED_ON = 32 << 20  # bytes of the text from which merges are learned


class Tokenizer(Protocol):
    """Text to tokens and back. size: of the vocabulary; dtype: of the stored tokens."""

    size: int
    dtype: str

    def encode(self, text: bytes) -> np.ndarray:
        """The tokens of a text."""

    def decode(self, tokens: list[int]) -> bytes:
        """The text of tokens."""

    def to_dict(self) -> dict[str, str]:
        """As JSON values, for a model file; see `read_tokenizer`."""


class Bytes:
    """Every byte is a token."""

    size, dtype = 256, "uint8"

    def encode(self, text: bytes) -> np.ndarray:
        """The bytes as numbers."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: list[int]) -> bytes:
        """The numbers as bytes."""
        return bytes(tokens)

    def to_dict(self) -> dict[str, str]:
        """There is nothing to store."""
        return {"kind": "bytes"}


class BytePairs:
    """Merged pairs of bytes (byte-level BPE), learned once and kept in a file."""

    dtype = "uint16"

    def __init__(self, merges: Any) -> None:
        """`merges`: a `tokenizers.Tokenizer`."""
        self.merges, self.size = merges, merges.get_vocab_size()

    def encode(self, text: bytes) -> np.ndarray:
        """The tokens of a text, which is cut between lines so that no piece is long."""
        pieces = _pieces(text)
        plain = [piece.decode("utf-8", "replace") for piece in pieces]
        found = self.merges.encode_batch(plain, add_special_tokens=False)
        return np.concatenate([np.asarray(one.ids, dtype=np.uint16) for one in found])

    def decode(self, tokens: list[int]) -> bytes:
        """The text of tokens; half a character becomes a replacement character."""
        return self.merges.decode(tokens).encode()

    def to_dict(self) -> dict[str, str]:
        """All merges."""
        return {"kind": "byte pairs", "merges": self.merges.to_str()}


def make_tokenizer(name: str, text: bytes | None, path: Path) -> Tokenizer:
    """The tokenizer of a name: "bytes", or "bpe" and the size of the vocabulary, such as "bpe8192".

    text: to learn merges from, where `path` does not hold them yet.
    """
    if name == "bytes":
        return Bytes()
    if not (name.startswith("bpe") and name[3:].isdigit() and 256 < int(name[3:]) <= 1 << 16):
        raise ValueError(f"unknown tokenizer {name!r}: expected bytes, or bpe and a size up to 65536 such as bpe8192")
    Merges = _merges()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if path.is_file():
        return BytePairs(Merges.from_file(str(path)))
    if text is None:
        raise ValueError(f"{path} holds no merges, and there is no training text to learn them from")
    merges = Merges(models.BPE())
    merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=int(name[3:]), initial_alphabet=alphabet, show_progress=False)
    step = max(1, len(text) // TRAINED_ON)  # every so many pieces, so that all of the text is seen
    sample = _pieces(text)[::step]
    merges.train_from_iterator((piece.decode("utf-8", "replace") for piece in sample), trainer)
    merges.save(str(path))
    return BytePairs(merges)


def read_vocabulary(path: Path) -> BytePairs:
    """The tokenizer of a pretrained model, from its tokenizer.json."""
    made = BytePairs(_merges().from_file(str(path)))
    if made.size > 1 << 16:
        raise ValueError(f"{path} has {made.size} tokens: they are stored in 16 bits, expected at most 65536")
    made.merges.no_truncation()  # some models cut texts at the length they were trained on
    made.merges.no_padding()
    return made


def some_of(text: bytes, most: int) -> bytes:
    """Pieces from all over a text, about `most` bytes in all; the whole text where it is no longer."""
    if len(text) <= most:
        return text
    pieces = _pieces(text)
    count = max(1, round(len(pieces) * most / len(text)))
    return b"".join(pieces[i * len(pieces) // count] for i in range(count))


def read_tokenizer(stored: dict[str, str]) -> Tokenizer:
    """The tokenizer that `to_dict` described."""
    return Bytes() if stored["kind"] == "bytes" else BytePairs(_merges().from_str(stored["merges"]))


def _merges() -> Any:
    try:
        from tokenizers import Tokenizer as Merges
    except ImportError as error:
        raise ImportError("byte pairs need the package tokenizers: pip install 'dynamicgate[hf]'") from error
    return Merges


def _pieces(text: bytes) -> list[bytes]:
    """The text in pieces that end with a line."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find(b"\n", min(start + PIECE, len(text)))
        end = len(text) if end < 0 else end + 1
        pieces.append(text[start:end])
        start = end
    return pieces
