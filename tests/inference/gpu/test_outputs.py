"""Outputs of captured graphs are handed out without a copy, and never overwritten while somebody holds them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.inference.gpu import outputs as outputs_module
from dynamicgate.inference.gpu.outputs import Outputs, graphs_of, holders
from tests.inference.gpu.fake_pool import FakePool, Piece


class Graph:
    """Stands for a captured graph: writes the number of the call into memory that stays where it is."""

    def __init__(self, calls: list[int]) -> None:
        self.memory, self.calls = torch.zeros(3), calls

    def __call__(self) -> Tensor:
        self.calls.append(1)
        return self.memory.fill_(len(self.calls))


def graphs(count: int) -> tuple[list[Graph], list[int]]:
    calls: list[int] = []
    return [Graph(calls) for _ in range(count)], calls


def test_outputs_that_are_held_are_not_overwritten() -> None:
    outputs = Outputs(graphs(3)[0])
    held = [outputs() for _ in range(6)]
    first = float(held[0][0])
    assert [float(each[0]) - first for each in held] == [0, 1, 2, 3, 4, 5]
    assert len({each.data_ptr() for each in held}) == 6


def test_the_memory_of_outputs_is_used_again_once_nobody_holds_a_view_of_them() -> None:
    made, calls = graphs(3)
    outputs = Outputs(made)
    addresses = set()
    for _ in range(8):
        y = outputs()
        addresses.add(y.data_ptr())
        assert float(y[0]) == len(calls)
    assert addresses == {made[0].memory.data_ptr(), made[1].memory.data_ptr()}, "a loop needs no copy"
    part = y[1:]
    del y
    before = part.clone()
    for _ in range(4):
        outputs()
    assert torch.equal(part, before), "a view keeps the memory of the whole"


def test_with_one_graph_outputs_are_copied() -> None:
    made, _ = graphs(1)
    outputs = Outputs(made)
    y = outputs()
    assert y.data_ptr() != made[0].memory.data_ptr()


def test_outputs_that_share_memory_with_something_else_are_copied() -> None:
    weight = torch.ones(4)
    outputs = Outputs([lambda: weight[:2], lambda: weight[2:], lambda: weight])
    assert outputs().data_ptr() != weight.data_ptr()


def test_a_storage_alone_keeps_the_memory() -> None:
    outputs = Outputs(graphs(3)[0])
    y = outputs()
    storage, before = y.untyped_storage(), y.clone()
    del y
    for _ in range(4):
        outputs()
    assert torch.equal(torch.empty(0).set_(storage), before)


class Stream:
    """Stands for a stream of a GPU."""

    def __init__(self) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


def test_memory_is_written_again_after_the_stream_whose_caller_held_it() -> None:
    outputs, one, other = Outputs(graphs(3)[0]), Stream(), Stream()
    first = outputs(one)
    second = outputs(other)
    assert not one.waited_for
    assert not other.waited_for, "the second graph has memory of its own"
    address = first.data_ptr()
    del first  # which stream `one` may not have read yet
    assert outputs(other).data_ptr() == address
    assert other.waited_for == [one]
    assert outputs(other).data_ptr() == address
    assert other.waited_for == [one], "once is enough"
    assert torch.equal(second, second.clone())


def chain(pool: FakePool, x: Tensor, sizes: list[int]) -> Callable[[], Tensor]:
    """Maps, one after the other, that let go of what they have read. Each adds one to the largest number it reads."""

    def add_one(read: Piece | None, written: Piece) -> None:
        pool.tensor(written).fill_(float((x if read is None else pool.tensor(read)).max()) + 1)

    def call() -> Tensor:
        read = None
        for size in sizes:
            written = pool.take(4 * size)
            pool.launch(partial(add_one, read, written))
            if read is not None:
                pool.release(read)
            read = written
        assert read is not None
        return pool.tensor(read)

    return call


def use(call: Callable[[float], Tensor], depth: int, seed: int) -> int:
    """Call, hold some outputs and let go of others; how many of those that were held changed."""
    order, held, changed = random.Random(seed), dict[float, Tensor](), 0
    for number in range(24):
        value = 100.0 * number
        held[value] = call(value)
        changed += sum(not bool((y == v + depth).all()) for v, y in held.items())
        for v in list(held):
            if len(held) > 3 or order.random() < 0.4:
                del held[v]
    return changed


def random_sizes(seed: int) -> list[int]:
    order = random.Random(seed)
    return [order.choice([16, 16, 16, 24, 64]) for _ in range(order.randint(1, 6))]


@pytest.fixture
def small_outputs_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "WORTH_A_GRAPH", 64)


@pytest.mark.usefixtures("small_outputs_are_worth_it")
def test_graphs_that_share_memory_do_not_destroy_what_another_one_handed_out() -> None:
    x, handed_out = torch.zeros(16), 0
    for seed in range(200):
        pool, sizes = FakePool(seed), random_sizes(seed)
        runs = graphs_of(chain(pool, x, sizes), pool)
        outputs = Outputs(runs)
        assert use(lambda value, o=outputs: (x.fill_(value), o())[1], len(sizes), seed) == 0, (seed, sizes)
        assert pool.captured == len(runs)
        handed_out += len(runs) == 3
    assert handed_out > 20, "the place that was held for the second graph is taken now and then"


def test_graphs_that_just_share_memory_would_destroy_it() -> None:
    """What the test above can see: with three captures of the same call it finds what was overwritten."""
    x, wrong = torch.zeros(16), 0
    for seed in range(50):
        pool, sizes = FakePool(seed), random_sizes(seed)
        call = chain(pool, x, sizes)
        outputs = Outputs([pool.capture(call) for _ in range(3)])
        wrong += use(lambda value, o=outputs: (x.fill_(value), o())[1], len(sizes), seed) > 0
    assert wrong > 5


class Counted:
    """Counts captures; there is nothing to share."""

    def __init__(self) -> None:
        self.captures = 0

    def warm_up(self, call: Callable[[], Tensor]) -> Tensor:
        return call()

    def empty(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def capture(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captures += 1
        found = call()
        return lambda: found


@pytest.mark.usefixtures("small_outputs_are_worth_it")
def test_outputs_that_are_not_the_calls_own_are_captured_once() -> None:
    weight = torch.ones(64)
    calls: list[tuple[int, Any]] = [
        (1, lambda: weight),
        (1, lambda: weight[8:]),
        (1, lambda: torch.zeros(4)),
        (2, lambda: torch.zeros(64)),
    ]
    for least, call in calls:
        pool = Counted()
        assert len(graphs_of(call, pool)) == pool.captures
        assert (pool.captures == 1) == (least == 1)


@pytest.mark.usefixtures("small_outputs_are_worth_it")
def test_a_view_that_is_all_there_is_of_its_memory_is_handed_out_like_any_other_output() -> None:
    x, weight = torch.randn(2, 3, 4), torch.randn(5, 4)
    assert holders(F.linear(x, weight).view(-1)) != holders(torch.empty(0)), "it holds what it is a view of"
    pool = Counted()
    runs = graphs_of(lambda: F.linear(x, weight).view(-1), pool)
    assert pool.captures == 2
    kept = runs[0]().data_ptr()
    outputs = Outputs(runs)
    assert outputs().data_ptr() == kept
