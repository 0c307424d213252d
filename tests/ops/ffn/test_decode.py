"""`decode_ffn` without a GPU: the registered op on the reference, and its kernels interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import decode_ffn, decode_given
from dynamicgate.ops.ffn.tune import DTYPES
from tests.ops.ffn.compiled import Compiled
from tests.ops.ffn.decode_cases import Given, error, error_given, made, right, with_gate, with_weights


@pytest.mark.slow
def test_the_kernels_match_the_reference(interpreted: Callable[[str], None]) -> None:
    interpreted("interpreted_decode.py")


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_the_kernels_compile_for_a_hopper_gpu(tokens: int, for_hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs much that the compiler refuses."""
    from dynamicgate.ops.ffn import decode_launch

    kernels = {"gate_linear_kernel", "gate_kernel", "gate_top_k_kernel", "decode_kernel"}
    for name in kernels:
        monkeypatch.setattr(decode_launch, name, Compiled(getattr(decode_launch, name)))
    given = made(tokens, sizes=(256, 512, 64), block=32, rank=16, tau=1.0, bias=True, dtype=torch.bfloat16)
    cut_G = torch.zeros(given["gate"].blocks)
    others = (
        {"top_k": 2},
        {"tau": None, "soft_width": 0.5},
        {"tau": None, "soft_width": 0.5, "cut": cut_G},
        {"tau": None, "soft_width": 0.5, "unbounded": True},
    )
    for gate in (given["gate"], *(with_gate(given, **other)["gate"] for other in others)):
        decode_launch.launch(given["x_TD"], gate, given["weights"], 32, "gelu")
    many = made(16 * tokens - 15, sizes=(256, 512, 64), block=32, dtype=torch.bfloat16)
    factor_TG = torch.ones(len(many["x_TD"]), given["gate"].blocks)
    decode_launch.launch_given(many["x_TD"], factor_TG, many["weights"], 32, "silu")
    assert Compiled.compiled == kernels


@pytest.mark.parametrize("tokens", [1, 5])
def test_without_a_gpu_the_reference_runs(tokens: int) -> None:
    assert error(made(tokens, bias=True, value=True, activation="silu", tau=0.5)) < 1e-6
    assert error(with_gate(made(tokens, rank=3, hidden="relu"), top_k=2)) < 1e-6
    assert error(made(tokens, rank=3, soft_width=0.8)) < 1e-6
    assert error(made(tokens, soft_width=0.2, unbounded=True)) < 1e-6
    assert error_given(made(tokens, bias=True, value=True, activation="silu")) < 1e-6


@pytest.mark.parametrize("tokens", [0, 65])
def test_given_decisions_for_too_many_tokens_or_of_another_shape_are_refused(tokens: int) -> None:
    given = made(3)
    factor_TG = torch.ones(3, given["gate"].blocks)
    with pytest.raises(ValueError, match="expected 1 to 64 tokens"):
        decode_given(torch.zeros(tokens, 40), factor_TG, given["weights"], block=20)
    with pytest.raises(ValueError, match="expected factor_TG of shape"):
        decode_given(given["x_TD"], factor_TG[:, 1:], given["weights"], block=20)


def test_opcheck_finds_nothing() -> None:
    given = made(3, value=True)
    factor_TG = torch.ones(3, given["gate"].blocks)
    torch.library.opcheck(
        torch.ops.dynamicgate.decode_given.default, (given["x_TD"], factor_TG, *given["weights"], 20, "silu")
    )
    for scale in ({"tau": 1.0}, {"soft_width": 0.5}, {"soft_width": 0.5, "unbounded": True}):
        given = made(2, bias=True, value=True, rank=3, **scale)
        torch.library.opcheck(torch.ops.dynamicgate.decode_ffn.default, arguments(given))
    competing = with_gate(made(2, tau=1.0), competes=True)
    torch.library.opcheck(torch.ops.dynamicgate.decode_ffn.default, arguments(competing))


def arguments(given: Given) -> tuple[object, ...]:
    """The arguments of the op."""
    gate: GateNet = given["gate"]
    rule = (gate.hidden, gate.cut, None, gate.top_k, gate.tau, gate.soft_width, gate.competes, gate.unbounded)
    layer = (*given["weights"], given["block"], given["activation"])
    return (given["x_TD"], list(gate.weights), list(gate.biases), *rule, *layer)


def test_it_compiles_without_a_graph_break() -> None:
    given = made(3)
    gate, weights = given["gate"], given["weights"]

    def layer(x_TD: Tensor) -> Tensor:
        return decode_ffn(torch.relu(x_TD), gate, weights, block=given["block"]) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(given["x_TD"]), layer(given["x_TD"]))


def test_a_gradient_is_refused() -> None:
    given = made(1)
    with pytest.raises(RuntimeError, match="train with gated_ffn"):
        decode_ffn(**{**given, "x_TD": given["x_TD"].requires_grad_()}).sum().backward()


def test_other_dtypes_run_on_the_reference() -> None:
    assert torch.float64 not in DTYPES
    given = made(2, dtype=torch.float64)
    torch.testing.assert_close(decode_ffn(**given), right(given))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_TD": torch.randn(17, 40)}, "1 to 16 tokens, received 17"),
        ({"x_TD": torch.randn(2, 41)}, "40 features, received 41"),
        ({"activation": "tanh"}, "activation must be one of .*received 'tanh'"),
        ({"block": 7}, "13 blocks"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_ffn(**{**made(2), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": torch.randn(3, 40)}, r"value of shape \(90, 40\), received \(3, 40\)"),
        ({"value_bias": torch.randn(90)}, "value_bias needs value"),
        ({"down": torch.randn(30, 91)}, r"down of shape \(30, 90\), received \(30, 91\)"),
        ({"up_bias": torch.randn(3)}, r"up_bias of shape \(90,\), received \(3,\)"),
        ({"down": torch.randn(30, 90, dtype=torch.float16)}, "in torch.float32 like x, received torch.float16"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_ffn(**with_weights(made(2), **change))


def test_a_gate_in_another_dtype_is_refused() -> None:
    given = made(2)
    gate = {"weights": tuple(w.half() for w in given["gate"].weights)}
    with pytest.raises(ValueError, match=r"weight 0 of the gate in torch\.float32 like x"):
        decode_ffn(**with_gate(given, **gate))
