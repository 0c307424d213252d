"""What forward passes had to process: how many tokens, and how many keys each of them looks at. Padding is no token.

A *stream* is a sequence of tokens that layers run on: the tokens of a part of a model, named as the part is, or the
tokens of an encoder as the cross-attention of a part reads them, named with `ENCODER` at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

ENCODER = "@encoder"


@dataclass(frozen=True)
class Work:
    """What one or several forward passes processed."""

    samples: int
    """Sequences or images."""
    tokens: Mapping[str, float]
    """By stream."""
    pairs: Mapping[str, float]
    """By attention layer: pairs of a query and a key that it looks at."""
    keys: Mapping[str, Tensor]
    """By attention layer: the keys that each token looks at, itself included, in the order of its decisions."""
