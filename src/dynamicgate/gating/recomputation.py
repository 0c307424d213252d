"""Gradient checkpointing: a part of the model that runs again during the backward pass must decide as it did before.

It computes its inputs again, and a logit next to the threshold may come out on the other side. The gradient would then
be that of a forward pass that never happened. So gates keep their decisions as long as the graph of the forward pass
lives, and use them again. Only `use_reentrant=False` can be trained with a penalty on decisions: the other kind runs
the forward pass without a graph.
"""

from __future__ import annotations

from threading import Lock
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

KEY = "dynamicgate"


def recomputing() -> bool:
    """Whether this forward pass runs inside a backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class PastDecisions:
    """The decisions of one gate in forward passes whose graph is alive, oldest first."""

    def __init__(self) -> None:
        """None yet."""
        self._alive: list[ReferenceType[Tensor]] = []
        self._turn = Lock()  # forward passes of several threads, and backward passes in threads of their own

    def keep(self, decision: Tensor, used_by: Tensor) -> None:
        """Keep `decision` as long as the graph that computed `used_by` from it; not at all without a graph."""
        if torch.compiler.is_compiling() or recomputing() or used_by.grad_fn is None:
            return
        node: Any = used_by.grad_fn
        node.metadata[KEY] = decision
        with self._turn:
            self._alive = [held for held in self._alive if held() is not None]
            self._alive.append(ref(decision))

    def take(self, again: Tensor) -> Tensor:
        """`again` itself in a forward pass; in a second computation of it, the decision of the first.

        The backward pass goes through forward passes from the last to the first. Of several that are alive and have
        the shape of `again`, what the second computation decided, it is the last one that differs from it least.
        """
        if not recomputing():
            return again
        with self._turn:
            return self._first(again)

    def _first(self, again: Tensor) -> Tensor:
        alive = [kept for held in self._alive if (kept := held()) is not None and kept.shape == again.shape]
        if not alive:
            return again
        first = alive[-1]
        if len(alive) > 1:
            first = min(reversed(alive), key=lambda kept: int((kept != again).sum()))
        self._alive = [held for held in self._alive if held() is not first]
        return first

    def __deepcopy__(self, _memo: dict[int, Any]) -> PastDecisions:
        """A copy of a gate has decided nothing."""
        return PastDecisions()

    def __reduce__(self) -> tuple[Any, ...]:
        return PastDecisions, ()
