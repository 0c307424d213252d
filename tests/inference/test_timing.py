"""What timing on the CPU and on a GPU share."""

from __future__ import annotations

import torch

from dynamicgate.inference.timing import RoundRobin, batches_of


def test_each_round_starts_with_another_call() -> None:
    order: list[str] = []
    robin = RoundRobin(["a", "b", "c"])
    for _ in range(3):
        robin.run(lambda name: float(order.append(name) or len(order)))  # type: ignore[func-returns-value]
    robin.run(lambda _name: 0.0, skip={"a", "b"})
    assert "".join(order) == "abcbcacab"
    assert robin.times == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0, 0.0]}


def test_inputs_cycle_through_the_rows_that_there_are() -> None:
    rows = torch.arange(5.0).reshape(5, 1)
    assert [len(batches_of(rows, batch)) for batch in (1, 4, 5, 64, 65)] == [32, 32, 8, 8, 2]
    assert len(batches_of(rows, 1, at_most=8)) == 8
    first, second = batches_of(rows, 3)[:2]
    assert first.flatten().tolist() == [0, 1, 2]
    assert second.flatten().tolist() == [3, 4, 0]
