"""The feed-forward layers of Transformers, by the names of their layers and, where those are new, by structure."""

from __future__ import annotations

from torch import nn

from dynamicgate.activations import is_of_transformers, of_module
from dynamicgate.gating.roles import Roles, normalizes, sizes_below
from dynamicgate.gating.sites import traced_sites
from dynamicgate.gating.unit_wise import UNIT_WISE_MODULES
from dynamicgate.linears import is_linear, unwrapped

GATED = (
    ("gate_proj", "up_proj", "down_proj"),  # Llama, Qwen, Mistral, Gemma
    ("wi_0", "wi_1", "wo"),  # T5 v1.1, mT5, UMT5
    ("w1", "w3", "w2"),  # LFM2 and Meta's own Llama
)
TWO_LAYER = (
    ("fc1", "fc2"),  # Phi, ViT, CLIP; inside the decoder layer: OPT, Whisper, BART
    ("c_fc", "c_proj"),  # GPT-2, with Conv1D; GPT-Neo
    ("dense_h_to_4h", "dense_4h_to_h"),  # GPT-NeoX, BLOOM, Falcon
    ("wi", "wo"),  # T5
    ("up_proj", "down_proj"),  # Nemotron
    ("fc_in", "fc_out"),  # GPT-J, CodeGen
    ("lin1", "lin2"),  # DistilBERT, SAM
    ("linear1", "linear2"),  # nn.TransformerEncoderLayer and nn.TransformerDecoderLayer
    ("intermediate.dense", "output.dense"),  # BERT, RoBERTa and their descendants: two modules
)
FUSED = (
    ("gate_up_proj", "down_proj"),  # Phi-3, GLM
    ("Wi", "Wo"),  # ModernBERT
    ("weights_in", "weights_out"),  # DINOv2 with SwiGLU
)


def gated(module: nn.Module) -> Roles | None:
    """down(act(gate(x)) * up(x))."""
    found = (_ffn(module, producers, consumer, 1) for *producers, consumer in GATED)
    return next(filter(None, found), None)


def fused(module: nn.Module) -> Roles | None:
    """The same with one layer for gate and up, of which the first half of the outputs is the gate or the second is."""
    found = (_ffn(module, [producer], consumer, 2) for producer, consumer in FUSED)
    return next(filter(None, found), None)


def two_layer(module: nn.Module) -> Roles | None:
    """fc2(act(fc1(x))), in one module, inline in a decoder layer, or split over two modules."""
    found = (_ffn(module, [producer], consumer, 1) for producer, consumer in TWO_LAYER)
    return next(filter(None, found), None)


def structural(module: nn.Module) -> Roles | None:
    """Two linear layers d -> n and n -> d with an activation, and nothing else but dropout, in one module. Where its
    forward pass cannot be traced, the hidden units are taken to be more than the others."""
    linears = [name for name, child in module.named_children() if is_linear(unwrapped(child))]
    others = [child for child in module.children() if not is_linear(unwrapped(child))]
    if len(linears) != 2 or not any(map(_is_activation, others)):
        return None
    if not all(_is_activation(child) or isinstance(child, nn.Dropout | nn.Identity) for child in others):
        return None
    either = [_ffn(module, [first], second, 1) for first, second in (linears, linears[::-1])]
    if not any(either):
        return None
    traced = traced_sites(module)
    if traced is not None:
        sites = [site for site in traced if not site.is_input]
        return Roles(sites[0].producers, sites[0].consumer) if len(sites) == 1 else None
    widths = [(sizes_below(module, name) or [(0, 0)])[0][1] for name in linears]
    return either[0] if widths[0] >= widths[1] else either[1]


def could_be(module: nn.Module) -> Roles | None:
    """Any two linear layers d -> n and n -> d in one module, to be named in an error."""
    linears = [name for name, child in module.named_children() if is_linear(unwrapped(child))]
    pairs = (_shaped(module, [first], second, 1) for first in linears for second in linears if first != second)
    return next(filter(None, pairs), None)


def _ffn(module: nn.Module, producers: list[str], consumer: str, per_unit: int) -> Roles | None:
    roles = _shaped(module, producers, consumer, per_unit)
    sizes = sizes_below(module, consumer)
    if roles is None or sizes is None:
        return None
    ((width, outputs),) = sizes
    return None if width != outputs and normalizes(module, roles, width) else roles


def _shaped(module: nn.Module, producers: list[str], consumer: str, per_unit: int) -> Roles | None:
    """These layers, if producers are d -> `per_unit` times n, and the consumer is n -> d."""
    sizes = sizes_below(module, *producers, consumer)
    if sizes is None:
        return None
    *written, (width, outputs) = sizes
    fits = all(size == (outputs, per_unit * width) for size in written)
    return Roles(tuple(producers), consumer) if fits else None


def _is_activation(module: nn.Module) -> bool:
    if isinstance(module, nn.Dropout | nn.BatchNorm1d | nn.Identity):
        return False
    return isinstance(module, UNIT_WISE_MODULES) or is_of_transformers(module) or of_module(module) is not None
