"""How many keys each query of an attention layer looks at, from the mask that the layer is called with.

Transformers gives each layer the mask that it applies: padding, causality, windows, packed sequences and what a cache
holds are all in it. Without a mask every key counts, or with a causal layer all up to the query itself. FlashAttention
gets a mask of the padding alone, or none.

Shapes in names: B sequences, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.linears import is_linear, unwrapped

MASKS = ("attention_mask", "mask")
OTHER_STATES = ("key_value_states", "encoder_hidden_states")


def is_attention(module: nn.Module) -> bool:
    """Whether it computes scores itself: Transformers says of such layers whether they are causal."""
    known = hasattr(module, "is_causal") or "Attention" in type(module).__name__
    return known and any(is_linear(unwrapped(child)) for child in module.children())


def visible_keys(layer: nn.Module, given: Mapping[str, Any], states_BQD: Tensor) -> tuple[Tensor, int]:
    """The keys that each query looks at, [B, Q], and how many there are; `given` is what the layer is called with."""
    B, Q = states_BQD.shape[:2]
    others = next((given[name] for name in OTHER_STATES if isinstance(given.get(name), Tensor)), None)
    names = ("encoder_attention_mask", *MASKS) if others is not None else MASKS
    mask = next((given[name] for name in names if isinstance(given.get(name), Tensor)), None)
    if mask is not None and mask.ndim == 4:
        hidden = mask.dtype == torch.bool and not hasattr(layer, "is_causal")  # older layers: MPT
        seen_BHQK = ~mask if hidden else allowed(mask)
        keys_BQ = seen_BHQK[:, 0].sum(-1) if mask.shape[1] == 1 else seen_BHQK.sum(-1).float().mean(1)
        return keys_BQ.float().expand(B, Q), mask.shape[-1]
    K = others.shape[1] if others is not None else cached_length(given, layer) + Q
    causal = others is None and bool(given.get("is_causal", getattr(layer, "is_causal", False)))
    held_BK = torch.ones(1, 1, device=states_BQD.device).expand(B, K) if mask is None else _last(mask, K)
    seen_BK = held_BK.float().cumsum(1)
    if not causal:
        return seen_BK[:, -1:].expand(B, Q), K
    window = _window(layer)
    if window is not None and window < K:
        seen_BK = seen_BK - torch.nn.functional.pad(seen_BK, (window, 0))[:, :K]
    return seen_BK[:, -Q:], K


def allowed(mask: Tensor) -> Tensor:
    """Where a mask lets a query look: masks of numbers are added to scores."""
    return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool()


def cached_length(given: Mapping[str, Any], layer: nn.Module | None = None) -> int:
    """How many tokens the cache that a layer or a model is called with holds."""
    cache = given.get("past_key_values")
    if cache is None or not hasattr(cache, "get_seq_length"):
        return 0
    index = getattr(layer, "layer_idx", None)
    return int(cache.get_seq_length() if index is None else cache.get_seq_length(index))


def _last(mask_BL: Tensor, K: int) -> Tensor:
    """The mask of the K keys that there are; keys of a cache that are not in the mask come before and count."""
    mask_BL = allowed(mask_BL)
    missing = K - mask_BL.shape[1]
    return mask_BL[:, -K:] if missing <= 0 else torch.nn.functional.pad(mask_BL.float(), (missing, 0), value=1.0)


def _window(layer: nn.Module) -> int | None:
    config = getattr(layer, "config", None)
    of_all = None if getattr(config, "layer_types", None) else getattr(config, "sliding_window", None)
    found = getattr(layer, "sliding_window", of_all)
    return found if isinstance(found, int) else None
