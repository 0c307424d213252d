"""Take masks off a trained model: the zeros stay in the weights, and the model is a plain one again."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import prune

from dynamicgate.gating.stages import stages_of
from dynamicgate.masks import connections, is_pruned
from dynamicgate.modules import unwrap


def finalize_(model: nn.Module) -> nn.Module:
    """Take all masks off, in place, and return the model: those of sparsifiers and those of `torch.nn.utils.prune`.

    Weights without a connection are zero and stay zero until somebody trains them. Afterwards the `state_dict` has the
    keys of a model that was never masked, so that ``plain.load_state_dict(model.state_dict())`` works; with gates on
    the model call `ungate_` first.
    """
    base = unwrap(model)
    if stages_of(base) is not None:
        raise ValueError("the masks of this model keep the order of its stages: take those off with ungate_ first")
    for module in base.modules():
        if is_pruned(module):
            prune.remove(module, "weight")
        mask = connections(module)
        if mask is not None:
            module.weight.data.mul_(mask)  # type: ignore[operator]
            del module.mask
            del module.mask_pattern
    return model
