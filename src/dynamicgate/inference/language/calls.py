"""How a model is called: its arguments as an example gives them, its scores, and the two kinds of caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.inference.decoder_parts import CacheKind


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same with `change` applied to every tensor."""

        def one(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        return Inputs(tuple(map(one, self.args)), {name: one(value) for name, value in self.kwargs.items()})

    def rows(self, index: Tensor) -> Inputs:
        """These rows of every tensor that has rows, and the others as they are."""
        batch = self.batch
        return self.mapped(lambda tensor: tensor[index] if tensor.ndim and len(tensor) == batch else tensor)

    @property
    def batch(self) -> int:
        """The rows of the call; a tensor that has fewer is the same for all of them."""
        return max((len(tensor) for tensor in self.tensors if tensor.ndim), default=1)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def ids(self) -> Tensor | None:
        """The tokens, if there are any: `input_ids`, or the first argument if that holds integers."""
        found = self.kwargs.get("input_ids", self.args[0] if self.args else None)
        integers = isinstance(found, Tensor) and not found.is_floating_point() and not found.is_complex()
        return found if integers and found is not None and found.ndim == 2 else None

    def call(self, model: nn.Module) -> Any:
        """What the model gives."""
        return model(*self.args, **self.kwargs)


def inputs_of_call(example: Any) -> Inputs | None:
    """An example that stands for one call: tokens, a dict of keyword arguments with tokens in it, or a pair of a tuple
    and a dict. None for rows of features and for data in batches."""
    if isinstance(example, Tensor):
        return None if example.is_floating_point() else Inputs((example.detach(),))
    if isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], tuple):
        return Inputs(*example) if isinstance(example[1], dict) else None
    if isinstance(example, Mapping):
        found = Inputs((), dict(example))
        return found if any(not tensor.is_floating_point() for tensor in found.tensors) else None
    return None


def scores_of(output: Any) -> Tensor:
    """The tensor to compare and time: the output itself, its logits, its features, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state", "start_logits", "prediction_logits"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ValueError(f"the model must return a tensor, or an output with logits, received {type(output).__name__}")


class Generation:
    """A model with a cache, token by token."""

    def __init__(self, model: nn.Module, kind: CacheKind) -> None:
        """Nothing is cached yet."""
        self.model, self.kind = model, kind
        self.cache: Any = [] if kind == "list" else None

    @torch.no_grad()
    def step(self, ids_BT: Tensor) -> Tensor:
        """The scores at new positions."""
        if self.kind == "list":
            return scores_of(self.model(ids_BT, cache=self.cache))
        output = self.model(input_ids=ids_BT, past_key_values=self.cache, use_cache=True)
        self.cache = output.past_key_values
        return scores_of(output)
