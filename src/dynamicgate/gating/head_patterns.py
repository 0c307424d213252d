"""Attention heads as sites: the layer that reads the heads, and the one that writes their queries.

Which head is closed is decided for each token, from what the queries are computed from. Keys and values are always
computed: a later token may open the head and look back. So a closed head saves its queries, its scores, its mixing of
values, and its part of the output projection, all for this token.
"""

from __future__ import annotations

from torch import nn

from dynamicgate.gating.roles import Roles, layer_below, modules_around, sizes_below

SEPARATE = (  # queries, keys, output
    ("q_proj", "k_proj", "o_proj"),  # Llama, Qwen, Mistral, Gemma, ViT
    ("q_proj", "k_proj", "out_proj"),  # OPT, Whisper, CLIP
    ("q_proj", "k_proj", "dense"),  # Phi
    ("self.query", "self.key", "output.dense"),  # BERT, RoBERTa
    ("attention.query", "attention.key", "output.dense"),  # BEiT, DeiT
    ("q", "k", "o"),  # T5
    ("q_lin", "k_lin", "out_lin"),  # DistilBERT
)
FUSED = (  # queries, keys and values in one; output
    ("qkv_proj", "o_proj"),  # Phi-3
    ("c_attn", "c_proj"),  # GPT-2
    ("query_key_value", "dense"),  # GPT-NeoX, BLOOM, Falcon
    ("Wqkv", "Wo"),  # ModernBERT
)
QUERY_NORMS = ("q_norm", "q_layernorm")
HEAD_SIZE = ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim")


def separate(module: nn.Module) -> Roles | None:
    """Queries and keys in layers of their own."""
    for queries, keys, output in SEPARATE:
        sizes = sizes_below(module, queries, keys, output)
        if sizes is not None:
            roles = _heads(module, queries, output, keys_and_values=2 * sizes[1][1])
            if roles is not None and sizes[0][1] == sizes[2][0]:
                return roles
    return None


def fused(module: nn.Module) -> Roles | None:
    """Queries, keys and values from one layer."""
    for together, output in FUSED:
        sizes = sizes_below(module, together, output)
        if sizes is not None and layer_below(module, "q_attn") is None:  # cross-attention of GPT-2 has other queries
            return _heads(module, together, output, keys_and_values=sizes[0][1] - sizes[1][0])
    return None


def _heads(module: nn.Module, queries: str, output: str, keys_and_values: int) -> Roles | None:
    """The heads of a module; None if their number does not come out even, or a norm over all heads mixes them."""
    roles = Roles((queries,), output)
    sizes = sizes_below(module, output)
    found = [getattr(m, name, None) for m in modules_around(module, roles) for name in HEAD_SIZE]
    head = next((size for size in found if isinstance(size, int) and size > 0), None)
    if sizes is None or head is None:
        return None
    width = sizes[0][0]
    heads, groups = width // head, keys_and_values // (2 * head)
    if width % head or groups < 1 or keys_and_values % (2 * head) or heads % groups:
        return None
    if heads > 1 and _normalizes_queries(module, width):
        return None
    return roles._replace(head_dim=head, heads_per_group=heads // groups)


def _normalizes_queries(module: nn.Module, width: int) -> bool:
    """Whether the queries of all heads are normalised together, as in OLMo 2: a closed head would change the others."""
    norms = [layer_below(module, name) for name in QUERY_NORMS]
    weights = [norm._parameters.get("weight") for norm in norms if norm is not None]
    return any(weight is not None and len(weight) == width for weight in weights)
