"""`fused_gate_activation`: the registered op on torch, its kernel interpreted, compiled for Hopper, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynamicgate.ops.ffn import fused_gate_activation
from tests.ops.ffn.compiled import Compiled
from tests.ops.ffn.fused_gate_cases import SCALE_NAMES, SCALES, SIZES, allowed, error, in_float64, made


@pytest.mark.slow
def test_the_kernel_matches_the_reference(interpreted: Callable[[str], None]) -> None:
    interpreted("interpreted_fused_gate.py")


@pytest.mark.slow
def test_the_kernel_compiles_for_a_hopper_gpu(for_hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from dynamicgate.ops.ffn import fused_gate_kernel

    monkeypatch.setattr(fused_gate_kernel, "gate_activation_kernel", Compiled(fused_gate_kernel.gate_activation_kernel))
    product_TM = torch.zeros(2, 4160, dtype=torch.bfloat16)
    for scale in ((None, None, False), (0.5, None, False), (None, 0.5, False), (None, 0.5, True)):
        fused_gate_kernel.launch(product_TM, product_TM[:, :4096], 4096, 256, "gelu", 0.0, *scale)
    assert Compiled.compiled == {"gate_activation_kernel"}


@pytest.mark.parametrize("scale", SCALES, ids=SCALE_NAMES)
def test_without_a_gpu_torch_runs_the_op_and_opcheck_finds_nothing(scale: dict[str, float]) -> None:
    given = made(5, 33, 16, value=True, **scale)
    assert error(given) < 1e-6
    scales = (scale.get("tau"), scale.get("soft_width"), scale.get("unbounded", False))
    rule = (given["units"], given["block"], "relu", given["cut"], *scales)
    arguments = (given["product_TM"], given["value_TN"], *rule)
    torch.library.opcheck(torch.ops.dynamicgate.fused_gate_activation.default, arguments)


@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "silu"])
@pytest.mark.parametrize("scale", SCALES, ids=SCALE_NAMES)
def test_the_rounding_that_is_allowed_is_enough_for_torch_and_millionths_of_large_numbers(
    scale: dict[str, float], activation: str
) -> None:
    given = made(50, 130, 16, value=True, activation=activation, **scale)
    exact = in_float64(given)
    found, right = fused_gate_activation(**given).double(), fused_gate_activation(**exact)
    most = allowed(exact, right, torch.float32)
    assert bool(((found - right).abs() <= most).all())
    z = exact["product_TM"][:, 130:139].repeat_interleave(16, dim=1)[:, :130]
    least = (z / 0.9).clamp(min=1.0) if "unbounded" in scale else 1.0  # as if the factor were at most 1
    large = (right.abs() > least) & (z > 5 * given["cut"])  # nearer to the cut their difference loses digits
    assert bool((right.abs() * 5e-6 > most)[large].all())
    closed = (given["product_TM"][:, 130:139] <= given["cut"]).repeat_interleave(16, dim=1)[:, :130]
    assert bool((most[closed] < 1e-40).all()), "closed units are 0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 40}, "expected .tokens, 43 or more., received .4, 37."),
        ({"activation": "softsign"}, "activation must be one of"),
        ({"value_TN": torch.zeros(4, 8)}, "expected value_TN of shape .4, 32."),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fused_gate_activation(**{**made(4, 32, 16), **change})


def test_it_has_no_gradient() -> None:
    given = made(2, 32, 16)
    given["product_TM"].requires_grad_()
    with pytest.raises(RuntimeError, match="for inference"):
        fused_gate_activation(**given).sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [*SIZES, (65_537, 256, 64), (600, 16384, 1024)])
def test_the_kernel_on_a_gpu(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    for scale in SCALES:
        given = made(*sizes, value=True, dtype=dtype, device="cuda", **scale)
        exact = in_float64(given)
        found, right = fused_gate_activation(**given).cpu().double(), fused_gate_activation(**exact)
        assert bool(((found - right).abs() <= allowed(exact, right, dtype)).all())
