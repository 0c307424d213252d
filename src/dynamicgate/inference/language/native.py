"""A native decoder as a module of buffers, and its cache. Without a head and a cache it is the layers of an encoder.

The cache of all layers is one tensor with room for more positions. What callers see are views of it, keys and values of
each layer, as they know them from torch: [sequences, heads of keys, positions, features of a head]. The next call finds
the room behind the views again, and writes there if nobody has. Views that were copied, cut or reordered are copied
into a new cache. So a list of such views behaves like one of tensors that are never written.

Shapes in names: L layers, B sequences, T new positions, S positions, K heads of keys, E features of a head, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from math import isnan
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.ops.chain.packing import PANEL

Pairs = list[tuple[Tensor, Tensor]]
ONE_TAKES_IT = Lock()  # the room behind a cache
MORE_ROOM = 256  # positions behind the new ones; a full cache is copied into one with room for half as many more


class NativeDecoder(nn.Module):
    """All blocks of a decoder, or of an encoder, in one call."""

    weights: Tensor
    program: Tensor
    embedding: Tensor | None
    positions: Tensor | None

    def __init__(
        self, packed: ops.decoder.PackedDecoder, embedding_VD: Tensor | None, positions_PD: Tensor | None = None
    ) -> None:
        """embedding_VD: None if it is tied to the head, whose weights are then read. positions_PD: what is added to the
        features of a token for its position; None where rotation tells positions apart."""
        super().__init__()
        ops.decoder.check_decoder(packed)
        self.register_buffer("weights", packed.weights)
        self.register_buffer("program", packed.program)
        self.register_buffer("embedding", embedding_VD)
        self.register_buffer("positions", positions_PD)
        self.seconds: Tensor | None = None
        """While it is set, the time of each of `ops.decoder.PARTS` is added to it."""
        self._remember()

    def _remember(self) -> None:
        self.packed = ops.decoder.PackedDecoder(self.weights, self.program)
        self.sizes, self.tokens = self.packed.sizes, self.packed.outputs
        self.gated_floats = self.packed.gated_floats()
        self.head = self._head() if self.tokens else None
        self.rows = self.packed.head_rows() if self.packed.head_in_panels else None

    def _head(self) -> ops.chain.Packed:
        words, lines = self.packed.head
        chain = self.program[words : words + int(self.program[words + 5])]
        floats = self.weights[lines * PANEL : (lines + int(chain[4])) * PANEL]
        return ops.chain.Packed(floats, chain, self.tokens)

    def __getstate__(self) -> dict[str, Any]:
        """Without what `_remember` makes: torch saves no views of the weights that read them as another type."""
        return {name: value for name, value in self.__dict__.items() if name not in ("packed", "head", "rows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._remember()

    def _apply(self, fn: Any, recurse: bool = True) -> NativeDecoder:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        ops.decoder.check_decoder(ops.decoder.PackedDecoder(self.weights, self.program))
        self._remember()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        ops.decoder.check_decoder(ops.decoder.PackedDecoder(self.weights, self.program))
        self._remember()

    def embed(self, ids_BT: Tensor) -> Tensor:
        """The features of tokens."""
        if self.embedding is not None:
            return F.embedding(ids_BT, self.embedding)
        assert self.rows is not None
        return self.rows.of(ids_BT)

    def forward(
        self,
        x_BTD: Tensor,
        pairs: Sequence[tuple[Tensor, Tensor]] | None,
        *,
        position_BT: Tensor | None = None,
        padding_B: Tensor | None = None,
        scored: int | None = None,
    ) -> tuple[Tensor, Tensor | None, Pairs]:
        """Features after the last norm, scores at the last `scored` positions, and keys and values of all positions.
        x_BTD: the features of tokens alone."""
        if x_BTD.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a compiled decoder is for inference and has no derivatives: differentiate the model")
        B, T, _ = x_BTD.shape
        past = 0 if not pairs else pairs[0][0].shape[2]
        if self.positions is not None:
            x_BTD = x_BTD + self._of_positions(position_BT, past, T)
        cache = self._found(pairs, B, past + T) if pairs else None
        if cache is None:
            room = past + T + max(MORE_ROOM, (past + T) // 2)
            cache = ops.decoder.new_cache(self.packed, B, room)
            for layer, pair in enumerate(pairs or ()):
                cache[layer, 0, :, :, :past], cache[layer, 1, :, :, :past] = pair
        options = {"position_BT": position_BT, "padding_B": padding_B, "scored": scored, "seconds": self.seconds}
        features, scores = ops.decoder.run_decoder(self.packed, x_BTD, cache, past, **options)  # type: ignore[arg-type]
        views = cache[..., : past + T, :].flatten(0, 1).unbind(0)
        return features, scores, list(zip(views[0::2], views[1::2], strict=True))

    def encode(self, x_BTD: Tensor, padding_B: Tensor | None = None, end_B: Tensor | None = None) -> Tensor:
        """The features of an encoder. padding_B: so many positions at the start nothing looks at, and nothing looks at
        those from `end_B` on."""
        if x_BTD.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a compiled encoder is for inference and has no derivatives: differentiate the model")
        B, T, _ = x_BTD.shape
        room = ops.decoder.new_cache(self.packed, B, T) if B * T else x_BTD.new_empty((0,) * 6)
        return ops.decoder.run_decoder(
            self.packed, x_BTD, room, 0, padding_B=padding_B, end_B=end_B, seconds=self.seconds
        )[0]

    def score(self, features: Tensor) -> Tensor:
        """The scores of tokens from features after the last norm."""
        assert self.head is not None
        return ops.chain.run(features, self.head)

    def _of_positions(self, position_BT: Tensor | None, past: int, T: int) -> Tensor:
        positions_PD = self.positions
        assert positions_PD is not None
        numbers = torch.arange(past, past + T) if position_BT is None else position_BT.clamp(min=0)  # padding has none
        if numbers.numel() and int(numbers.max()) >= len(positions_PD):
            raise IndexError(f"the model has {len(positions_PD)} positions, received number {int(numbers.max())}")
        return F.embedding(numbers, positions_PD)

    def _found(self, pairs: Sequence[tuple[Tensor, Tensor]], B: int, needed: int) -> Tensor | None:
        """The cache that `pairs` are views of, if it has room for `needed` positions and nobody wrote behind them."""
        L, _, K, E = self.sizes
        first = pairs[0][0]
        storage, past = first.untyped_storage(), first.shape[2]
        shape = (B, K, past, E)
        tensors = [tensor for pair in pairs for tensor in pair]
        if len(pairs) != L or any(tensor.shape != shape for tensor in tensors):
            raise ValueError(f"expected {L} pairs of keys and values [{B}, {K}, {past}, {E}] in the cache")
        room, rest = divmod(storage.nbytes(), 4 * 2 * L * B * K * E)
        if rest or room < needed or first.dtype is not torch.float32:
            return None
        plane, at = 4 * B * K * room * E, storage.data_ptr()
        strides = (K * room * E, room * E, E, 1)
        for number, tensor in enumerate(tensors):
            if tensor.data_ptr() != at + number * plane or tensor.stride() != strides:
                return None
        # Read without torch: after a step its code is no longer in the processor's cache, and eight ops take 0.1 ms.
        behind = [at + (2 * L - 1) * plane + 4 * E * (head * room + past) for head in range(B * K)]
        with ONE_TAKES_IT:
            if not all(isnan(c_float.from_address(address).value) for address in behind):
                return None
            c_float.from_address(behind[0]).value = 0.0  # another thread with the same views now copies them
        with torch.no_grad():
            return torch.empty(0).set_(storage, 0, (L, 2, B, K, room, E))  # type: ignore[call-overload]


class NativeLanguageModel(nn.Module):
    """Tokens to scores, with the positions before in a cache: what `DecoderParts.into` makes by default."""

    def __init__(self, decoder: NativeDecoder) -> None:
        """Runs `decoder`."""
        super().__init__()
        self.decoder = decoder

    def forward(self, ids_BT: Tensor, cache: Pairs | None = None) -> Tensor:
        """Scores [B, T, V] of the next token at each position. `cache` holds the positions before and is extended."""
        _, scores, pairs = self.decoder(self.decoder.embed(ids_BT), cache)
        if cache is not None:
            cache[:] = pairs
        if scores is None:  # no position
            return torch.empty(*ids_BT.shape, self.decoder.tokens)
        return scores
