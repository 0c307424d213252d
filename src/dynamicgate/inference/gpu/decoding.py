"""A decoder on a GPU with a cache: one token of each sequence as one CUDA graph.

A graph works in memory that stays where it is, so the cache has room for more positions from the start. Callers see
views of it, keys and values of each layer, as they know them from torch: [sequences, heads of keys, positions,
features of a head]. A list of them is continued where its views are the last ones that were given out; any other list
is copied into memory that nobody looks at.

Shapes in names: L layers, B sequences, S positions, H heads, K heads of keys, E features of a head, D features.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.inference.decoder_parts import DecoderParts, rotate
from dynamicgate.inference.gpu.outputs import LastStream, current_stream, holders

Pairs = list[tuple[Tensor, Tensor]]
Memory = tuple[Tensor, ...]  # keys and values of the first layer, of the second, and so on, each [B, K, S, E]
ROOM = 256  # positions: caches have room for a multiple of it
MOST_KEPT = 8  # captured graphs, each with its cache
MOST_SEQUENCES = 64
Step = Callable[[Tensor, Tensor, Memory], Tensor]  # of tokens, position and cache
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


class OneToken(nn.Module):
    """The scores of the next token of each sequence; keys and values are written into the cache."""

    positions: Tensor | None

    def __init__(self, parts: DecoderParts, layers: Sequence[nn.Module]) -> None:
        """`layers` are the feed-forward layers of the blocks of `parts`."""
        super().__init__()
        self.embed, self.norm, self.head = parts.embed, parts.norm, parts.head
        self.norm1 = nn.ModuleList(block.norm1 for block in parts.blocks)
        self.qkv = nn.ModuleList(nn.ModuleList(block.qkv) for block in parts.blocks)
        self.mix = nn.ModuleList(block.mix for block in parts.blocks)
        self.norm_q, self.norm_k = (
            nn.ModuleList(nn.Identity() if norm is None else norm for norm in norms)
            for norms in zip(*((block.norm_q, block.norm_k) for block in parts.blocks), strict=True)
        )
        self.norm2 = nn.ModuleList(block.norm2 for block in parts.blocks)
        self.ffn = nn.ModuleList(layers)
        self.heads, self.key_heads = parts.heads, parts.key_heads
        self.score_scale, self.rotation_scale = parts.score_scale, parts.rotation_scale
        self.register_buffer("speed", parts.speed.detach().clone())
        self.register_buffer("positions", None if parts.positions is None else parts.positions.detach())

    def cache(self, sequences: int, room: int) -> Memory:
        """Memory for keys and values. Zeros: what is not written yet must not be NaN. One tensor for each: of a single
        one, torch.compile would copy all of it in every layer that writes a part."""
        weight: Tensor = self.head.weight
        features = 2 * len(self.speed)  # type: ignore[arg-type]
        shape = (sequences, self.key_heads, room, features)
        return tuple(weight.new_zeros(shape) for _ in range(2 * len(self.ffn)))

    def forward(self, ids_B1: Tensor, position: Tensor, cache: Memory) -> Tensor:
        """Scores [B, 1, V]. `position`: one number, how many positions there are before."""
        x_B1D = self.embed(ids_B1)
        if self.positions is not None:
            x_B1D = x_B1D + F.embedding(position, self.positions)
        angle = position[:, None] * self.speed  # type: ignore[operator]
        turn = angle.cos() * self.rotation_scale, angle.sin() * self.rotation_scale
        seen_S = torch.arange(cache[0].shape[2], device=x_B1D.device) <= position
        for number, ffn in enumerate(self.ffn):
            q, k, v = self._heads(number, self.norm1[number](x_B1D))
            q, k = rotate(self.norm_q[number](q), turn), rotate(self.norm_k[number](k), turn)
            keys, values = cache[2 * number : 2 * number + 2]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            y_BH1E = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=seen_S[None, None, None], scale=self.score_scale,
                enable_gqa=self.heads != self.key_heads,
            )  # fmt: skip
            x_B1D = x_B1D + self.mix[number](y_BH1E.transpose(1, 2).flatten(2))
            x_B1D = x_B1D + ffn(self.norm2[number](x_B1D))
        return self.head(self.norm(x_B1D))

    def _heads(self, number: int, x_B1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projections: Any = self.qkv[number]
        joined = torch.cat([linear(x_B1D) for linear in projections], dim=-1)
        by_head = joined.unflatten(-1, (self.heads + 2 * self.key_heads, -1)).transpose(1, 2)
        q, k, v = by_head.split([self.heads, self.key_heads, self.key_heads], dim=1)
        return q, k, v


class _Slot:
    """A captured step with its cache, and the views of it that were given out last."""

    def __init__(self, model: Step, memory: Memory, capture: Capture) -> None:
        self.memory = memory
        sequences, _, self.room, _ = memory[0].shape
        self.ids = torch.zeros(sequences, 1, dtype=torch.long, device=memory[0].device)
        self.position = torch.zeros(1, dtype=torch.long, device=memory[0].device)
        self.used = LastStream(current_stream(memory[0].device))
        self.run = capture(lambda: model(self.ids, self.position, self.memory))
        self.given: list[ReferenceType[Tensor]] = []
        self._alone = self._holders()

    def continues(self, pairs: Pairs) -> bool:
        """Whether these are the views that were given out last."""
        tensors = [tensor for pair in pairs for tensor in pair]
        return len(tensors) == len(self.given) and all(a is b() for a, b in zip(tensors, self.given, strict=True))

    def is_free(self) -> bool:
        """Whether nobody holds a view of its cache, not even a slice of an old one."""
        return self._holders() == self._alone

    def views(self, positions: int) -> Pairs:
        """Keys and values of the first positions of each layer."""
        views = [tensor[:, :, :positions] for tensor in self.memory]
        self.given = [ref(view) for view in views]
        return list(zip(views[0::2], views[1::2], strict=True))

    def _holders(self) -> int:
        """How many tensors share its memory. Weak references would not see slices of views."""
        return sum(map(holders, self.memory))


class CachedDecoder:
    """Runs steps of one token for each sequence; threads and streams take turns. Whoever reads a cache on a stream
    other than that of the step has to make that one wait before letting go of it, as with `outputs.Outputs`."""

    def __init__(self, model: Step, new_cache: Callable[[int, int], Memory], capture: Capture) -> None:
        """`capture` makes a call that can be repeated out of one without arguments."""
        self.model, self.new_cache, self.capture = model, new_cache, capture
        self.slots: dict[tuple[int, int], list[_Slot]] = {}
        self._used = LastStream()
        self._turn = threading.Lock()

    @torch.no_grad()
    def step(self, ids_B1: Tensor, cache: Pairs) -> Tensor:
        """Scores [B, 1, V] of the next token; `cache` holds the positions before, at least one, and is extended."""
        past = cache[0][0].shape[2]
        with self._turn:
            stream = current_stream(ids_B1.device)
            self._used.pass_to(stream)
            slot = self._slot_for(cache, len(ids_B1), past + 1, stream)
            slot.ids.copy_(ids_B1)
            slot.position.fill_(past)
            scores = slot.run().clone()
            cache[:] = slot.views(past + 1)
        return scores

    def _slot_for(self, cache: Pairs, sequences: int, needed: int, stream: Any) -> _Slot:
        for slots in self.slots.values():
            for slot in slots:
                if slot.room >= needed and slot.continues(cache):
                    slot.used.pass_to(stream)
                    return slot
        room = -(-(needed + ROOM // 2) // ROOM) * ROOM
        slots = self.slots.setdefault((sequences, room), [])
        free = [one for one in slots if one.is_free()]
        if free:
            slot = free[0]
        else:
            self._forget_one()
            slot = _Slot(self.model, self.new_cache(sequences, room), self.capture)
            slots.append(slot)
        slot.used.pass_to(stream)  # who held it may have let go of it before the device has read it
        for mine, given in zip(slot.memory, (tensor for pair in cache for tensor in pair), strict=True):
            mine[:, :, : needed - 1] = given
        return slot

    def _forget_one(self) -> None:
        """Let go of a captured step that nobody continues, if there are many. Views of it stay as they are."""
        free = [(key, slot) for key, slots in self.slots.items() for slot in slots if slot.is_free()]
        if sum(map(len, self.slots.values())) >= MOST_KEPT and free:
            key, slot = free[0]
            self.slots[key].remove(slot)
