"""Runs a packed decoder on new tokens, with the positions before in a cache of fixed room.

Shapes in names: L layers, B sequences, T new positions, S cached positions, K heads of keys, E features of a head,
D features, V tokens.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from dynamicgate.ops import native
from dynamicgate.ops.decoder.packing import BOTH_WAYS, FLAGS, HEADER_WORDS, OUTPUTS, PackedDecoder

PARTS = ("norms", "projections", "attention", "ffn", "head")
"""What `seconds` counts, in the order of enum DecoderPart in csrc/decoder_program.h."""


def new_cache(packed: PackedDecoder, sequences: int, room: int) -> Tensor:
    """An empty cache: [layers, keys and values, sequences, heads of keys, room, features of a head], all NaN, which
    says that nothing was written there. Where positions see both ways nothing is kept, and one layer is room enough."""
    layers, _, key_heads, head_features = packed.sizes
    layers = 1 if packed.both_ways else layers
    shape = (layers, 2, sequences, key_heads, room, head_features)
    return native.in_large_pages(prod(shape)).fill_(torch.nan).view(shape)


def run_decoder(
    packed: PackedDecoder,
    x_BTD: Tensor,
    cache_L2BKSE: Tensor,
    past: int,
    *,
    position_BT: Tensor | None = None,
    padding_B: Tensor | None = None,
    end_B: Tensor | None = None,
    scored: int | None = None,
    seconds: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The features of the new positions after the last norm, and the scores of the next token at the last `scored` of
    them; 0 gives no scores, None those of all.

    Keys and values of the new positions are written into the cache, behind the `past` that are there.
    position_BT: where each token stands, which decides its rotation; counted from `past` by default.
    padding_B: how many positions at the start of each sequence are padding; what padding gives means nothing.
    end_B: where positions see both ways, nothing looks at those from here on; by default there are none.
    seconds: float64, one for each of `PARTS`; the time of each is added.
    """
    B, T, width = x_BTD.shape
    given = (x_BTD, cache_L2BKSE, position_BT, padding_B, end_B, seconds)
    if elsewhere := {str(t.device) for t in given if t is not None and not t.is_cpu}:
        raise ValueError(f"the decoder runs on the cpu, received tensors on {', '.join(sorted(elsewhere))}")
    header = packed.program[:HEADER_WORDS].tolist()
    features, outputs = header[4], header[OUTPUTS]
    if x_BTD.dtype is not torch.float32 or width != features:
        raise ValueError(
            f"expected float32 [sequences, positions, {features}], received {x_BTD.dtype} {tuple(x_BTD.shape)}"
        )
    if cache_L2BKSE.dtype is not torch.float32 or cache_L2BKSE.ndim != 6 or not cache_L2BKSE.is_contiguous():
        raise ValueError("the cache must be one that new_cache made")
    scored = (T if outputs else 0) if scored is None else scored
    if scored and not outputs:
        raise ValueError("there is no head that could score positions")
    if position_BT is None:
        position_BT = torch.arange(past, past + T).repeat(B) if B > 1 else torch.arange(past, past + T)
    else:
        position_BT = position_BT.to(torch.int64).expand(B, T).contiguous()
    padding_B = torch.zeros(B, dtype=torch.int64) if padding_B is None else padding_B.to(torch.int64).contiguous()
    if header[FLAGS] & BOTH_WAYS:
        end_B = torch.full((B,), T) if end_B is None else end_B.to(torch.int64).contiguous()
    if any(t is not None and t.shape != (B,) for t in (padding_B, end_B)) or (
        seconds is not None and (seconds.shape != (len(PARTS),) or seconds.dtype is not torch.float64)
    ):
        raise ValueError(f"expected padding and ends of {B} sequences, and {len(PARTS)} float64 seconds")
    if B * T == 0:
        return x_BTD, None
    x_BTD = x_BTD.detach().clone(memory_format=torch.contiguous_format)
    y_BTV = torch.empty(B, scored, outputs) if scored else None
    sizes = (B, T, cache_L2BKSE.numel(), cache_L2BKSE.shape[4], past, scored)
    tensors = (x_BTD, cache_L2BKSE, position_BT, padding_B, end_B, y_BTV, seconds)
    problem = native.decode(packed.program, packed.weights, tensors, sizes)
    if problem:
        raise ValueError(f"the decoder cannot run this: {problem}")
    return x_BTD, y_BTV
