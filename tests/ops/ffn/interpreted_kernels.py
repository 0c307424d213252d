"""Run by test_many.py with TRITON_INTERPRET=1: the kernels on CPU tensors, in float32 and float16."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import triton

from dynamicgate.ops.ffn import (
    atomic_down,
    backward,
    dense_gate_gradient,
    forward,
    gated_ffn,
    index,
    reference,
    shared_pattern,
    tune,
)
from tests.ops.ffn.cases import errors, run, tensors

OPTIONS = {"num_warps", "num_stages", "maxnreg", "launch_pdl"}
LAUNCHED = {
    backward: ("hidden_gradient", "weight_gradient", "bias_gradient"),
    dense_gate_gradient: ("exact_hidden", "exact_gradients"),
    atomic_down: ("down_adding",),
    forward: ("up", "down", "reduce"),
    index: ("_count", "_scan", "_place", "_share"),
    shared_pattern: ("like_up", "like_down"),
}


class Strict:
    """A kernel that refuses arguments it does not have: the interpreter would overlook them."""

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
        ((20, 16, 40, 16, 8), {"activation": "identity", "gradient": "exact"}),
    ],
)
def test_results_and_gradients(sizes: tuple[int, ...], options: dict[str, str]) -> None:
    assert max(errors(tensors(*sizes), block=sizes[-1], **options).values()) < 1e-5


@pytest.mark.parametrize("gradient", ["sparse", "exact"])
def test_swiglu(gradient: str) -> None:
    given = tensors(37, 20, 50, 19, 24, value=True)
    assert max(errors(given, block=24, activation="silu", gradient=gradient).values()) < 1e-5


def test_half_precision_through_rows_of_pairs() -> None:
    given = tensors(40, 32, 64, 32, 16, dtype=torch.float16)
    assert max(errors(given, block=16, activation="silu").values()) < 2e-3


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((40, 32, 64, 32, 16), {}),
        ((37, 20, 50, 19, 24), {"bias": False}),
        ((37, 20, 50, 40, 24), {"value": True}),
        ((20, 16, 32, 80, 16), {"opened": 0.0}),
        ((150, 24, 64, 24, 16), {"patterns": 3, "opened": 1.0}),
    ],
    ids=["even", "odd", "swiglu", "all closed", "all open"],
)
@pytest.mark.parametrize("gradient", ["sparse", "exact"])
def test_pairs_added_to_the_outputs(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], options: dict[str, Any], gradient: str
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)  # memory stays poisoned
    given = tensors(*sizes, dtype=torch.float16, **options)
    assert tune.adds(sizes[0], given["factor_TG"].shape[1], sizes[-1], False, torch.float16, torch.device("cpu"))
    assert max(errors(given, block=sizes[-1], activation="silu", gradient=gradient).values()) < 2e-3


@pytest.mark.parametrize("blocks", [slice(3), slice(0), slice(1, 2)], ids=["all open", "all closed", "one takes all"])
def test_skewed_gates(blocks: slice) -> None:
    opened = torch.zeros(20, 3, dtype=torch.bool)
    opened[:, blocks] = True
    assert max(errors(tensors(20, 16, 48, 16, 16, opened=opened), block=16).values()) < 1e-5


@pytest.mark.parametrize("cost_of_a_pair", [-1_000, 1_000_000], ids=["tiles of pairs", "tiles of like tokens"])
@pytest.mark.parametrize(("block", "value"), [(16, False), (64, True)])
def test_both_ways_to_the_result(monkeypatch: pytest.MonkeyPatch, cost_of_a_pair: int, block: int, value: bool) -> None:
    monkeypatch.setattr(tune, "PARTIAL", cost_of_a_pair)
    given = tensors(150, 24, 128, 24, block, patterns=3, value=value)
    given["up_ND"][(given["factor_TG"] == 0).all(0).repeat_interleave(block)] = torch.nan
    in_float64 = {name: None if t is None else t.double() for name, t in given.items()}
    with torch.no_grad():
        y, right = (
            call(**t, block=block, activation="silu") for call, t in ((gated_ffn, given), (reference, in_float64))
        )
    assert ((y - right).norm() / right.norm()).item() < 1e-5


def test_factors_may_be_open_or_closed() -> None:
    given = tensors(150, 24, 64, 24, 16, opened=0.3)
    opened = given.pop("factor_TG") != 0
    as_numbers, as_bools = (gated_ffn(**given, factor_TG=factor, block=16) for factor in (opened.float(), opened))
    assert torch.equal(as_numbers, as_bools)


def test_only_wanted_gradients_are_made() -> None:
    given = tensors(20, 16, 32, 16, 16)
    whole = run(gated_ffn, given, None, block=16)
    x = given["x_TD"].clone().requires_grad_()
    gated_ffn(**{**given, "x_TD": x}, block=16).backward(
        torch.randn(20, 16, generator=torch.Generator().manual_seed(1))
    )
    assert torch.equal(x.grad, whole["d x_TD"])
