"""Native layers on the CPU for encoders as BERT has them: RoBERTa, XLM-R, Electra, MiniLM and others.

Only the stack of layers is replaced. Embeddings, masks, poolers and heads stay those of Transformers.
Shapes in names: B sequences, T positions, D features.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from dynamicgate.activations import of_module
from dynamicgate.hf.names import files_of, has_only, refuse_arguments, stranger
from dynamicgate.inference.decoder_parts import BlockParts, EncoderParts
from dynamicgate.inference.language.native import NativeDecoder

# Others have layers with the same names that compute something else, some of them for long inputs only.
KINDS = files_of((
    "bert", "roberta", "xlm_roberta", "camembert", "electra", "ernie", "roc_bert", "data2vec/data2vec_text", "layoutlm",
))  # fmt: skip
HARMLESS = ("position_ids", "return_dict", "use_cache")  # positions are in the features, and nothing is cached


def has_encoder(model: nn.Module) -> bool:
    """Whether a stack of layers in it is named as that of BERT."""
    return any(_is_stack(module) for module in model.modules())


def encoder_parts(model: nn.Module) -> EncoderParts:
    """The layers of a model that `has_encoder`; ValueError with the reason if the kernels cannot run them."""
    stacks = [module for module in model.modules() if _is_stack(module)]
    if len(stacks) > 1:
        raise ValueError("it has several encoders")
    stack: Any = stacks[0]
    if stranger([stack], KINDS):
        raise ValueError(f"{type(stack).__name__} is not known to compute what that of BERT does")
    if getattr(stack.config, "is_decoder", False) or getattr(stack.config, "add_cross_attention", False):
        raise ValueError("it is used as a decoder")
    if not stack.layer:
        raise ValueError("its encoder has no layers")
    blocks = tuple(map(_block, stack.layer))
    scales = {layer.attention.self.scaling for layer in stack.layer}
    heads, size = stack.config.num_attention_heads, blocks[0].mix.in_features // stack.config.num_attention_heads
    if size % 2:
        raise ValueError(f"its heads have {size} features, and the kernels need an even number")
    if len(scales) > 1:
        raise ValueError("its layers scale scores in different ways")

    def into(native: NativeDecoder) -> nn.Module:
        return copy.deepcopy(model, {id(stack): NativeEncoder(stack.config, native)}).train(False)

    return EncoderParts(blocks, heads, float(*scales), into)


class NativeEncoder(nn.Module):
    """What stands for the stack of layers."""

    def __init__(self, config: Any, native: NativeDecoder) -> None:
        """config: of the model."""
        super().__init__()
        self.config, self.decoder = config, native

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The features after the last layer."""
        others = {f"argument {place} of the layers": value for place, value in enumerate(args, 3)}
        refuse_arguments(self.config, {**others, **kwargs}, HARMLESS)
        padding_B, end_B = (None, None) if attention_mask is None else _seen(attention_mask, *hidden_states.shape[:2])
        features = self.decoder.encode(hidden_states, padding_B, end_B)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=features)  # type: ignore[arg-type]


def _is_stack(module: nn.Module) -> bool:
    return has_only(module, {"layer"}) and isinstance(module.layer, nn.ModuleList) and hasattr(module, "config")


def _is_known(layer: Any) -> bool:
    """Whether a layer has the parts of one of BERT, and none of them was changed."""
    of_output = {"dense", "LayerNorm", "dropout"}
    named = (
        has_only(layer, {"attention", "intermediate", "output"})
        and has_only(layer.attention, {"self", "output"})
        and has_only(layer.attention.self, {"query", "key", "value", "dropout"})
        and has_only(layer.attention.output, of_output)
        and has_only(layer.intermediate, {"dense", "intermediate_act_fn"})
        and has_only(layer.output, of_output)
    )
    if not named:
        return False
    attention = layer.attention
    parts = (layer, attention, attention.self, attention.output, layer.intermediate, layer.output)
    dropouts = (attention.self.dropout, attention.output.dropout, layer.output.dropout)
    return stranger(parts, KINDS) is None and all(type(dropout) is nn.Dropout for dropout in dropouts)


def _block(layer: Any) -> BlockParts:
    if not _is_known(layer):
        raise ValueError(f"{type(layer).__name__} is not that of BERT: only its feed-forward layer is native")
    attention, output, act = layer.attention, layer.output, layer.intermediate.intermediate_act_fn
    activation = None if "forward" in vars(act) else of_module(act)
    if activation is None:
        raise ValueError(f"its activation {type(act).__name__} is not known")
    qkv = (attention.self.query, attention.self.key, attention.self.value)
    return BlockParts(
        attention.output.LayerNorm, qkv, attention.output.dense, output.LayerNorm, layer.intermediate.dense, None,
        output.dense, activation,
    )  # fmt: skip


def _seen(mask: Any, B: int, T: int) -> tuple[Tensor, Tensor]:
    """From where to where the positions of each sequence are seen, of a mask as Transformers hands it to layers: the
    same keys for all queries. A sequence without any sees all of itself, so that its features, which mean nothing, are
    numbers."""
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4) or (mask.ndim == 4 and mask.shape[1] != 1):
        raise ValueError("a native encoder reads a mask [B, T] of positions, the same for all heads")
    rows = mask[:, None] if mask.ndim == 2 else mask[:, 0]
    if rows.stride(1) and not torch.equal(rows, rows[:, :1].expand_as(rows)):
        raise ValueError("a native encoder reads a mask [B, T] of positions, the same for all queries")
    if rows.shape[-1] != T or rows.shape[0] not in (1, B):
        raise ValueError(f"a native encoder reads a mask {(B, T)} of positions, received {tuple(mask.shape)}")
    keys_BT = rows[:, 0].expand(B, T)
    added = mask.ndim == 4 and keys_BT.is_floating_point()  # to scores: nothing, or more than any score
    if added and bool(((keys_BT != 0) & (keys_BT > torch.finfo(keys_BT.dtype).min / 2)).any()):
        raise ValueError("a native encoder reads a mask of positions, and this one changes scores by a little")
    seen_BT = keys_BT == 0 if added else keys_BT != 0
    seen_BT = seen_BT | ~seen_BT.any(1, keepdim=True)
    first_B = seen_BT.int().argmax(1)
    end_B = first_B + seen_BT.sum(1)
    number = torch.arange(T)
    if not torch.equal(seen_BT, (number >= first_B[:, None]) & (number < end_B[:, None])):
        raise ValueError("a native encoder reads padding at the start and at the end of sequences, none between")
    return first_B, end_B
