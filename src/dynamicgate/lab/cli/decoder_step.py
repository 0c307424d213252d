"""One step of a dense decoder for a cache of fixed room, as torch.compile and exporters like it: a rival of ours.

Everything about the model comes from its `DecoderParts`. It does the work of our plans: it scores every new position,
and keeps their keys and values.

Shapes in names: B sequences, T new positions, S positions, K heads of keys, E features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts, rotate


class DecoderStep(nn.Module):
    """Tokens to the scores of the next ones, after the positions of a cache."""

    speed: Tensor
    positions: Tensor | None

    def __init__(self, parts: DecoderParts, past: int, *, in_place: bool = True) -> None:
        """On the weights of the model itself, for steps after `past` positions.

        in_place: keys and values are written into the cache behind the `past` positions that are there. Otherwise the
        cache holds these positions only, and the step returns a longer one beside the scores: exported graphs own no
        memory that they could write.
        """
        super().__init__()
        self.parts, self.past, self.in_place = parts, past, in_place
        self.held = nn.ModuleList([parts.embed, parts.norm, parts.head])
        for block in parts.blocks:
            held = (
                block.norm1,
                *block.qkv,
                block.norm_q,
                block.norm_k,
                block.mix,
                block.norm2,
                block.up,
                block.value,
                block.down,
            )
            self.held.extend(module for module in held if module is not None)
        self.register_buffer("speed", parts.speed.detach().float())
        self.register_buffer("positions", None if parts.positions is None else parts.positions.detach())

    def cache(self, sequences: int, new: int) -> list[Tensor]:
        """Keys and values of each layer, one tensor after the other: random ones for the positions before, and room for
        `new` positions where the step writes in place. Nothing where there is neither."""
        p = self.parts
        room = self.past + (new if self.in_place else 0)
        if not room:
            return []
        return [torch.randn(sequences, p.key_heads, room, 2 * len(p.speed)) for _ in range(2 * len(p.blocks))]

    def forward(self, ids_BT: Tensor, cache: Sequence[Tensor]) -> Tensor | tuple[Tensor, list[Tensor]]:
        """The scores at all new positions; with the longer cache unless that is written in place."""
        position = torch.arange(self.past, self.past + ids_BT.shape[1])
        angle = position[:, None].float() * self.speed
        scale = self.parts.rotation_scale
        turn = (angle.cos() * scale, angle.sin() * scale)
        x = self.parts.embed(ids_BT)
        if self.positions is not None:
            x = x + F.embedding(position, self.positions)
        longer: list[Tensor] = []
        for number, block in enumerate(self.parts.blocks):
            mixed, k, v = self._attention(block, x, turn, cache[2 * number : 2 * number + 2])
            longer += [k, v]
            x = x + mixed
            y = block.norm2(x)
            h = ACTIVATIONS[block.activation].function(block.up(y))
            x = x + block.down(h if block.value is None else h * block.value(y))
        scores = self.parts.head(self.parts.norm(x))
        return scores if self.in_place else (scores, longer)

    def _attention(
        self, block: BlockParts, x: Tensor, turn: tuple[Tensor, Tensor], cache_BKSE: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        p, y = self.parts, block.norm1(x)
        E = 2 * len(p.speed)
        qkv = torch.cat([linear(y) for linear in block.qkv], dim=-1) if len(block.qkv) > 1 else block.qkv[0](y)
        q, k, v = qkv.unflatten(-1, (-1, E)).transpose(1, 2).split([p.heads, p.key_heads, p.key_heads], dim=1)
        q = q if block.norm_q is None else block.norm_q(q)
        k = k if block.norm_k is None else block.norm_k(k)
        q, k = rotate(q, turn), rotate(k, turn)
        if self.in_place:
            keys, values = cache_BKSE
            keys[:, :, self.past :] = k
            values[:, :, self.past :] = v
            k, v = keys, values
        elif self.past:
            k, v = (torch.cat((before, new), dim=2) for before, new in zip(cache_BKSE, (k, v), strict=True))
        shared = p.heads // p.key_heads
        all_k, all_v = (part.repeat_interleave(shared, dim=1) if shared > 1 else part for part in (k, v))
        mask = None
        if self.past and x.shape[1] > 1:
            mask = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool).tril(self.past)
        causal = not self.past
        mixed = F.scaled_dot_product_attention(q, all_k, all_v, mask, is_causal=causal, scale=p.score_scale)
        return block.mix(mixed.transpose(1, 2).flatten(2)), k, v
