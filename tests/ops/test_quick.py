"""The way past torch's dispatcher gives what the op gives, and steps aside for everything that must see the op."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dynamicgate import ops
from dynamicgate.ops import kernels
from dynamicgate.ops.chain import cpu
from tests.ops.chains import Sketch, build, inputs_for

LAYERS = build(12, [Sketch(40, block=16), Sketch(3)], seed=1)
PACKED = ops.pack(LAYERS)
OP = torch.ops.dynamicgate.run.default


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For every call that came to the quick way, whether it was answered there."""
    quick = kernels.quick()
    if quick is None:
        pytest.skip("this torch has no exchange table, or there are no kernels")
    answers: list[bool] = []

    def noted(*tensors: torch.Tensor) -> torch.Tensor | None:
        y = quick(*tensors)
        answers.append(y is not None)
        return y

    monkeypatch.setattr(cpu, "_quick", noted)
    return answers


def by_op(x: torch.Tensor) -> torch.Tensor:
    return OP(x, PACKED.weights, PACKED.program, None, PACKED.outputs)


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_plain_rows_take_it_and_give_what_the_op_gives(rows: int, taken: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, rows, seed=1)
    y = ops.run(x, PACKED)
    assert torch.equal(y, by_op(x))
    assert taken == [rows > 0]  # no rows have no memory: the op answers


def test_what_it_cannot_do_is_left_to_the_op(taken: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 10, seed=1)
    wide = torch.randn(10, 24)
    for other in (x.t().contiguous().t(), wide[:, ::2], wide[:, 5:17], torch._neg_view(x.t().contiguous().t())):
        torch.testing.assert_close(ops.run(other, PACKED), by_op(other.clone()))
    assert taken == [False, False, True, False]
    many = torch.vmap(lambda row: row * 2)(x)
    assert torch.equal(ops.run(many.view(2, 5, 12), PACKED).view(10, 3), by_op(many))


def test_the_result_is_an_ordinary_tensor(taken: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 5, seed=1)
    y = ops.run(x, PACKED)
    part = y[2:4]
    expected = part.clone()
    del y
    gc.collect()
    assert torch.equal(part, expected)
    assert not part.requires_grad
    assert part.add_(1.0).is_cpu
    assert taken == [True]


def test_whoever_watches_sees_the_op(taken: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 5, seed=1)
    with Seen() as seen:
        ops.run(x, PACKED)
    assert seen.ops == [OP]
    with torch.profiler.profile() as profile:
        ops.run(x, PACKED)
    assert "dynamicgate::run" in {event.key for event in profile.key_averages()}
    ops.run(x.clone().requires_grad_(), PACKED)
    assert taken == []
    with torch.no_grad():
        ops.run(x.clone().requires_grad_(), PACKED)
    assert taken == [True]
