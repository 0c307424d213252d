"""CUDA graphs and the memory they share, as far as it matters who writes where, on the CPU."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

BYTES = 1 << 14
Piece = tuple[int, int]  # first byte and size


class FakePool:
    """Hands out pieces of one memory, each as a storage of its own, and replays what was launched on them.

    A piece that is free may be handed out again for anything that fits, as torch does it. Which of several is drawn at
    random: what holds for all choices does not depend on the rules of an allocator.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.memory = random.Random(seed), bytearray(BYTES)
        self.free: list[Piece] = [(0, BYTES)]
        self.launches: list[Callable[[], object]] | None = None
        self.captured = 0

    def take(self, nbytes: int) -> Piece:
        at = self.random.choice([i for i, (_, size) in enumerate(self.free) if size >= nbytes])
        start, size = self.free.pop(at)
        if size > nbytes:
            self.free.append((start + nbytes, size - nbytes))
        return start, nbytes

    def release(self, piece: Piece) -> None:
        merged = [(0, 0)]
        for start, size in sorted([*self.free, piece]):
            last, before = merged[-1]
            if last + before == start:
                merged[-1] = (last, before + size)
            else:
                merged.append((start, size))
        self.free = [found for found in merged if found[1]]

    def tensor(self, piece: Piece) -> Tensor:
        return torch.frombuffer(self.memory, dtype=torch.float32, offset=piece[0], count=piece[1] // 4)

    def launch(self, work: Callable[[], object]) -> None:
        """`work` must not hold tensors: a graph knows addresses."""
        work()
        if self.launches is not None:
            self.launches.append(work)

    def warm_up(self, call: Callable[[], Tensor]) -> Tensor:
        """On memory that is no part of the pool."""
        kept = self.memory, self.free
        self.memory, self.free = bytearray(BYTES), [(0, BYTES)]
        found = call()
        self.memory, self.free = kept
        return found

    def empty(self, nbytes: int) -> Tensor:
        """A piece that is given back when its tensor is let go of."""
        piece = self.take(nbytes)
        found = self.tensor(piece)
        weakref.finalize(found, self.release, piece)
        return found

    def capture(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.launches = launches = []
        found = call()
        self.launches = None
        self.captured += 1

        def replay() -> Tensor:
            for work in launches:
                work()
            return found

        return replay
