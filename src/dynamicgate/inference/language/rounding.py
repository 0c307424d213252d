"""Weights rounded to int8: the copy of a model that has them, and what that changes.

Shapes in names: B sequences, T positions, V tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.inference.decoder_parts import EncoderParts, whole_parts_of
from dynamicgate.inference.gates import factor_for_all
from dynamicgate.inference.language.calls import Inputs
from dynamicgate.inference.language.plan import Rounding
from dynamicgate.inference.language.thresholds import opens_by_size
from dynamicgate.inference.shadow_copy import copy_sharing_memory
from dynamicgate.linears import as_linear, is_conv1d

INT8 = "int8"


@torch.no_grad()
def rounded_copy(model: nn.Module) -> nn.Module:
    """A copy whose projections, feed-forward layers and head have weights that int8 holds; an embedding that is tied to
    the head has them too. Everything else shares its memory with `model`: also what the kernels would not read as
    bytes, the maps behind units that open one by one and behind gates that are the same for every input."""
    made = copy_sharing_memory(model)
    for name, module in [*made.named_modules()]:  # an nn.Linear in its place holds what it is given below
        if is_conv1d(module):
            above, _, last = name.rpartition(".")
            setattr(made.get_submodule(above), last, as_linear(module))
    parts = whole_parts_of(made)
    linears = [] if isinstance(parts, EncoderParts) else [parts.head]
    for block in parts.blocks:
        linears += [*block.qkv, block.mix, block.up]
        linears += [] if block.value is None else [block.value]
        gate = getattr(block.down, "gate", None)
        if gate is None or opens_by_size(gate) or (gate.block > 1 and factor_for_all(gate) is None):
            linears.append(block.down)
    for linear in linears:
        linear.weight.data = ops.chain.rounded_to_bytes(linear.weight)
    return made


def rounding_of(inputs: Inputs, scores_BTV: Tensor, rounded_BTV: Tensor) -> Rounding | None:
    """What rounding changes on the example of a model that predicts tokens; None where it has no next ones."""
    ids_BT = inputs.ids
    if ids_BT is None or scores_BTV.shape[:2] != ids_BT.shape or ids_BT.shape[1] < 2:
        return None
    mask = inputs.kwargs.get("attention_mask")
    real_BT = mask != 0 if isinstance(mask, Tensor) and mask.shape == ids_BT.shape else torch.ones_like(ids_BT).bool()
    known_BT = real_BT[:, :-1] & real_BT[:, 1:]
    if not bool(known_BT.any()):
        return None
    next_tokens = ids_BT[:, 1:][known_BT]
    before, after = (scores[:, :-1][known_BT] for scores in (scores_BTV, rounded_BTV))
    same = (before.argmax(-1) == after.argmax(-1)).double().mean()
    losses = [float(F.cross_entropy(scores, next_tokens)) for scores in (before, after)]
    return Rounding(losses[0], losses[1], float(same))
