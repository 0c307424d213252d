"""What runs tasks in parallel: the interface that the process pool and Ray have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", bound=Hashable)


class Engine(Protocol):
    """Runs each task in a process with one thread, so that its result does not depend on where it runs, nor on what
    runs beside it."""

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        ...

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        more: Callable[[T], Sequence[T]] | None = None,
        shared: Path | None = None,
    ) -> Iterator[tuple[T, R]]:
        """Each item with what `task` returns for it, as they finish; the first error ends all.

        Functions are found by their import path. `more` is asked for further items after each that has finished; they
        are taken first, so that what was begun ends before anything else begins. shared: a folder that tasks write to
        and all machines must see.
        """
        ...


def as_they_finish(
    items: Sequence[T],
    *,
    start: Callable[[T], H],
    wait: Callable[[list[H]], Collection[H]],
    at_once: Callable[[], int],
    more: Callable[[T], Sequence[T]] | None = None,
) -> Iterator[tuple[T, H]]:
    """Start items, as many as `at_once` says, and give each back with its handle when `wait` says that it is done."""
    waiting, started = deque(items), dict[H, T]()
    while waiting or started:
        while waiting and len(started) < max(1, at_once()):
            item = waiting.popleft()
            started[start(item)] = item
        done = wait(list(started))
        for handle in [handle for handle in started if handle in done]:  # in the order of their start
            item = started.pop(handle)
            yield item, handle
            if more is not None:
                waiting.extendleft(reversed(more(item)))
