"""Bypassing torch's dispatcher gives the result of the op, and is not done where anything must see the op."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dynamicgate.ops import chain, native
from dynamicgate.ops.chain import registration
from tests.ops.chains import Sketch, build, inputs_for

LAYERS = build(12, [Sketch(40, block=16), Sketch(3)], seed=1)
PACKED = chain.pack(LAYERS)
OP = torch.ops.dynamicgate.run_chain.default


class RecordedOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def bypassed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For every call that reached the bypass, whether it was answered there."""
    bypass = native.dispatcher_bypass()
    if bypass is None:
        pytest.skip("this torch has no exchange table, or there are no kernels")
    answers: list[bool] = []

    def recorded(*tensors: torch.Tensor) -> torch.Tensor | None:
        y = bypass(*tensors)
        answers.append(y is not None)
        return y

    monkeypatch.setattr(registration, "_bypass", recorded)
    return answers


def by_op(x: torch.Tensor) -> torch.Tensor:
    return OP(x, PACKED.weights, PACKED.program, None, PACKED.outputs)


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_plain_rows_bypass_the_dispatcher_and_give_the_result_of_the_op(rows: int, bypassed: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, rows, seed=1)
    y = chain.run(x, PACKED)
    assert torch.equal(y, by_op(x))
    assert bypassed == [rows > 0]  # an empty tensor has no memory: the op answers


def test_other_inputs_are_left_to_the_op(bypassed: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 10, seed=1)
    wide = torch.randn(10, 24)
    for other in (x.t().contiguous().t(), wide[:, ::2], wide[:, 5:17]):
        torch.testing.assert_close(chain.run(other, PACKED), by_op(other.clone()))
    assert bypassed == [False, False, True]
    many = torch.vmap(lambda row: row * 2)(x)
    assert torch.equal(chain.run(many.view(2, 5, 12), PACKED).view(10, 3), by_op(many))


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (1, 3, 2), (0, 5), ()])
def test_rows_in_any_number_of_dimensions_bypass_it_too(shape: tuple[int, ...], bypassed: list[bool]) -> None:
    x = torch.randn(*shape, 12)
    y = chain.run(x, PACKED)
    assert y.shape == (*shape, 3)
    assert torch.equal(y.reshape(-1, 3), by_op(x.reshape(-1, 12)))
    assert bypassed == [x.numel() > 0]


def test_what_observes_rows_in_three_dimensions_sees_the_op(bypassed: list[bool]) -> None:
    x = torch.randn(2, 5, 12)
    with RecordedOps() as recorded:
        chain.run(x, PACKED)
    assert OP in recorded.ops
    chain.run(x.clone().requires_grad_(), PACKED)
    chain.run(torch._neg_view(x), PACKED)
    assert bypassed == []
    assert torch.equal(chain.run(x.transpose(0, 1), PACKED), chain.run(x, PACKED).transpose(0, 1))
    assert bypassed == [True, True], "what is copied has contiguous rows"


def test_a_negation_not_yet_carried_out_is_left_to_the_op(bypassed: list[bool]) -> None:
    """Its memory holds the numbers before: what reads memory computes with the wrong sign."""
    x, _ = inputs_for(LAYERS, 10, seed=1)
    shared = torch.view_as_complex(torch.randn(10, 12, 2)).conj().imag.as_strided((10, 12), (24, 1))
    for lazy in (torch._neg_view(x), torch._neg_view(x)[:1], torch._neg_view(x.t().contiguous().t()), shared):
        assert lazy.is_neg()
        assert torch.equal(chain.run(lazy, PACKED), by_op(lazy.clone()))
    assert torch.equal(chain.run(torch._efficientzerotensor(10, 12), PACKED), by_op(torch.zeros(10, 12)))
    assert not any(bypassed)


def test_the_result_is_an_ordinary_tensor(bypassed: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 5, seed=1)
    y = chain.run(x, PACKED)
    part = y[2:4]
    expected = part.clone()
    del y
    gc.collect()
    assert torch.equal(part, expected)
    assert not part.requires_grad
    assert part.add_(1.0).is_cpu
    assert bypassed == [True]


def test_modes_profilers_and_autograd_see_the_op(bypassed: list[bool]) -> None:
    x, _ = inputs_for(LAYERS, 5, seed=1)
    with RecordedOps() as recorded:
        chain.run(x, PACKED)
    assert recorded.ops == [OP]
    with torch.profiler.profile() as profile:
        chain.run(x, PACKED)
    assert "dynamicgate::run_chain" in {event.key for event in profile.key_averages()}
    chain.run(x.clone().requires_grad_(), PACKED)
    assert bypassed == []
    with torch.no_grad():
        chain.run(x.clone().requires_grad_(), PACKED)
    assert bypassed == [True]
