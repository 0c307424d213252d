"""`gated_ffn` without a GPU: the registered op on the reference, and the kernels interpreted and compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dynamicgate.ops.ffn import gated_ffn, reference_ffn
from dynamicgate.ops.ffn.saved import Saved
from tests.ops.ffn.cases import call, errors, in_float64, run, tensors, weights_of
from tests.ops.ffn.compiled import Compiled

GPU = torch.device("cuda", 0)


@pytest.mark.slow
def test_the_kernels_match_the_reference_and_list_assignments_in_order(interpreted: Callable[..., None]) -> None:
    interpreted("interpreted_grouped.py", "interpreted_index.py")


@pytest.mark.slow
@pytest.mark.parametrize("block", [64, 512])
def test_the_kernels_compile_for_a_hopper_gpu_and_fit_its_memory(
    block: int, for_hopper: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter has memory for tiles of any size."""
    from dynamicgate.ops.ffn import (
        atomic_down,
        backward_kernels,
        dense_gate_gradient,
        forward_kernels,
        grouped_backward,
        grouped_forward,
        index,
        shared_pattern,
        tune,
    )

    table, tile = json.loads((Path(tune.__file__).parent / "tuned/sm9x.json").read_text()), tune.tile.__wrapped__
    monkeypatch.setattr(tune, "_table", lambda _: table["tiles"])
    monkeypatch.setattr(tune, "tile", lambda kernel, T, block, dtype, _: tile(kernel, 16384, block, dtype, GPU))
    monkeypatch.setattr(tune, "rows", lambda _: 128)
    monkeypatch.setattr(tune, "dependent_launch", lambda _: {"DEPENDENT": True})
    monkeypatch.setattr(tune, "uses_atomics", lambda *_: True)
    names = {
        atomic_down: ("down_atomic",),
        dense_gate_gradient: ("hidden_from_dense", "gradients_from_dense"),
        forward_kernels: ("up", "down", "reduce"),
        shared_pattern: ("shared_pattern_up", "shared_pattern_down"),
        index: ("_count", "_scan", "_place", "_list_blocks"),
        backward_kernels: ("hidden_gradient", "weight_gradient", "bias_gradient"),
    }
    for module, kernels in names.items():
        for name in kernels:
            monkeypatch.setattr(module, name, Compiled(getattr(module, name)))
    given = tensors(384, 256, 1024, 256, block, dtype=torch.bfloat16)
    x, factor, weights = given["x"], given["factor"], weights_of(given)
    nothing = x.new_empty(0)
    sizes = grouped_forward.saved_sizes(*factor.shape, x.device)
    sparse = Saved(x.new_empty(sizes[0], block), nothing, nothing, torch.empty(sizes[1], dtype=torch.int32))
    wanted = {name for name, t in given.items() if t is not None}
    for deterministic in (True, False):
        for save_for in ("", "sparse", "dense"):
            saved = sparse._replace(pre=x.new_empty(len(x), len(weights.up))) if save_for == "dense" else sparse
            options = (block, "relu", save_for, deterministic)
            grouped_forward.forward(x, factor, weights, *options, saved)
            if save_for:
                grouped_backward.backward(x, x, factor, weights, *options, wanted, saved)
    assert Compiled.compiled >= {name for kernels in names.values() for name in kernels}


@pytest.mark.parametrize("gate_gradient", ["sparse", "dense"])
@pytest.mark.parametrize("value", [False, True])
def test_the_op_matches_the_reference_in_results_and_gradients(gate_gradient: str, value: bool) -> None:
    given = tensors(30, 20, 50, 19, 24, value=value)
    assert max(errors(given, block=24, activation="gelu", gate_gradient=gate_gradient).values()) < 1e-5


def test_dense_and_sparse_gate_gradients_differ_for_closed_factors_only() -> None:
    given = tensors(40, 16, 64, 16, 16)
    sparse, dense = (run(gated_ffn, given, None, block=16, gate_gradient=g) for g in ("sparse", "dense"))
    closed_TG = given["factor"] == 0
    assert not sparse["d factor"][closed_TG].any()
    assert dense["d factor"][closed_TG].all()
    dense["d factor"] = dense["d factor"].masked_fill(closed_TG, 0)
    for name, right in sparse.items():
        torch.testing.assert_close(dense[name], right, rtol=1e-4, atol=1e-5, msg=name)


def test_the_reference_is_the_masked_dense_layer() -> None:
    given = in_float64(tensors(20, 16, 40, 12, 16, value=True))
    x, factor, up, down, value, up_bias, down_bias, value_bias = given.values()
    h = torch.nn.functional.silu(x @ up.T + up_bias) * (x @ value.T + value_bias)
    y = (h * factor.repeat_interleave(16, 1)[:, :40]) @ down.T + down_bias
    torch.testing.assert_close(call(reference_ffn, given, block=16, activation="silu"), y)


def test_weights_of_a_block_that_is_closed_for_all_tokens_do_not_matter() -> None:
    opened = torch.ones(30, 4, dtype=torch.bool)
    opened[:, 2] = False
    given = tensors(30, 16, 64, 16, 16, opened=opened)
    given["up"][32:48] = torch.nan
    given["down"][:, 32:48] = torch.nan
    assert all(t.isfinite().all() for t in run(gated_ffn, given, None, block=16).values())


def test_any_leading_dimensions_and_no_tokens_at_all() -> None:
    given = tensors(12, 8, 32, 6, 8, bias=False)
    flat = call(gated_ffn, given, block=8)
    folded = {n: t.reshape(3, 4, -1) if n in ("x", "factor") else t for n, t in given.items()}
    assert torch.equal(call(gated_ffn, folded, block=8), flat.reshape(3, 4, 6))
    nothing = {n: t[:0] if n in ("x", "factor") else t for n, t in given.items()}
    assert call(gated_ffn, nothing, block=8).shape == (0, 6)


def test_autocast_runs_the_layer_in_its_dtype() -> None:
    given = tensors(12, 8, 32, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(gated_ffn, given, block=8).dtype == torch.bfloat16


@pytest.mark.parametrize("save_for", ["", "sparse", "dense"])
def test_opcheck_finds_nothing(save_for: str) -> None:
    given = {
        name: t if t is None else t.requires_grad_(bool(save_for))
        for name, t in tensors(9, 8, 20, 6, 8, value=True).items()
    }
    torch.library.opcheck(torch.ops.dynamicgate.ffn.default, (*given.values(), 8, "silu", save_for, False))


def test_it_compiles_without_a_graph_break() -> None:
    given = tensors(20, 16, 64, 16, 16)
    compiled = torch.compile(gated_ffn, fullgraph=True, backend="aot_eager")
    eager, found = (run(function, given, None, block=16) for function in (gated_ffn, compiled))
    assert all(torch.equal(eager[name], found[name]) for name in eager)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "block must be 1 or more, received 0"),
        ({"activation": "tanh"}, "activation must be one of identity, relu, .*, relu2, received 'tanh'"),
        ({"gate_gradient": "exact"}, "gate_gradient must be sparse or dense, received 'exact'"),
        ({"factor": torch.ones(20, 3)}, r"expected factor_TG of shape \(20, 4\), received \(20, 3\)"),
        ({"x": torch.ones(20, 15)}, "expected x with 16 features, received 15"),
        ({"down": torch.ones(16, 60)}, r"expected down of shape \(16, 64\), received \(16, 60\)"),
        ({"value": torch.ones(60, 16)}, r"expected value of shape \(64, 16\), received \(60, 16\)"),
        ({"up_bias": torch.ones(64).double()}, "expected up_bias in torch.float32 like x, received torch.float64"),
        ({"value_bias": torch.ones(64)}, "value_bias needs value, received None"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    given = tensors(20, 16, 64, 16, 16)
    options = {"block": 16, **{name: value for name, value in change.items() if name not in given}}
    with pytest.raises(ValueError, match=message):
        call(gated_ffn, {name: change.get(name, t) for name, t in given.items()}, **options)
