"""The gated MLP and its input normalisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.nn import GatedMLP, Normalize


def test_the_network_computes_the_formula_in_its_docstring() -> None:
    model = GatedMLP((5, 9, 7, 3), GateConfig(tau=0.5, theta=0.6, open=0.6))
    x = torch.randn(8, 5)
    h = x
    for layer, consumer in zip(model.layers[:-1], model.layers[1:], strict=True):
        net = consumer.gate.net
        g = (torch.sigmoid((h @ net.weight.T + net.bias) / 0.5) > 0.6).float()
        assert 0 < g.mean() < 1
        h = g * torch.relu(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model(x), h @ model.layers[-1].weight.T + model.layers[-1].bias)


def test_without_a_gate_it_is_dense_and_can_be_gated_later() -> None:
    model = GatedMLP((5, 9, 3))
    assert dg.named_gates(model) == {}
    dg.gate_(model, GateConfig())
    assert list(dg.named_gates(model)) == ["layers.1"]


def test_a_gate_is_a_child_of_the_layer_that_consumes_the_units() -> None:
    model = GatedMLP((5, 9, 7, 3), GateConfig(), where=dg.where.everywhere)
    assert list(dg.named_gates(model)) == ["layers.0", "layers.1", "layers.2"]
    assert model.layers[1].gate.site.producers == ("layers.0",)


def test_a_network_without_hidden_layers_can_only_be_gated_on_its_input() -> None:
    model = GatedMLP((5, 3), GateConfig(kind="static"), where=dg.where.inputs)
    assert model(torch.randn(2, 5)).shape == (2, 3)
    with pytest.raises(ValueError, match="matches none of the sites"):
        GatedMLP((5, 3), GateConfig())


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU), ("tanh", nn.Tanh)])
def test_the_activation_is_the_one_named(name: str, kind: type[nn.Module]) -> None:
    model = GatedMLP((5, 9, 3), activation=name)
    x = torch.randn(4, 5)
    assert torch.equal(model(x), model.layers[1](kind()(model.layers[0](x))))


def test_dropout_acts_in_training_only() -> None:
    model = GatedMLP((5, 64, 3), GateConfig(kind="static"), dropout=0.5)
    x = torch.randn(4, 5)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sizes": (5,)}, r"sizes are \(inputs, hidden..., outputs\), all >= 1, received \(5,\)"),
        ({"sizes": (5, 0, 3)}, r"received \(5, 0, 3\)"),
        ({"sizes": (5, 4, 3), "activation": "relux"}, "activation must be one of relu, gelu, silu, tanh"),
        ({"sizes": (5, 4, 3), "dropout": 1.0}, r"dropout must be in \[0, 1\), received 1.0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GatedMLP(**arguments)


def test_normalize_standardises_with_its_own_copy_of_the_constants() -> None:
    mean, std = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    normalize = Normalize(mean, std)
    mean.zero_()
    assert torch.equal(normalize(torch.tensor([[3.0, 10.0]])), torch.tensor([[1.0, 2.0]]))
    assert set(normalize.state_dict()) == {"mean", "std"}
    assert "features=2" in repr(normalize)
    assert repr(Normalize(0.1307, 0.3081)) == "Normalize(mean=0.1307, std=0.3081)"


def test_normalize_refuses_a_feature_without_spread() -> None:
    with pytest.raises(ValueError, match="every std must be positive; give constant features a std of 1"):
        Normalize(0.0, torch.tensor([1.0, 0.0]))


def test_normalisation_in_the_model_equals_normalising_its_input() -> None:
    model = GatedMLP((5, 9, 3), GateConfig(), normalize=Normalize(0.5, 2.0))
    x = torch.randn(4, 5)
    expected = model(x)
    model.normalize = nn.Identity()
    assert torch.equal(model((x - 0.5) / 2.0), expected)
