"""What a gate must remember between two hooks or during a `with`, kept apart for each thread.

A decision is made before the source runs and given to the consumer later. Several threads may run the same model at
once, and a thread may run the producers more than once before the consumer: it must be clear which decision is meant.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.modules import module

from dynamicgate.gating.recomputation import recomputing

T = TypeVar("T")

_HOOKS = frozenset({module.__file__, __file__, __file__.replace("pending.py", "gate.py")})


class OfThread(Generic[T]):
    """A value for each thread. A copy of the module starts without one."""

    def __init__(self) -> None:
        """None for every thread."""
        self._values: dict[int, T] = {}

    def get(self) -> T | None:
        """The value of this thread."""
        return self._values.get(threading.get_ident())

    def set(self, value: T | None) -> None:
        """Set it, or take it away with None."""
        if value is None:
            self._values.pop(threading.get_ident(), None)
        else:
            self._values[threading.get_ident()] = value

    def any(self) -> T | None:
        """The value of one of the threads that have one."""
        return next(iter(self._values.values()), None)

    def __deepcopy__(self, _memo: dict[int, Any]) -> OfThread[T]:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class _Waiting(NamedTuple):
    factor: Tensor
    caller: FrameType | None
    """What called the source: a forward pass, or a user who runs the layers one by one."""


class PendingFactors:
    """The factors that one gate has decided and no consumer has taken yet."""

    def __init__(self) -> None:
        """None yet."""
        self._waiting: OfThread[list[_Waiting]] = OfThread()
        # A compiled graph cannot look at threads and frames. It makes and takes a decision within one call.
        self._compiled: Tensor | None = None

    def put(self, factor: Tensor) -> None:
        """Keep a decision until the consumer runs."""
        if torch.compiler.is_compiling():
            self._compiled = factor
            return
        caller = _caller()
        waiting = self._waiting.get()
        if not waiting or recomputing():  # a second computation may end before the consumer
            self._waiting.set([_Waiting(factor, caller)])
            return
        running = _running()  # decisions of a forward pass that has ended, because it failed, are forgotten
        kept = [w for w in waiting if w.caller is None or w.caller in running]
        same = [w for w in kept if w.caller is caller]
        self._waiting.set([w for w in kept if w.caller is not caller] + same[-1:] + [_Waiting(factor, caller)])

    def peek(self) -> Tensor | None:
        """The latest decision, which stays."""
        if torch.compiler.is_compiling():
            return self._compiled
        waiting = self._waiting.get()
        return waiting[-1].factor if waiting else self._compiled

    def take(self, rows: torch.Size | None) -> Tensor | None:
        """The decision for the consumer, whose input has these rows; None if there is none."""
        if torch.compiler.is_compiling():
            factor, self._compiled = self._compiled, None
            return factor
        waiting = self._waiting.get()
        if not waiting:  # made in a compiled graph that ended in between
            factor, self._compiled = self._compiled, None
            return factor
        if len(waiting) == 1:
            self._waiting.set(None)
            return waiting[0].factor
        return self._chosen(waiting, rows)

    def _chosen(self, waiting: list[_Waiting], rows: torch.Size | None) -> Tensor:
        caller = _caller()
        meant = [w for w in waiting if w.caller is caller] or waiting[-1:]
        meant = [w for w in meant if rows is None or w.factor.shape[:-1] == rows] or meant[-1:]
        if any(not torch.equal(w.factor, meant[0].factor) for w in meant[1:]):
            self._waiting.set(None)
            raise RuntimeError(
                "the layers in front of a gate ran more than once before the layer behind it: it cannot be known which "
                "decision is meant. Run them in turn, or the whole model for one input after the other"
            )
        left = [w for w in meant[1:] if w.caller is caller]
        self._waiting.set(left or None)
        return meant[0].factor

    def __deepcopy__(self, _memo: dict[int, Any]) -> PendingFactors:
        """A copy of a gate has decided nothing."""
        return PendingFactors()

    def __reduce__(self) -> tuple[Any, ...]:
        return PendingFactors, ()


def _caller() -> FrameType | None:
    """The frame that called the module whose hook is running."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _HOOKS:
        frame = frame.f_back
    return frame


def _running() -> list[FrameType]:
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames
