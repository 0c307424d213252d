"""The packed decoder for the kernels, made of the parts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.gating.gate import Gate
from dynamicgate.inference.cpu.ffn import ffn_layers
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts, EncoderParts
from dynamicgate.inference.gpu.find import unsupported
from dynamicgate.inference.language.thresholds import opens_by_size, thresholds_of
from dynamicgate.nn.ffn import unwatched


@torch.no_grad()
def decoder_of(parts: DecoderParts | EncoderParts) -> ops.decoder.Decoder:
    """The decoder for the kernels; ValueError if a part computes something else than it seems to."""
    blocks = tuple(map(_block, parts.blocks))
    if isinstance(parts, EncoderParts):
        size = parts.blocks[0].mix.in_features // parts.heads
        return ops.decoder.Decoder(
            blocks, None, None, parts.heads, parts.heads, torch.zeros(size // 2), parts.score_scale, both_ways=True,
            norms_behind=True,
        )  # fmt: skip
    if type(parts.embed) is not nn.Embedding or parts.embed.max_norm is not None:
        raise ValueError("its embedding is not a plain one")
    if parts.positions is not None and parts.positions.dtype is not torch.float32:
        raise ValueError(f"the kernels are float32, its positions are {parts.positions.dtype}")
    head = _plain(parts.head, None)
    return ops.decoder.Decoder(
        blocks, _norm(parts.norm), head, parts.heads, parts.key_heads, parts.speed.detach().float(),
        parts.score_scale, parts.rotation_scale,
    )  # fmt: skip


def stored_in(decoder: ops.decoder.Decoder, layout: str) -> ops.decoder.Decoder | None:
    """The same decoder with the weights that this layout of fewer bytes holds exactly stored in it; None if they are
    less than half of all."""
    fits_layout, _ = ops.chain.FITS[layout]
    counts = {True: 0, False: 0}

    def stored(*layers: ops.chain.Layer) -> tuple[ops.chain.Layer, ...]:
        made = []
        for before, layer in zip((None, *layers), layers, strict=False):
            held = [weight for weight in (layer.weight, layer.value_weight) if weight is not None]
            alone = before is not None and before.block == 1  # units that open one by one have a faster way
            fits = layer.layout == "panels" and not alone and all(map(fits_layout, held))
            counts[fits] += sum(weight.numel() for weight in held)
            made.append(replace(layer, layout=layout) if fits else layer)
        return tuple(made)

    blocks = tuple(
        replace(block, qkv=stored(block.qkv)[0], mix=stored(block.mix)[0], ffn=stored(*block.ffn))
        for block in decoder.blocks
    )
    made = replace(decoder, blocks=blocks, head=None if decoder.head is None else stored(decoder.head)[0])
    return made if counts[True] >= counts[False] else None


def _block(block: BlockParts) -> ops.decoder.Block:
    gates = [getattr(linear, "gate", None) for linear in (block.up, block.value, block.down)]
    of_factors = block.of_factors
    by_size = of_factors is not None or any(map(opens_by_size, gates))
    layers = _ffn_with_thresholds(block, [*gates, of_factors]) if by_size else _ffn(block, gates[-1])
    projections = [_plain(linear, None) for linear in block.qkv]
    biases = [layer.bias for layer in projections]
    if any(bias is None for bias in biases) != all(bias is None for bias in biases):
        biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in projections]
    bias = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
    weight = torch.cat([p.weight for p in projections]) if len(projections) > 1 else projections[0].weight
    qkv = ops.chain.Layer(weight, bias)
    of_heads = [None if norm is None else _norm(norm) for norm in (block.norm_q, block.norm_k)]
    return ops.decoder.Block(_norm(block.norm1), qkv, _plain(block.mix, None), _norm(block.norm2), layers, *of_heads)


def _ffn(block: BlockParts, gate: nn.Module | None) -> tuple[ops.chain.Layer, ...]:
    if gate is not None and not isinstance(gate, Gate):
        raise ValueError("something that is no gate sits on its hidden units")
    if gate is not None:
        reason = unsupported(gate)
        if reason is not None:
            raise ValueError(f"a gate of its feed-forward layers: {reason}")
        if gate.site.source not in gate.site.producers:
            raise ValueError("a gate of its feed-forward layers reads another layer")
    for linear in (block.up, block.value, block.down):
        if linear is not None:
            _plain(linear, gate)
    layers, router = ffn_layers(block.up, block.value, block.down, block.activation, gate)
    if router is not None:  # alone it decides in torch, between layers there is no torch
        if router.net is None:
            raise ValueError("its single open expert is weighted by its probability among all experts")
        layers = (replace(layers[0], gate=router.net), layers[1])
    return layers


def _ffn_with_thresholds(block: BlockParts, gates: Sequence[nn.Module | None]) -> tuple[ops.chain.Layer, ...]:
    """All that the layer reads may have thresholds, its input for each of its two projections on its own, and so may
    the factors between them. gates: of the two projections, of the hidden units and of the factors."""
    if not all(gate is None or opens_by_size(gate) for gate in gates):
        raise ValueError("gates of its feed-forward layers that open what is large stand beside one of another kind")
    above: list[Tensor | None] = []
    for linear, gate in zip((block.up, block.value, block.down, None), gates, strict=True):
        own = gate if isinstance(gate, Gate) else None
        if linear is not None:
            _plain(linear, own)
        try:
            above.append(None if own is None else thresholds_of(own))
        except ValueError as error:
            raise ValueError(f"a gate of its feed-forward layers: {error}") from None
    (up, down), _ = ffn_layers(block.up, block.value, block.down, block.activation, None)
    of_up, of_value, of_down, of_factors = above
    if any(given is not None for given in (of_up, of_value, of_factors)):
        none = torch.zeros(up.weight.shape[1])
        of_up, of_value = (none if given is None else given for given in (of_up, of_value))
        value_above = None if block.value is None else of_value
        up = replace(up, above=of_up, value_above=value_above, factors_above=of_factors)
    return up, replace(down, above=of_down)


def _plain(linear: nn.Linear, gate: Gate | None) -> ops.chain.Layer:
    if type(linear) is not nn.Linear or "forward" in vars(linear) or not unwatched(linear, gate):
        raise ValueError("one of its layers is not a plain Linear, or has a hook or a gate of its own")
    if (linear.weight.dtype, linear.weight.device.type) != (torch.float32, "cpu"):
        raise ValueError(f"the kernels are float32 on the cpu, it is {linear.weight.dtype} on {linear.weight.device}")
    return ops.chain.Layer(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def _norm(norm: nn.Module) -> ops.decoder.Norm:
    if norm._forward_hooks or norm._forward_pre_hooks or "forward" in vars(norm):
        raise ValueError("one of its norms has a hook or a forward of its own")
    weight, bias = getattr(norm, "weight", None), None
    if type(norm) is nn.LayerNorm and norm.weight is not None:
        epsilon: Any = norm.eps
        bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias.detach()
    elif type(norm) is nn.RMSNorm:
        epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    elif type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon"):
        epsilon = norm.variance_epsilon
    else:
        raise ValueError(f"its norms are {type(norm).__name__}, and the kernels know RMS and layer norms")
    if weight is None or weight.ndim != 1 or weight.dtype is not torch.float32:
        raise ValueError("its norms need one float32 weight for each feature")
    return ops.decoder.Norm(weight.detach(), float(epsilon), bias)
