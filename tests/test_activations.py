"""The table of activations agrees with torch's modules and functions and with both sets of kernels."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS, BY_CODE, IN_TRITON, Activation, of_call, of_module
from tests.places import ROOT

every_activation = pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=list(ACTIVATIONS))
X = torch.linspace(-4, 4, 101, dtype=torch.float64)


@every_activation
def test_module_and_calls_compute_the_function(activation: Activation) -> None:
    assert torch.equal(activation.build()(X), activation.function(X))
    for call in activation.calls:
        found = getattr(X, call)() if isinstance(call, str) else call(X, **activation.options)
        assert torch.equal(found, activation.function(X))


@every_activation
def test_it_is_recognised_as_a_module_and_as_a_call(activation: Activation) -> None:
    assert of_module(activation.build()) == activation.name
    assert {of_call(call, activation.options) for call in activation.calls} <= {activation.name}


def test_options_tell_activations_of_one_module_apart() -> None:
    assert (of_module(nn.GELU()), of_module(nn.GELU("tanh"))) == ("gelu", "gelu_tanh")
    assert (of_call(F.gelu, {}), of_call(F.gelu, {"approximate": "tanh"})) == ("gelu", "gelu_tanh")
    assert of_module(nn.ReLU(inplace=True)) == of_call(F.relu, {"inplace": True}) == "relu"


def test_what_is_not_in_the_table_is_not_recognised() -> None:
    class Louder(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    assert of_module(Louder()) is None
    assert of_module(nn.Mish()) is None
    assert of_call(torch.sigmoid, {}) is None
    assert of_call("sigmoid", {}) is None


def test_the_codes_are_those_of_the_c_plus_plus_kernels() -> None:
    (enum,) = re.findall(r"enum Activation : int32_t \{(.*?)\}", (ROOT / "csrc/program.h").read_text(encoding="utf-8"))
    in_cpp = {_snake_case(name): int(code) for name, code in re.findall(r"k(\w+) = (\d+)", enum)}
    assert in_cpp == {name: activation.code for name, activation in ACTIVATIONS.items()}
    assert [activation.code for activation in BY_CODE.values()] == list(BY_CODE)


def test_the_triton_kernels_have_a_branch_for_what_they_are_said_to_know() -> None:
    source = (ROOT / "src/dynamicgate/ops/ffn/tiles.py").read_text(encoding="utf-8")
    for function in ("activate", "slope"):
        body = source.split(f"def {function}(")[1].split("@triton.jit")[0]
        assert {*re.findall(r'ACTIVATION == "(\w+)"', body), "identity"} == {*IN_TRITON}


@every_activation
def test_what_is_said_of_zeros_and_slopes_is_true(activation: Activation) -> None:
    x = X.clone().requires_grad_()
    y = activation.function(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert activation.function(torch.zeros(1)) == 0
    assert bool((y == 0).double().mean() > 0.4) is activation.makes_zeros
    if activation.slope_from_output:  # as the backward kernel computes it: the slope at the output is the slope
        output = y.detach().requires_grad_()
        (found,) = torch.autograd.grad(activation.function(output).sum(), output)
        assert torch.equal(found, slope)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
