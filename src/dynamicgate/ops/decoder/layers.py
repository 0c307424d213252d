"""What a decoder is made of: nothing here knows how it will be laid out or run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dynamicgate.ops.chain import Layer


@dataclass(frozen=True)
class Norm:
    """weight * x / root mean square of x. With a bias a layer norm: the same of x without its mean, and the bias."""

    weight: Tensor
    epsilon: float
    bias: Tensor | None = None


@dataclass(frozen=True)
class Block:
    """Attention and a feed-forward layer, each with a residual path around it and a norm before it, or behind the sum.

    qkv: from features to all heads of queries, then all heads of keys, then all heads of values.
    mix: from the heads back to features. ffn: a chain; two layers, the first of which may be gated and have a value.
    of_queries, of_keys: norms of each head of them, before they are turned.
    """

    attention_norm: Norm
    qkv: Layer
    mix: Layer
    ffn_norm: Norm
    ffn: tuple[Layer, ...]
    of_queries: Norm | None = None
    of_keys: Norm | None = None


@dataclass(frozen=True)
class Decoder:
    """Embedded tokens to the scores of the next ones; or an encoder, to features.

    heads, key_heads: of queries, and of keys and values; queries share the keys of their group.
    speed: of the rotation of each pair of features of a head, in radians for one position; the two of a pair are half
        a head apart; zeros where positions are learned, and part of the embedded tokens. rotation_scale multiplies
        cosine and sine.
    score_scale: multiplies products of queries and keys.
    both_ways: positions see later ones too, so that no cache can grow. norms_behind: norms stand behind the sums.
    norm, head: at the end; None for none.
    """

    blocks: tuple[Block, ...]
    norm: Norm | None
    head: Layer | None
    heads: int
    key_heads: int
    speed: Tensor
    score_scale: float
    rotation_scale: float = 1.0
    both_ways: bool = False
    norms_behind: bool = False

    @property
    def head_features(self) -> int:
        """The features of one head."""
        return 2 * len(self.speed)

    @property
    def features(self) -> int:
        """The features between blocks."""
        return len(self.blocks[0].attention_norm.weight)
