"""The short trainings that decide whether gates pay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.presets.pilot import Trial, choose_recipe, choose_trial

FROZEN, LEARNS = {"lr": 1e-12}, {"lr": 1e-2}


def task(rows: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(0))
    return x, x[:, :4].argmax(1)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def recipe(parts: dict[str, Any]) -> Callable[[nn.Module], dict[str, Any]]:
    return lambda _model: parts


def refuse(_model: nn.Module) -> dict[str, Any]:
    raise ValueError("no room for it")


def choose(without: dict[str, Any], **candidates: Callable[[nn.Module], dict[str, Any]]) -> Any:
    found = choose_recipe(
        network(), task(), None, without=recipe(without), candidates=candidates, steps=60, show=False, clock=False
    )
    return found.name, found.reason


def test_a_candidate_is_chosen_only_where_held_out_rows_gain_by_it() -> None:
    name, reason = choose(FROZEN, good=recipe(LEARNS), bad=recipe(FROZEN))
    assert name == "good"
    assert "of 400 held-out rows were right with good" in reason, "where rows are few, each is held out once"
    assert choose(LEARNS, bad=recipe(FROZEN))[0] is None
    assert choose(LEARNS, same=recipe(LEARNS))[0] is None, "no gain is no reason"


def test_a_candidate_that_does_not_fit_is_left_out() -> None:
    assert choose(FROZEN, misfit=refuse, good=recipe(LEARNS))[0] == "good"
    name, reason = choose(LEARNS, misfit=refuse)
    assert name is None
    assert reason == "no gates: gates do not fit this model and budget (no room for it)"


def test_nothing_is_trained_where_no_gates_fit(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"without": recipe(LEARNS), "candidates": {"misfit": refuse, "other": refuse}}
    choice = choose_recipe(network(), task(), None, show=True, **options)
    assert choice.steps == 0
    assert choice.refused == {"misfit": "no room for it", "other": "no room for it"}
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="no room for it"):
        choose_recipe(network(), task(), None, show=False, **{**options, "without": refuse})


def test_what_fails_in_training_is_not_called_a_misfit() -> None:
    def broken(one: nn.Module) -> dict[str, Any]:
        return {"batch": -1}

    with pytest.raises(ValueError, match="batch"):
        choose(LEARNS, broken=broken)


def test_the_model_itself_is_not_trained_by_the_choice() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    choose_recipe(
        model, task(), None, without=recipe(LEARNS), candidates={"again": recipe(LEARNS)}, steps=20, show=False
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("gates", ["units", "two stages", "three stages", None])
def test_what_is_asked_for_is_put_on(gates: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    plan = dg.sparsify_(model, 0.3, gates=gates)
    assert plan.notes[0] == f"{gates or 'no gates'}, as asked for"
    assert (plan.stage_loss is not None) == bool(gates and "stages" in gates)
    assert (plan.budget is not None) == (gates is not None)
    assert bool(dg.named_gates(model)) == (gates == "units")


@pytest.mark.slow
def test_auto_tries_all_kinds_of_gates_and_says_what_it_saw() -> None:
    plan = dg.sparsify_(network(), 0.4, data=task(1500), show=False)
    assert "held-out rows were right with" in plan.notes[0]


def test_gates_that_a_budget_does_not_pay_for_are_refused() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    with pytest.raises(ValueError, match="does not pay for gates on units"):
        dg.sparsify_(model, 0.1, gates="units")
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="gates must be auto, units, two stages, three stages, blocks or None"):
        dg.sparsify_(model, 0.1, gates="some")  # type: ignore[arg-type]


def test_the_simplest_of_equally_good_recipes_without_gates_is_taken() -> None:
    def build(lr: float) -> Any:
        return lambda rows: Trial(network(), {"lr": lr, "epochs": 4, "batch": 32})

    x, y = task(1500)
    train, valid = Arrays(x[:1200], y[:1200]), Arrays(x[1200:], y[1200:])
    same = {"simple": build(1e-2), "other": build(1e-2), "worse": build(1e-12)}
    assert choose_trial(train, valid, plain=same, gated={}, show=False).name == "simple"
    better = {"simple": build(1e-12), "other": build(1e-2)}
    found = choose_trial(train, valid, plain=better, gated={"gates": build(1e-2)}, show=False)
    assert found.name == "other", "gates that gain nothing are not taken"
    assert found.accuracy["other"] == found.accuracy["gates"] > found.accuracy["simple"]
    assert found.steps == 3 * 4 * math.ceil(1200 / 32)


def test_the_loss_decides_where_right_rows_cannot_tell() -> None:
    """Of two candidates with the same classes the one that is less sure of its mistakes is taken, though it is last."""

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.net, self.scale = network(), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self.net(x)

    def build(scale: float, lr: float = 1e-12) -> Any:
        def trial(rows: Any) -> Trial:
            torch.manual_seed(0)
            return Trial(Scaled(scale), {"lr": lr, "epochs": 1, "batch": 256})

        return trial

    x, y = task(1500)
    train, valid = Arrays(x[:1200], y[:1200]), Arrays(x[1200:], y[1200:])
    found = choose_trial(train, valid, plain={"sure": build(100.0), "unsure": build(0.1)}, gated={}, show=False)
    assert found.accuracy["sure"] == found.accuracy["unsure"]
    assert found.name == "unsure"
