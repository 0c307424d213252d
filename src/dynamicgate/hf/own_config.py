"""A model with gates has a config of its own.

The description of gates is written into a config. Transformers gives one config object to every model that is built
from it, and to the parts of a model. So before anything is written, the whole model that is described gets a copy.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


def whole_models(module: nn.Module) -> list[PreTrainedModel]:
    """The models with a `save_pretrained` of their own that hold what was changed in `module`: the outermost ones that
    it is a part of (heads may share a base model), or else the outermost ones inside it."""
    around = [found for found in ancestors(module) if isinstance(found, PreTrainedModel)]
    inside = {part for found in around for part in found.modules() if part is not found}
    return [found for found in around if found not in inside] or list(_outermost(module))


def give_own_config(model: PreTrainedModel) -> None:
    """Put a copy of its config into a model and everything that shares it with the model, except other models."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in (*ancestors(model), *model.modules()):
        for name, value in list(vars(module).items()):
            if isinstance(value, PreTrainedConfig) and id(value) in copies:  # sub-configs of its parts too
                setattr(module, name, copies[id(value)])


def ancestors(module: nn.Module) -> list[nn.Module]:
    """The modules that `module` is a part of, nearest first. PyTorch does not say; the garbage collector knows."""
    found: dict[int, nn.Module] = {}
    below: list[nn.Module] = [module]
    while below:
        children = [holder for holder in gc.get_referrers(*below) if isinstance(holder, dict) and _of_modules(holder)]
        owners = gc.get_referrers(*children) if children else []
        attributes = [owner for owner in owners if isinstance(owner, dict) and "_modules" in owner]
        owners += gc.get_referrers(*attributes) if attributes else []
        ids = {id(holder) for holder in children}
        parents = [owner for owner in owners if isinstance(owner, nn.Module) and id(owner._modules) in ids]
        below = list({id(parent): parent for parent in parents if id(parent) not in found}.values())
        found |= {id(parent): parent for parent in below}
    return list(found.values())


def _of_modules(holder: dict[Any, Any]) -> bool:
    return all(value is None or isinstance(value, nn.Module) for value in holder.values())


def _outermost(module: nn.Module) -> Iterator[PreTrainedModel]:
    if isinstance(module, PreTrainedModel):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)
