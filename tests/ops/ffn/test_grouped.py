"""`gated_ffn` where there is no GPU: the reference behind a registered op, and the kernels in Triton's interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dynamicgate.ops.ffn import gated_ffn, reference
from dynamicgate.ops.ffn.saved import Kept
from tests.ops.ffn.cases import errors, run, tensors
from tests.ops.ffn.compiled import Compiled

GPU = torch.device("cuda", 0)


def test_the_kernels_give_the_results_and_gradients_of_the_reference(interpreted: Callable[[str], None]) -> None:
    interpreted("interpreted_kernels.py")


def test_pairs_are_listed_in_order_and_like_tokens_side_by_side(interpreted: Callable[[str], None]) -> None:
    interpreted("interpreted_index.py")


@pytest.mark.parametrize("block", [64, 512])
def test_the_kernels_compile_for_a_hopper_gpu_and_fit_its_memory(
    block: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The interpreter has memory for any tile."""
    pytest.importorskip("triton")
    from dynamicgate.ops.ffn import (
        atomic_down,
        backward,
        dense_gate_gradient,
        forward,
        grouped,
        index,
        shared_pattern,
        tune,
    )

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    table, tile = json.loads((Path(tune.__file__).parent / "tuned/sm9x.json").read_text()), tune.tile.__wrapped__
    monkeypatch.setattr(tune, "_table", lambda _: table["tiles"])
    monkeypatch.setattr(tune, "tile", lambda kernel, T, block, dtype, _: tile(kernel, 16384, block, dtype, GPU))
    monkeypatch.setattr(tune, "rows", lambda _: 128)
    monkeypatch.setattr(tune, "chained", lambda _: {"AFTER": True})
    monkeypatch.setattr(tune, "adds", lambda *_: True)
    names = {
        atomic_down: ("down_adding",),
        dense_gate_gradient: ("exact_hidden", "exact_gradients"),
        forward: ("up", "down", "reduce"),
        shared_pattern: ("like_up", "like_down"),
        index: ("_count", "_scan", "_place", "_share"),
        backward: ("hidden_gradient", "weight_gradient", "bias_gradient"),
    }
    for module, kernels in names.items():
        for name in kernels:
            monkeypatch.setattr(module, name, Compiled(getattr(module, name)))
    given = tensors(384, 256, 1024, 256, block, dtype=torch.bfloat16)
    x, up, down, factor, up_bias, down_bias, _, _ = given.values()
    nothing = x.new_empty(0)
    sizes = grouped.kept_sizes(*factor.shape, x.device)
    kept = Kept(x.new_empty(sizes[0], block), nothing, nothing, torch.empty(sizes[1], dtype=torch.int32))
    wanted = [True, True, True, True, True, True, False, False]
    for in_order in (True, False):
        for keep in ("", "sparse", "exact"):
            whole = kept._replace(pre=x.new_empty(len(x), len(up))) if keep == "exact" else kept
            grouped.forward(x, up, down, factor, up_bias, down_bias, None, None, block, "relu", keep, in_order, whole)
            if keep:
                grouped.backward(x, x, up, down, factor, None, block, "relu", keep, in_order, wanted, whole)
    assert Compiled.compiled >= {name for kernels in names.values() for name in kernels}


@pytest.mark.parametrize("gradient", ["sparse", "exact"])
@pytest.mark.parametrize("value", [False, True])
def test_the_op_gives_the_results_and_gradients_of_the_reference(gradient: str, value: bool) -> None:
    given = tensors(30, 20, 50, 19, 24, value=value)
    assert max(errors(given, block=24, activation="gelu", gradient=gradient).values()) < 1e-5


def test_exact_gradients_differ_from_sparse_ones_for_closed_factors_only() -> None:
    given = tensors(40, 16, 64, 16, 16)
    sparse, exact = (run(gated_ffn, given, None, block=16, gradient=gradient) for gradient in ("sparse", "exact"))
    closed_TG = given["factor_TG"] == 0
    assert not sparse["d factor_TG"][closed_TG].any()
    assert exact["d factor_TG"][closed_TG].all()
    exact["d factor_TG"] = exact["d factor_TG"].masked_fill(closed_TG, 0)
    for name, right in sparse.items():
        torch.testing.assert_close(exact[name], right, rtol=1e-4, atol=1e-5, msg=name)


def test_the_reference_is_the_masked_dense_layer() -> None:
    given = {name: None if t is None else t.double() for name, t in tensors(20, 16, 40, 12, 16, value=True).items()}
    x, up, down, factor, up_bias, down_bias, value, value_bias = given.values()
    h = torch.nn.functional.silu(x @ up.T + up_bias) * (x @ value.T + value_bias)
    y = (h * factor.repeat_interleave(16, 1)[:, :40]) @ down.T + down_bias
    torch.testing.assert_close(reference(**given, block=16, activation="silu"), y)


def test_weights_of_a_block_that_is_closed_for_all_do_not_matter() -> None:
    opened = torch.ones(30, 4, dtype=torch.bool)
    opened[:, 2] = False
    given = tensors(30, 16, 64, 16, 16, opened=opened)
    given["up_ND"][32:48] = torch.nan
    given["down_ON"][:, 32:48] = torch.nan
    assert all(t.isfinite().all() for t in run(gated_ffn, given, None, block=16).values())


def test_any_leading_dimensions_and_no_tokens_at_all() -> None:
    given = {name: t for name, t in tensors(12, 8, 32, 6, 8, bias=False).items() if t is not None}
    flat = gated_ffn(**given, block=8)
    folded = {n: t.reshape(3, 4, -1) if n in ("x_TD", "factor_TG") else t for n, t in given.items()}
    assert torch.equal(gated_ffn(**folded, block=8), flat.reshape(3, 4, 6))
    nothing = {n: t[:0] if n in ("x_TD", "factor_TG") else t for n, t in given.items()}
    assert gated_ffn(**nothing, block=8).shape == (0, 6)


def test_autocast_runs_the_layer_in_its_dtype() -> None:
    given = {name: t for name, t in tensors(12, 8, 32, 6, 8).items() if t is not None}
    with torch.autocast("cpu", torch.bfloat16):
        assert gated_ffn(**given, block=8).dtype == torch.bfloat16


@pytest.mark.parametrize("gradient", ["", "sparse", "exact"])
def test_the_op_is_registered_as_torch_wants_it(gradient: str) -> None:
    given = {
        name: t if t is None else t.requires_grad_(bool(gradient))
        for name, t in tensors(9, 8, 20, 6, 8, value=True).items()
    }
    torch.library.opcheck(torch.ops.dynamicgate.ffn.default, (*given.values(), 8, "silu", gradient, False))


def test_it_compiles_without_a_graph_break() -> None:
    given = tensors(20, 16, 64, 16, 16)
    compiled = torch.compile(gated_ffn, fullgraph=True, backend="aot_eager")
    eager, found = (run(call, given, None, block=16) for call in (gated_ffn, compiled))
    assert all(torch.equal(eager[name], found[name]) for name in eager)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "block must be 1 or more, received 0"),
        ({"activation": "tanh"}, "activation must be one of identity, relu, gelu, silu, received 'tanh'"),
        ({"gradient": "dense"}, "gradient must be sparse or exact, received 'dense'"),
        ({"factor_TG": torch.ones(20, 3)}, r"expected factor_TG of shape \(20, 4\), received \(20, 3\)"),
        ({"down_ON": torch.ones(16, 60)}, r"expected down_ON of shape \(16, 64\), received \(16, 60\)"),
        ({"up_bias_N": torch.ones(64).double()}, "expected up_bias_N in torch.float32 like x, received torch.float64"),
        ({"value_bias_N": torch.ones(64)}, "value_bias_N needs value_ND, received None"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    given = tensors(20, 16, 64, 16, 16)
    with pytest.raises(ValueError, match=message):
        gated_ffn(**{**given, "block": 16, **change})
