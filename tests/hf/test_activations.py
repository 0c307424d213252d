"""The activations of Transformers, which are classes of its own, are known by name and compute what the table says."""

from __future__ import annotations

import pytest
import torch
import transformers.activations as theirs
from torch import nn

import dynamicgate as dg
from dynamicgate.activations import ACTIVATIONS, IN_TRANSFORMERS, of_module
from tests.inference.models import assert_same_outputs, compile_quickly, rows_near_threshold

X = torch.linspace(-6, 6, 241, dtype=torch.float64)
PRESENT = [name for name in IN_TRANSFORMERS if hasattr(theirs, name)]  # PytorchGELUTanh is what GELUTanh was called


@pytest.mark.parametrize("name", PRESENT)
def test_the_table_gives_the_function_that_the_class_computes(name: str) -> None:
    module = getattr(theirs, name)()
    known = of_module(module)
    assert known == IN_TRANSFORMERS[name]
    torch.testing.assert_close(module(X), ACTIVATIONS[known].function(X), rtol=1e-7, atol=1e-9)


def test_most_of_the_table_is_there_and_other_classes_are_not_taken_for_it() -> None:
    assert len(PRESENT) >= len(IN_TRANSFORMERS) - 1
    assert of_module(theirs.LaplaceActivation()) is None
    assert of_module(theirs.ClippedGELUActivation(-1.0, 1.0)) is None

    class SiLUActivation(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return -h

    assert of_module(SiLUActivation()) is None


@pytest.mark.parametrize("name", [name for name, cls in theirs.ACT2CLS.items() if isinstance(cls, type)])
def test_tracing_sees_through_every_activation_but_one_with_weights_for_channels(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), theirs.ACT2FN[name], nn.Linear(8, 3))
    assert [site.name for site in dg.find_sites(model) if not site.is_input] == ([] if name == "prelu" else ["2"])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu2"])
def test_the_kernels_of_the_cpu_compute_it(name: str) -> None:
    layers = (nn.Linear(20, 48), theirs.ACT2FN[name], nn.Linear(48, 5))
    model = dg.gate_(nn.Sequential(*layers), dg.GateConfig(block=16)).eval()
    x = torch.randn(40, 20)
    compiled = compile_quickly(model, x)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
    assert len(compiled.plan.chains) == 1, "its layers and the activation between them are one chain"
