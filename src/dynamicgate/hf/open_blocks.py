"""How many units one token opens, and how many several tokens open together: what a batch must compute and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dynamicgate.gating.gate import Gate


class OpenBlocks:
    """The open blocks of one gate over several forward passes."""

    def __init__(self, gate: Gate, chunk: int) -> None:
        """`chunk`: how many consecutive tokens of a sequence are looked at together."""
        self.chunk, self.sizes_G = chunk, gate.block_sizes.double() / gate.site.width
        self.one = self.chunks = self.batches = 0.0
        self.tokens = self.chunk_count = self.batch_count = 0

    def add(self, open_BG: Tensor, lengths: Sequence[int]) -> None:
        """The decisions of one forward pass: the rows of all tokens, sequence by sequence, of the given lengths."""
        open_NG = open_BG.flatten(0, -2)
        if not len(open_NG):
            return  # nothing but padding
        sizes_G = self.sizes_G.to(open_NG.device)
        self.one += float((open_NG.double() @ sizes_G).sum())
        self.tokens += len(open_NG)
        self.batches += float(open_NG.amax(0).double() @ sizes_G)
        self.batch_count += 1
        if sum(lengths) != len(open_NG):
            return  # rows that are not the positions of these sequences, as in a vision tower
        for tokens_TG in open_NG.split(list(map(int, lengths))):
            whole = len(tokens_TG) // self.chunk
            together = tokens_TG[: whole * self.chunk].unflatten(0, (whole, self.chunk)).amax(1) if whole else None
            if together is not None:
                self.chunks += float((together.double() @ sizes_G).sum())
                self.chunk_count += whole

    def to_dict(self) -> dict[str, Any]:
        """Mean fractions of units; None for chunks if no sequence was long enough for one."""
        return {
            "blocks": len(self.sizes_G),
            "open": self.one / max(1, self.tokens),
            "open_in_chunk": self.chunks / self.chunk_count if self.chunk_count else None,
            "open_in_batch": self.batches / max(1, self.batch_count),
            "batch_tokens": self.tokens / max(1, self.batch_count),
        }
