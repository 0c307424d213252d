"""A GPT whose feed-forward layers can have gates.

Shapes in names: B sequences, T positions, D features, H heads, E features of a head, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.gating.sites import Site
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts, rotate
from dynamicgate.modules import keep_float32_
from dynamicgate.nn import FFN

SPREAD = 0.02  # of weights at the start
MOST_TURNS = 8192  # positions whose rotation is kept: a file may name any context
Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of the positions before, for each layer."""


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The sizes of a GPT. width: hidden units of a feed-forward layer. gate_gradient, kernels: see `FFN`."""

    vocabulary: int
    features: int
    layers: int
    heads: int
    width: int
    context: int
    activation: str = "gelu"
    gate_gradient: Literal["dense", "sparse"] = "dense"
    kernels: Literal["auto", "always", "never"] = "auto"

    def __post_init__(self) -> None:
        if self.features % (2 * self.heads):
            raise ValueError(
                f"each head needs an even number of features: expected features to be a multiple of {2 * self.heads}, "
                f"received {self.features}"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for files."""
        return asdict(self)


class GPT(nn.Module):
    """Tokens to scores of the next one. Norms come first, positions are rotations, the head is not tied."""

    turn: Tensor

    def __init__(self, config: GPTConfig) -> None:
        """A model with random weights."""
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.features)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.features)
        self.head = nn.Linear(config.features, config.vocabulary, bias=False)
        # Kept, because torch.compile would work sines and powers out for every feature of every layer.
        turns = rotation(0, min(config.context, MOST_TURNS), self.blocks[0].head_features, torch.device("cpu"))  # type: ignore[arg-type]
        here = self.head.weight.device  # worked out on the CPU, so that all machines have the same
        self.register_buffer("turn", torch.stack(turns).to("cpu" if here.type == "meta" else here), persistent=False)
        self.apply(_start)
        for block in self.blocks:  # every layer adds to the residual path: the sum should not grow with their number
            for linear in (block.mix, block.ffn.down):  # type: ignore[union-attr]
                nn.init.normal_(linear.weight, std=SPREAD / math.sqrt(2 * config.layers))  # type: ignore[arg-type,union-attr]

    def forward(self, ids_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Scores [B, T, V] of the next token at each position. `cache` holds the positions before and is extended."""
        x_BTD = self.embed(ids_BT)
        before: list[Any] = list(cache) if cache else [None] * len(self.blocks)
        past = before[0][0].shape[2] if cache else 0
        turn = self._turns(past, past + ids_BT.shape[1])
        after: Cache = []
        for block, state in zip(self.blocks, before, strict=True):
            x_BTD, state = block(x_BTD, turn, state)
            after.append(state)
        if cache is not None:
            cache[:] = after
        return self.head(self.norm(x_BTD))

    def _turns(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        if last > self.turn.shape[1]:
            return rotation(first, last, self.blocks[0].head_features, self.turn.device)  # type: ignore[arg-type]
        return self.turn[0, first:last], self.turn[1, first:last]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GPT:
        """Move or convert it, as `.to()` does. Cosines and sines stay float32."""
        before = {"turn": self.turn}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_float32_(self, before)
        return self

    def decoder_parts(self) -> DecoderParts:
        """What it is made of: `dynamicgate.compile` runs it natively as a whole on the CPU."""
        first: Any = self.blocks[0]
        size = first.head_features
        return DecoderParts(
            self.embed, tuple(block.parts() for block in self.blocks), self.norm, self.head,  # type: ignore[operator]
            first.heads, first.heads, rotation_speed(size, self.head.weight.device), size**-0.5,
        )  # fmt: skip


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each with a norm before it and a residual path around it."""

    def __init__(self, config: GPTConfig) -> None:
        """`config` is that of the model."""
        super().__init__()
        features = config.features
        self.heads, self.head_features = config.heads, features // config.heads
        self.norm1, self.norm2 = nn.RMSNorm(features), nn.RMSNorm(features)
        self.qkv, self.mix = nn.Linear(features, 3 * features, bias=False), nn.Linear(features, features, bias=False)
        self.ffn = FFN(
            features, config.width, activation=config.activation, bias=False, gate_gradient=config.gate_gradient,
            kernels=config.kernels,
        )  # fmt: skip

    def forward(
        self, x_BTD: Tensor, turn: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The features, and keys and values of all positions so far."""
        q, k, v = self.qkv(self.norm1(x_BTD)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        q, k = rotate(q, turn), rotate(k, turn)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y_BHTE = F.scaled_dot_product_attention(q, k, v, attn_mask=_seen(q, k), is_causal=past is None)
        x_BTD = x_BTD + self.mix(y_BHTE.transpose(1, 2).flatten(2))
        return x_BTD + self.ffn(self.norm2(x_BTD)), (k, v)

    def parts(self) -> BlockParts:
        """What it is made of."""
        ffn = self.ffn
        return BlockParts(
            self.norm1, (self.qkv,), self.mix, self.norm2, ffn.up, ffn.value, ffn.down, ffn.activation
        )  # fmt: skip


def ffn_sites(model: GPT) -> list[Site]:
    """Where gates go: the hidden units of all feed-forward layers, ``gate_(model, config, where=ffn_sites(model))``."""
    names = [f"blocks.{number}.ffn" for number in range(model.config.layers)]
    return [Site(f"{name}.down", (f"{name}.up",), f"{name}.up", model.config.width) for name in names]


def _seen(q_BHTE: Tensor, k_BHSE: Tensor) -> Tensor | None:
    """Which keys each query may look at; None where nothing is cached, or where one query looks at all."""
    queries, keys = q_BHTE.shape[2], k_BHSE.shape[2]
    if queries in (1, keys):
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=q_BHTE.device).tril(keys - queries)


def rotation(first: int, last: int, features: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles of positions `first` to `last`, [T, features / 2]."""
    angle = torch.arange(first, last, device=device)[:, None] * rotation_speed(features, device)
    return angle.cos(), angle.sin()


def rotation_speed(features: int, device: torch.device) -> Tensor:
    """The angle by which each pair of features turns from one position to the next."""
    return 10_000.0 ** (-torch.arange(0, features, 2, device=device) / features)


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=SPREAD)
