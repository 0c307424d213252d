"""The budget in a plain user loop: it is met, no layer dies, and it can be saved."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import Budget, GateConfig
from dynamicgate.accounting import MacCounter
from dynamicgate.budget import OpenLoopBudget, executed_relative
from dynamicgate.nn import GatedMLP
from dynamicgate.schedule import three_phase
from tests.budget.loop import LOW_RANK, STATIC, task, train

# --- the closed loop


@pytest.mark.parametrize(("gate", "target"), [(LOW_RANK, 0.5), (STATIC, 0.4)])
def test_a_budget_is_met_in_a_plain_loop_of_a_few_hundred_steps(gate: GateConfig, target: float) -> None:
    model = GatedMLP((32, 64, 4), gate)
    budget = Budget(target=target)
    train(model, budget, 300)
    result = dg.measure(model, task())
    assert abs(result.macs["relative"] - target) <= 0.02
    assert abs(budget.relative - target) <= 0.05  # one batch
    assert budget.reference == pytest.approx(target)
    assert result.quality["accuracy"] > 0.97
    if gate is LOW_RANK:  # static logits start equal and may fall together, which is rightly reported
        assert budget.collapses == []


def test_with_two_hidden_layers_the_budget_is_met_and_no_layer_is_under_its_floor() -> None:
    model = GatedMLP((32, 48, 48, 4), LOW_RANK)
    budget = Budget(target=0.3, floor=0.15)
    train(model, budget, 400)
    result = dg.measure(model, task())
    assert abs(result.macs["relative"] - 0.3) <= 0.02
    assert all(gate["open"] >= 0.15 for gate in result.gates)
    assert result.quality["accuracy"] > 0.97


def test_a_site_under_its_floor_is_lifted_and_one_above_it_is_not() -> None:
    model = GatedMLP((32, 16, 16, 4), STATIC)
    gates = dg.named_gates(model)
    with torch.no_grad():
        gates["layers.2"].net.bias.fill_(-0.5)  # closed, one site
    budget = Budget(target=0.9, floor=0.2, warmup=0.5, anneal=0.5)
    budget.apply_(model, 0.1)  # still warming up: lambda is zero
    with dg.usage(model) as used:
        model(task(rows=8)[0])
    budget.step(used, 0.1).backward()
    assert budget.lambda_ == 0.0
    assert (gates["layers.2"].net.bias.grad < 0).all()  # descent opens it
    assert torch.equal(gates["layers.1"].net.bias.grad, torch.zeros(16))


def test_lambda_is_zero_during_warm_up_and_the_reference_falls_gently_from_fully_open_to_the_target() -> None:
    model = GatedMLP((32, 16, 4), STATIC)
    budget = Budget(target=0.4, warmup=0.2, anneal=0.5)
    references = []
    for step in range(101):
        budget.apply_(model, step / 100)
        with dg.usage(model) as used:
            model(task(rows=4)[0])
        budget.step(used, step / 100)
        references.append(budget.reference)
        assert (budget.lambda_ == 0.0) == (step <= 20)
    assert references[0] == references[20] == 1.0
    assert references[70] == references[-1] == pytest.approx(0.4)
    falls = [a - b for a, b in itertools.pairwise(references)]
    assert min(falls) >= 0.0
    assert max(falls) <= 0.6 * 3.1416 / 2 / 50


def test_the_penalty_pushes_down_above_the_reference_and_up_below_it() -> None:
    signs = []
    for logit in (2.0, -2.0):
        model = GatedMLP((32, 16, 4), STATIC)
        gate = dg.named_gates(model)["layers.1"]
        with torch.no_grad():
            gate.net.bias.fill_(logit)
        budget = Budget(target=0.5, warmup=0.0, anneal=0.1, floor=0.0)
        budget.apply_(model, 0.9)
        with dg.usage(model) as used:
            model(task(rows=4)[0])
        budget.step(used, 0.9).backward()
        signs.append(gate.net.bias.grad.sign().unique().tolist())
    assert signs == [[1.0], [-1.0]]


def test_lambda_is_proportional_to_the_error_plus_its_sum_over_the_steps_and_bounded() -> None:
    model = GatedMLP((32, 16, 4), STATIC)  # fully open, and nobody trains it
    budget = Budget(target=0.9, warmup=0.0, anneal=0.1, gain=3.0, integral=0.25, steer=0.0)
    found = []
    for step in range(500):
        progress = 0.9 + step / 10_000
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            model(task(rows=4)[0])
        budget.step(used, progress)
        found.append(budget.lambda_)
    assert found[:4] == pytest.approx([0.1 * (3.0 + 0.25 * n) for n in (1, 2, 3, 4)], rel=1e-5)
    assert found[-1] == max(found) == 10.0


def test_the_biases_of_all_gates_are_steered_by_the_error_and_no_further_than_the_limit() -> None:
    model = GatedMLP((32, 16, 4), STATIC)  # fully open, and nobody trains it
    gate = dg.named_gates(model)["layers.1"]
    before = gate.bias.detach().clone()
    for steer, moved in ((0.3, 0.03), (100.0, 0.2)):
        budget = Budget(target=0.9, warmup=0.0, anneal=0.1, steer=steer)
        budget.apply_(model, 0.5)
        with dg.usage(model) as used:
            model(task(rows=4)[0])
        budget.step(used, 0.5)
        assert torch.equal(gate.bias, before)  # nothing moves while autograd may still need it
        budget.apply_(model, 0.6)
        assert (before - gate.bias).tolist() == pytest.approx([moved] * 16, rel=1e-4)
        before = gate.bias.detach().clone()


def test_the_reference_starts_where_the_model_is_not_at_fully_open() -> None:
    model = GatedMLP((32, 16, 4), STATIC)
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias[:8] = -1.0
    budget = Budget(target=0.3, warmup=0.1)
    for progress in (0.0, 0.05, 0.1):
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            model(task(rows=4)[0])
        budget.step(used, progress)
    assert budget.reference == pytest.approx(0.5)
    assert budget.lambda_ == pytest.approx(0.0, abs=1e-6)


def test_gates_do_not_pay_for_connections_that_are_still_to_be_pruned() -> None:
    model = GatedMLP((32, 16, 4), STATIC)
    sparsifier = dg.RigL(model, 0.5, initial_density=1.0, every=1, until=0.75, prune_from=0.0)
    dense, going = 32 * 16 + 16 * 4, 32 * 16 / 2
    assert dg.accounting.MacCounter.for_mlp(model).all_open == 1.0
    after = dg.accounting.MacCounter.for_mlp(model).all_open_without(sparsifier.pending)
    assert after == pytest.approx(1.0 - going / dense)
    target = 0.8 * (1.0 - going / dense)
    budget = Budget(target=target, warmup=0.1, anneal=0.5, sparsifier=sparsifier)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = task(rows=8)
    for step in range(101):
        progress = step / 101
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x), y)
        sparsifier.watch(used)
        (loss + 0.0 * budget.step(used, progress)).backward()
        fraction = budget.reference / budget.counter.all_open
        assert 0.79 <= fraction <= 1.0 + 1e-6, "a fifth of what exists is all they ever save"
        assert progress < 0.6 or fraction == pytest.approx(0.8, abs=0.01)
        sparsifier.step(optimizer, progress)
        optimizer.zero_grad()
    assert budget.reference == pytest.approx(target, abs=1e-3)


def test_the_controller_counts_what_measure_counts() -> None:
    model = GatedMLP((32, 16, 12, 4), LOW_RANK)
    x, _ = task(rows=50)
    budget = Budget(target=0.6)
    budget.apply_(model, 0.5)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.5)
    assert budget.relative == pytest.approx(dg.measure(model, x).macs["relative"], rel=1e-6)


# --- tau, theta and the open loop


def test_tau_and_theta_are_set_before_the_forward_pass_and_left_alone_without_a_schedule() -> None:
    model = GatedMLP((32, 16, 4), GateConfig(kind="static", tau=1.5, theta=0.4))
    gate = dg.named_gates(model)["layers.1"]
    OpenLoopBudget().apply_(model, 0.5)
    assert (float(gate.tau), float(gate.theta)) == (1.5, pytest.approx(0.4))
    OpenLoopBudget(tau=lambda t: 2.0 - t, theta=0.6).apply_(model, 0.5)
    assert (float(gate.tau), float(gate.theta)) == (1.5, pytest.approx(0.6))
    assert float(gate.logit_threshold) == pytest.approx(1.5 * 0.405465, rel=1e-5)  # tau * logit(theta)


def test_the_open_loop_adds_lambda_times_the_form_over_the_sites() -> None:
    model = GatedMLP((32, 16, 12, 4), LOW_RANK)
    budget = OpenLoopBudget(form="linear", weight=lambda t: 0.5 * t)
    budget.apply_(model, 0.4)
    with dg.usage(model) as used:
        model(task(rows=10)[0])
    expected = 0.2 * sum(used[site].p.mean() for site in used)
    torch.testing.assert_close(budget.step(used, 0.4), expected)
    assert budget.lambda_ == pytest.approx(0.2)


def test_the_three_phases_of_the_paper_are_a_budget() -> None:
    model = GatedMLP((32, 48, 4), LOW_RANK)
    plan = three_phase(weight=(0.0, 20.0, 40.0), theta=(0.5, 0.55, 0.6))
    budget = OpenLoopBudget(form="squared-soft", target_rate=plan.target_rate, theta=plan.theta, weight=plan.weight)
    train(model, budget, 250)
    result = dg.measure(model, task())
    p = budget.readings["layers.1"][-1].p
    assert p == pytest.approx(0.3, abs=0.05)
    assert float(dg.named_gates(model)["layers.1"].theta) == pytest.approx(0.6)
    assert result.quality["accuracy"] > 0.95
    assert budget.collapses == []


# --- collapse, reported and acted on


def dying(on_collapse: Any, **settings: Any) -> tuple[OpenLoopBudget, dg.accounting.Measurement]:
    torch.manual_seed(0)
    model = GatedMLP((32, 48, 4), STATIC)
    budget = OpenLoopBudget(floor=0.05, on_collapse=on_collapse, **settings)
    train(model, budget, 200, optimizer=torch.optim.Adam(model.parameters(), lr=2e-2))
    return budget, dg.measure(model, task())


CAUSES: dict[str, dict[str, Any]] = {
    "threshold-too-high": {"theta": lambda t: 0.5 if t < 0.5 else 0.99},
    "probability-collapse": {"theta": 0.15, "weight": lambda t: 0.0 if t < 0.2 else 40.0, "tau": 0.5},
    "phase-shock": {
        "form": "squared-soft",
        "target_rate": lambda t: 0.9 if t < 0.5 else 0.1,
        "theta": lambda t: 0.5 if t < 0.5 else 0.98,
        "weight": lambda t: 0.0 if t < 0.5 else 20.0,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_a_collapse_is_reported_once_under_its_name_and_acting_on_it_revives_the_gates(cause: str) -> None:
    reported, dead = dying("report", **CAUSES[cause])
    assert reported.collapses[0].name == cause
    assert len({c.progress for c in reported.collapses if c.name == cause}) == 1
    ignored, _ = dying("ignore", **CAUSES[cause])
    assert ignored.collapses == []
    acted, alive = dying("act", **CAUSES[cause])
    assert acted.collapses[0] == reported.collapses[0]
    assert dead.gates[0]["open"] <= 0.05
    assert alive.gates[0]["open"] > 0.05
    assert alive.quality["accuracy"] > max(0.9, dead.quality["accuracy"])


# --- calibration


def test_executed_relative_weighs_batches_by_their_rows() -> None:
    model = GatedMLP((32, 64, 4), GateConfig(net="low-rank", rank=2, open=0.55))
    x, _ = task(rows=100)
    whole = executed_relative(model, MacCounter.for_mlp(model), [x])
    assert executed_relative(model, MacCounter.for_mlp(model), [x[:7], x[7:]]) == pytest.approx(whole, rel=1e-6)


# --- saving


@pytest.mark.parametrize(
    "settings",
    [{"target": 0.4}, {"target": 0.4, "wait": False}, {**CAUSES["phase-shock"], "on_collapse": "act", "floor": 0.05}],
    ids=["target", "late", "act"],
)
def test_a_budget_saved_as_json_continues_exactly_where_it_was(settings: dict[str, Any]) -> None:
    model = GatedMLP((32, 48, 4), STATIC)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    kind = Budget if "target" in settings else OpenLoopBudget
    budget = kind(**settings)
    train(model, budget, 200, stop=120, optimizer=optimizer)
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    restored = kind(**settings)
    restored.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    assert restored.state_dict() == budget.state_dict()
    if "target" not in settings:
        assert budget.collapses  # a remedy in progress is part of what must continue
    expected = train(model, budget, 200, start=120, optimizer=optimizer)
    assert train(twin, restored, 200, start=120, optimizer=twin_optimizer) == expected
    assert restored.state_dict() == budget.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_readings_are_kept_at_a_bounded_rate() -> None:
    model = GatedMLP((32, 8, 4), STATIC)
    budget = Budget(target=0.8)
    x, _ = task(rows=2)
    for step in range(1000):
        budget.apply_(model, step / 1000)
        with dg.usage(model) as used:
            model(x)
        budget.step(used, step / 1000)
    readings = budget.readings["layers.1"]
    assert 100 <= len(readings) <= 200
    assert readings[-1].progress > 0.99
