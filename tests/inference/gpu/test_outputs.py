"""Outputs of captured graphs are handed out without a copy, and never overwritten while somebody holds them."""

import torch
from torch import Tensor

from dynamicgate.inference.gpu.cuda_graph import Outputs


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
