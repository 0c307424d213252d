"""`sparsify_` on any model: sparse layers, and the gates that pay, from a budget and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data import check_arrays
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings
from dynamicgate.lab.methods.models import MODELS


def plain(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("sizes", [(784, 256, 10), (200, 64, 48, 40)])
def test_it_is_what_compare_trains_at_the_same_width(budget: float, sizes: tuple[int, ...]) -> None:
    part = check_arrays(torch.randn(80, sizes[0]), torch.arange(80) % sizes[-1])
    splits = Splits("clouds", part, part, part, sizes[-1], 0.0, 1.0)
    asked = Settings("clouds", model="gate+rigl", budget=budget, hidden=sizes[1:-1], widen=1.0, every=1, epochs=30)
    settings = asked.resolved(splits)
    right = MODELS["gate+rigl"](settings, splits)
    plan = dg.sparsify_(plain(*sizes), budget, gates="units" if right.budget else None)
    steered, sparsifier = plan.budget, plan.sparsifier
    assert plan["budget"] is steered
    assert any("times as wide" in note for note in plan.notes) == (budget >= 0.1), "the notes name what is left out"
    assert (steered is None) == (right.budget is None)
    if steered is not None and right.budget is not None:
        assert steered.target == pytest.approx(right.budget.target)
    assert right.sparsifier is not None
    assert [layer.density for layer in sparsifier.layers] == pytest.approx([o.density for o in right.sparsifier.layers])
    starts = [
        [region.initial_density for layer in one.layers for region in layer.regions]
        for one in (sparsifier, right.sparsifier)
    ]
    assert starts[0] == pytest.approx(starts[1])


@pytest.mark.slow
def test_a_trained_model_meets_its_budget() -> None:
    torch.manual_seed(0)
    digits = load_dataset("digits")
    model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), *plain(64, 192, 10))
    plan = dg.sparsify_(model, macs=0.3, gates="units")
    assert plan.budget is not None
    dg.fit(model, digits.train, valid=digits.valid, **plan, epochs=20, batch=32, lr=4e-3, show=False)
    found = dg.measure(model, digits.test)
    assert found.macs["relative"] == pytest.approx(0.3, abs=0.01)
    assert found.quality["accuracy"] > 0.94


def test_without_data_there_are_no_gates_and_sparse_layers_alone_meet_the_budget() -> None:
    model = plain(64, 128, 10)
    plan = dg.sparsify_(model, 0.1)
    assert plan.budget is None
    assert "pass data= to find out" in str(plan)
    assert not dg.named_gates(model)
    kept = sum(layer.density * layer.mask.numel() for layer in plan.sparsifier.layers)
    assert kept / (64 * 128 + 128 * 10) == pytest.approx(0.1, abs=0.002)


@pytest.mark.parametrize(
    ("model", "budget", "pattern", "message"),
    [
        (plain(64, 128, 10), 0.0, "16x1", "expected 0 < macs <= 1, received 0.0"),
        (dg.gate_(plain(64, 128, 10)), 0.3, "16x1", "this model has gates already"),
        (plain(64, 128, 10), 0.3, "round", "a pattern is"),
    ],
)
def test_an_error_leaves_the_model_as_it_was(model: nn.Module, budget: float, pattern: str, message: str) -> None:
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        dg.sparsify_(model, budget, pattern=pattern)
    assert list(model.state_dict()) == before


def test_a_single_layer_has_no_units_to_gate() -> None:
    with pytest.raises(ValueError, match="matches no"):
        dg.sparsify_(nn.Sequential(nn.Linear(8, 4)), 0.3, gates="units")


class Attends(nn.Module):
    """Tokens that attend to each other, then a feed-forward layer: rows differ from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((h + self.ffn(h)).mean(1))


@pytest.mark.slow
def test_a_model_that_is_no_stack_of_layers_needs_an_example_and_then_meets_its_budget() -> None:
    with pytest.raises(ValueError, match="pass example="):
        dg.sparsify_(Attends(), 0.5)
    torch.manual_seed(0)
    model, x, y = Attends(), torch.randn(96, 12, 64), torch.randint(5, (96,))
    plan = dg.sparsify_(model, 0.6, example=x[:4], gates="units")
    assert plan.budget is not None
    dg.fit(model, (x, y), **plan, epochs=20, batch=16, show=False)
    assert dg.measure(model, (x, y)).macs["relative"] == pytest.approx(0.6, abs=0.01)
