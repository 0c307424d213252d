"""Run by test_grouped.py with TRITON_INTERPRET=1: the kernels on CPU tensors, in float32 and float16."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import triton

from dynamicgate.ops.ffn import (
    atomic_down,
    backward_kernels,
    dense_gate_gradient,
    forward_kernels,
    gated_ffn,
    index,
    reference_ffn,
    shared_pattern,
    tune,
)
from tests.ops.ffn.cases import call, errors, in_float64, run, tensors

OPTIONS = {"num_warps", "num_stages", "maxnreg", "launch_pdl"}
LAUNCHED = {
    backward_kernels: ("hidden_gradient", "weight_gradient", "bias_gradient"),
    dense_gate_gradient: ("hidden_from_dense", "gradients_from_dense"),
    atomic_down: ("down_atomic",),
    forward_kernels: ("up", "down", "reduce"),
    index: ("_count", "_scan", "_place", "_list_blocks"),
    shared_pattern: ("shared_pattern_up", "shared_pattern_down"),
}


class Strict:
    """A kernel that refuses arguments it does not have, which the interpreter would ignore."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **named: Any) -> None:
            named = {name: value for name, value in named.items() if name not in OPTIONS}
            inspect.signature(self.kernel.fn).bind(*args, **named)
            self.kernel[grid](*args, **named)

        return launch


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.knobs.runtime.interpret
    for module, names in LAUNCHED.items():
        for name in names:
            monkeypatch.setattr(module, name, Strict(getattr(module, name)))


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((40, 32, 64, 48, 16), {"activation": "relu"}),
        ((37, 20, 50, 19, 24), {"activation": "gelu"}),
        ((24, 16, 40, 16, 8), {"activation": "gelu_tanh"}),
        ((24, 16, 40, 16, 8), {"activation": "quick_gelu"}),
        ((24, 16, 40, 16, 8), {"activation": "relu2"}),
        ((20, 16, 40, 16, 8), {"activation": "identity", "gate_gradient": "dense"}),
    ],
)
def test_results_and_gradients_match_the_reference(sizes: tuple[int, ...], options: dict[str, str]) -> None:
    assert max(errors(tensors(*sizes), block=sizes[-1], **options).values()) < 1e-5


@pytest.mark.parametrize("gate_gradient", ["sparse", "dense"])
def test_swiglu(gate_gradient: str) -> None:
    given = tensors(37, 20, 50, 19, 24, value=True)
    assert max(errors(given, block=24, activation="silu", gate_gradient=gate_gradient).values()) < 1e-5


def test_half_precision_through_partial_outputs() -> None:
    given = tensors(40, 32, 64, 32, 16, dtype=torch.float16)
    assert max(errors(given, block=16, activation="silu").values()) < 2e-3


@pytest.mark.parametrize(
    ("sizes", "options", "gate_gradient"),
    [
        ((40, 32, 64, 32, 16), {}, "sparse"),
        ((37, 20, 50, 19, 24), {"bias": False}, "dense"),
        ((37, 20, 50, 40, 24), {"value": True}, "sparse"),
        ((37, 20, 50, 40, 24), {"value": True}, "dense"),
        ((20, 16, 32, 80, 16), {"opened": 0.0}, "sparse"),
        ((20, 16, 32, 80, 16), {"opened": 0.0}, "dense"),
        ((150, 24, 64, 24, 16), {"patterns": 3, "opened": 1.0}, "sparse"),
    ],
    ids=["even", "odd, dense", "swiglu", "swiglu, dense", "all closed", "all closed, dense", "all open"],
)
def test_half_precision_by_atomics(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], options: dict[str, Any], gate_gradient: str
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)  # memory stays poisoned
    given = tensors(*sizes, dtype=torch.float16, **options)
    assert tune.uses_atomics(sizes[0], given["factor"].shape[1], sizes[-1], False, torch.float16, torch.device("cpu"))
    assert max(errors(given, block=sizes[-1], activation="silu", gate_gradient=gate_gradient).values()) < 2e-3


@pytest.mark.parametrize("blocks", [slice(3), slice(0), slice(1, 2)], ids=["all open", "all closed", "one block"])
def test_skewed_gates(blocks: slice) -> None:
    opened = torch.zeros(20, 3, dtype=torch.bool)
    opened[:, blocks] = True
    assert max(errors(tensors(20, 16, 48, 16, 16, opened=opened), block=16).values()) < 1e-5


@pytest.mark.parametrize("row_cost", [-1_000, 1_000_000], ids=["assignments", "shared patterns"])
@pytest.mark.parametrize(("block", "value"), [(16, False), (64, True)])
def test_tiles_of_assignments_and_of_shared_patterns_agree(
    monkeypatch: pytest.MonkeyPatch, row_cost: int, block: int, value: bool
) -> None:
    monkeypatch.setattr(tune, "ROW_COST", row_cost)
    given = tensors(150, 24, 128, 24, block, patterns=3, value=value)
    given["up"][(given["factor"] == 0).all(0).repeat_interleave(block)] = torch.nan
    with torch.no_grad():
        y = call(gated_ffn, given, block=block, activation="silu")
        right = call(reference_ffn, in_float64(given), block=block, activation="silu")
    assert ((y - right).norm() / right.norm()).item() < 1e-5


def test_factors_may_be_bool() -> None:
    given = tensors(150, 24, 64, 24, 16, opened=0.3)
    opened = given["factor"] != 0
    as_numbers, as_bools = (call(gated_ffn, {**given, "factor": f}, block=16) for f in (opened.float(), opened))
    assert torch.equal(as_numbers, as_bools)


def test_a_single_wanted_gradient_is_the_same_as_among_all() -> None:
    given = tensors(20, 16, 32, 16, 16)
    whole = run(gated_ffn, given, None, block=16)
    x = given["x"].clone().requires_grad_()
    dy = torch.randn(20, 16, generator=torch.Generator().manual_seed(1))
    call(gated_ffn, {**given, "x": x}, block=16).backward(dy)
    assert torch.equal(x.grad, whole["d x"])
