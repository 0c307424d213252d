"""The reference implementation: a decoder in plain torch, without a cache, in the dtype of `x`.

Shapes in names: B sequences, T positions, H heads, K heads of keys, E features of a head, D features, V tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.ops.chain import reference_chain
from dynamicgate.ops.decoder.layers import Block, Decoder, Norm


def reference_decoder(
    decoder: Decoder, x_BTD: Tensor, padding_B: Tensor | None = None, end_B: Tensor | None = None
) -> Tensor:
    """Scores [B, T, V] at all positions, or features without a head. Positions are counted from the first that is no
    padding. end_B: where positions see both ways, nothing from here on is seen."""
    B, T, _ = x_BTD.shape
    padding_B = torch.zeros(B, dtype=torch.long) if padding_B is None else padding_B
    number_BT = (torch.arange(T) - padding_B[:, None]).clamp(min=0)
    angle_BT = number_BT[..., None].to(x_BTD.dtype) * decoder.speed.to(x_BTD.dtype)
    turn = (angle_BT.cos() * decoder.rotation_scale, angle_BT.sin() * decoder.rotation_scale)
    if decoder.both_ways:
        end_B = torch.full((B,), T) if end_B is None else end_B
        seen_B1T = (torch.arange(T) >= padding_B[:, None, None]) & (torch.arange(T) < end_B[:, None, None])
        seen_B1TT = seen_B1T.expand(B, T, T)[:, None]
    else:
        seen_BTT = torch.ones(T, T, dtype=torch.bool).tril() & (torch.arange(T) >= padding_B[:, None, None])
        seen_B1TT = (seen_BTT | torch.eye(T, dtype=torch.bool))[:, None]
    for block in decoder.blocks:
        if decoder.norms_behind:
            x_BTD = _norm(x_BTD + _attention(decoder, block, x_BTD, turn, seen_B1TT), block.attention_norm)
            x_BTD = _norm(x_BTD + reference_chain(x_BTD, block.ffn), block.ffn_norm)
        else:
            x_BTD = x_BTD + _attention(decoder, block, _norm(x_BTD, block.attention_norm), turn, seen_B1TT)
            x_BTD = x_BTD + reference_chain(_norm(x_BTD, block.ffn_norm), block.ffn)
    x_BTD = x_BTD if decoder.norm is None else _norm(x_BTD, decoder.norm)
    return x_BTD if decoder.head is None else reference_chain(x_BTD, [decoder.head])


def _attention(decoder: Decoder, block: Block, x_BTD: Tensor, turn: tuple[Tensor, Tensor], seen_B1TT: Tensor) -> Tensor:
    E, K = decoder.head_features, decoder.key_heads
    parts = reference_chain(x_BTD, [block.qkv]).unflatten(-1, (-1, E)).transpose(1, 2)
    q, k, v = parts.split([decoder.heads, K, K], dim=1)
    q = q if block.of_queries is None else _norm(q, block.of_queries)
    k = k if block.of_keys is None else _norm(k, block.of_keys)
    q, k = _rotate(q, turn), _rotate(k, turn)
    k, v = (part.repeat_interleave(decoder.heads // K, dim=1) for part in (k, v))
    y_BHTE = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_B1TT, scale=decoder.score_scale)
    return reference_chain(y_BHTE.transpose(1, 2).flatten(2), [block.mix])


def _norm(x: Tensor, norm: Norm) -> Tensor:
    if norm.bias is not None:
        return F.layer_norm(x, x.shape[-1:], norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.epsilon)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.epsilon) * norm.weight.to(x.dtype)


def _rotate(x_BHTE: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part[:, None] for part in turn)
    a, b = x_BHTE.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
