"""Gates that the clock refuses are not taken."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.presets import pilot, sparsify
from dynamicgate.presets.clock import BATCHES, in_words, is_slower, slowdown
from dynamicgate.presets.pilot import Trial, choose_trial


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 4))


def test_a_network_of_many_times_the_work_takes_longer_and_is_left_as_it_was() -> None:
    large, small = network(8192).train(), network(16)
    before = large[0].weight.clone()
    ratios = slowdown(large, small, torch.randn(300, 32), seconds=0.1)
    assert tuple(ratios) == BATCHES
    assert ratios[256] > 2.0
    assert is_slower(ratios)
    assert large.training
    assert torch.equal(large[0].weight, before)
    assert in_words({1: 1.234, 256: 0.5}) == "1.23 times as long at batch 1 and 0.50 times as long at batch 256"
    assert not is_slower({1: 1.03, 256: 0.5})


def task(rows: int = 900) -> tuple[Arrays, Arrays]:
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    return Arrays(x[:600], y[:600]), Arrays(x[600:], y[600:])


def build(lr: float, width: int = 16) -> Any:
    return lambda rows: Trial(network(width), {"lr": lr, "epochs": 6, "batch": 32})


def choose(monkeypatch: pytest.MonkeyPatch, ratios: dict[str, float], *, clock: bool = True) -> pilot.Choice:
    """Two kinds of gates that gain, `wide` the most, and what the clock says of each."""
    widths = {16: "narrow", 64: "wide"}
    asked = []

    def said(gated: nn.Module, plain: nn.Module, rows: Any) -> dict[int, float]:
        name = widths[gated[0].out_features]
        asked.append(name)
        return {1: ratios[name], 256: 1.0}

    monkeypatch.setattr(pilot, "slowdown", said)
    gated = {"narrow": build(5e-3), "wide": build(1e-2, 64)}
    found = choose_trial(*task(), plain={"none": build(1e-12)}, gated=gated, show=False, clock=clock)
    assert found.accuracy["wide"] > found.accuracy["narrow"] > found.accuracy["none"] + 0.1
    assert clock or not asked
    return found


def test_the_best_gates_that_the_clock_does_not_refuse_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, {"wide": 1.0, "narrow": 1.0}).name == "wide"
    next_best = choose(monkeypatch, {"wide": 1.5, "narrow": 1.0})
    assert next_best.name == "narrow"
    assert "compiled for this CPU wide takes 1.50 times as long at batch 1" in next_best.reason
    none = choose(monkeypatch, {"wide": 1.5, "narrow": 1.4})
    assert none.name == "none"
    assert "narrow takes 1.40 times as long" in none.reason
    assert choose(monkeypatch, {"wide": 1.5, "narrow": 1.4}, clock=False).name == "wide"


@pytest.mark.slow
def test_sparsify_asks_the_clock_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(pilot, "slowdown", lambda *_, **__: asked.append(1) or {1: 9.0, 256: 9.0})
    monkeypatch.setattr(pilot, "_compared", lambda *_: "as told")
    quick = partial(pilot.choose_recipe, steps=20)  # what is learned is judged below, as told
    monkeypatch.setattr(sparsify, "choose_recipe", quick)
    train, valid = task()
    for clock in (True, False):
        asked.clear()
        right = {"no gates": 0.5}
        model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))

        def judge(one: nn.Module, rows: Any, task: Any, right: dict[str, float] = right) -> pilot.Judged:
            gain = 1.0 if any("stage" in name for name, _ in one.named_modules()) or dg.named_gates(one) else 0.0
            return pilot.Judged(torch.full((len(rows),), gain), torch.zeros(len(rows)))

        monkeypatch.setattr(pilot, "_judge", judge)
        plan = dg.sparsify_(model, 0.4, data=(train.x, train.y), valid=(valid.x, valid.y), show=False, clock=clock)
        assert bool(asked) == clock
        assert plan.notes[0].startswith("no gates") == clock
