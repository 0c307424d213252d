"""Old answers are equal to the bit, whatever moves weights: all optimizers, budgets, calibration, released capacity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.continual import Contexts, Keeper, Learner, Task, follow
from dynamicgate.sparsity import Consolidation
from tests.continual.setups import OPTIMIZERS, SETUPS, WAYS, answers, contextual, gated, steering, stream
from tests.continual.test_keeper import gated as two_sided
from tests.continual.test_keeper import keep, learn, rows


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_later_tasks_do_not_change_an_answer(way: str, optimizer: str) -> None:
    """A stream and the same stream with more tasks: what is kept is the same in both."""
    tasks, more = (3, 1) if WAYS[way].keeps == 2 else (1, 2)
    before = WAYS[way].follow(tasks, OPTIMIZERS[optimizer])
    after = WAYS[way].follow(tasks + more, OPTIMIZERS[optimizer])
    kept = range(max(0, tasks + more - WAYS[way].keeps), tasks)
    assert len(kept) > 0
    for task in kept:
        assert torch.equal(answers(before, task), answers(after, task)), f"task {task} has changed"
    later = range(tasks, tasks + more)
    assert any(not torch.equal(answers(before, t), answers(after, t)) for t in later), "and something was learned"


@pytest.mark.parametrize("way", ["contexts, released", "contexts, reused and released"])
def test_released_capacity_is_used_again(way: str) -> None:
    before = WAYS[way].follow(2, OPTIMIZERS["adamw"])
    after = WAYS[way].follow(4, OPTIMIZERS["adamw"])
    assert not torch.equal(answers(before, 0), answers(after, 0)), "the oldest task was released"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nudges_calibration_tau_and_theta_of_a_budget_are_undone(optimizer: str) -> None:
    model, old, new = two_sided(), rows(1.0), rows(-1.0)
    keeper, steps = Keeper(model), OPTIMIZERS[optimizer](model.parameters())
    learn(model, old, steps, keeper, steps=3)
    keep(model, keeper, old)
    gate = dg.named_gates(model)["2"]
    before, tau, bias = model(old).detach(), gate.tau.clone(), gate.bias.detach().clone()
    tau_now, theta_now = dg.schedule.linear(1.0, 3.0), dg.schedule.linear(0.6, 0.999)
    budget = dg.Budget(target=0.5, tau=tau_now, theta=theta_now, warmup=0.0, anneal=0.3, steer=5.0)
    y, moved, nudged = torch.arange(len(new)) % 5, 0, 0
    for step in range(10):
        budget.apply_(model, step / 10)
        moved += not torch.equal(model(old), before)
        nudged += not torch.equal(gate.bias, bias)
        keeper.restore_()
        assert torch.equal(model(old), before), "in training too"
        steps.zero_grad()
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(new), y)
        (loss + budget.step(used, step / 10)).backward()
        keeper.step(steps)
        steps.step()
        keeper.restore_()
        assert torch.equal(model(old), before)
    assert moved > 0, "the budget did change answers"
    assert nudged > 5, "and biases"
    budget.calibrate_(model, new)
    keeper.restore_()
    assert torch.equal(model(old), before)
    assert torch.equal(gate.tau, tau)


def test_tau_and_theta_are_kept_from_the_first_context_on() -> None:
    model, old = two_sided(), rows(1.0)
    keeper, budget = Keeper(model), OpenLoopBudget(tau=0.25, theta=0.75)
    gate = dg.named_gates(model)["2"]
    budget.apply_(model, 0.0)
    keeper.restore_()
    assert (float(gate.tau), float(gate.theta)) == (0.25, 0.75), "nothing is kept yet"
    keep(model, keeper, old)
    OpenLoopBudget(tau=2.0, theta=0.1).apply_(model, 0.0)
    keeper.restore_()
    assert (float(gate.tau), float(gate.theta)) == (0.25, 0.75)


def test_running_statistics_of_a_batch_norm_are_kept() -> None:
    torch.manual_seed(0)
    layers = (nn.BatchNorm1d(12), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))
    model = dg.gate_(nn.Sequential(*layers), dg.GateConfig(block=8, open=0.5)).eval()
    keeper, old = Keeper(model), rows(1.0)
    keep(model, keeper, old)
    before = model(old).detach()
    model.train()
    learn(model, 3.0 + rows(-1.0), torch.optim.SGD(model.parameters(), lr=0.1), keeper, steps=3)
    assert torch.equal(model.eval()(old), before)


def test_folding_a_kept_gate_is_refused() -> None:
    model, old = gated(), torch.randn(40, 12)
    keeper, budget = Keeper(model.eval()), dg.Budget(target=0.5, fold=True)
    budget.apply_(model, 0.0)
    keep(model, keeper, old)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"fold=True changes gates.* pass fold=False"):
        budget.apply_(model, 0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match=r"Budget\(fold=False\)"):
        follow(model, stream(), keeper=keeper, budget=budget)
    dg.gating.folding.fold_(dg.named_gates(model)["layers.1"])
    with pytest.raises(ValueError, match="no longer part of the model"):
        keeper.restore_()


def test_folding_goes_with_a_consolidation() -> None:
    model = gated()
    budget = dg.Budget(target=0.5, fold=True)
    follow(model, stream(2), keeper=Consolidation(model, after=2), budget=budget, show=False, device="cpu")


def test_a_constant_clock_says_over_how_many_steps_a_budget_comes_down() -> None:
    with pytest.raises(ValueError, match="horizon="):
        follow(gated(), stream(), budget=steering(), clock="constant")


class Watching(Learner):
    """Notes the gates of every training step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: list[list[tuple[Tensor, ...]]] = []

    def begin(self, task: Task) -> None:
        self.seen.append([])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        gate = dg.named_gates(self.model)["layers.1"]
        self.seen[-1].append((gate.bias.detach().clone(), gate.tau.clone(), gate.theta.clone()))
        return super().loss(x, y)


def test_kept_gates_answer_in_training_as_they_do_in_testing() -> None:
    model, parts = SETUPS["keeper and budget"]()
    learner = Watching(model)
    follow(model, stream(2), learner=learner, **parts, epochs=2, batch=24, show=False, device="cpu")
    first, second = learner.seen
    gate = dg.named_gates(model)["layers.1"]
    kept = (gate.bias, gate.tau, gate.theta)
    assert all(torch.equal(a, b) for step in second for a, b in zip(step, kept, strict=True))
    assert any(not torch.equal(a, b) for step in first for a, b in zip(step, kept, strict=True))


def test_the_clock_of_a_horizon_begins_anew_with_every_task_that_is_told() -> None:
    """A second task learns as much as if it were the first: it would hardly move at the end of a cosine."""
    moved = []
    for tasks in (1, 2):
        model = gated()
        follow(model, stream(tasks), horizon=10, epochs=2, batch=24, lr=1e-2, show=False, device="cpu")
        moved.append(model.layers[0].weight.detach().clone())
    start = gated().layers[0].weight.detach()
    assert float((moved[1] - moved[0]).norm()) > 0.3 * float((moved[0] - start).norm())


def executed_after(known: Any, tasks: int) -> tuple[dg.Budget, int]:
    budget = dg.Budget(target=0.3, warmup=0.0, anneal=0.5, steer=1.0)
    asked: dict[str, Any] = {"clock": "constant", "horizon": 30, "epochs": 8, "batch": 24, "show": False}
    follow(gated(), stream(tasks, known=known), budget=budget, device="cpu", **asked)
    return budget, len(budget.readings["layers.1"])


def test_a_budget_is_not_told_where_a_task_begins() -> None:
    """It would forget its readings and come down anew."""
    budget, readings = executed_after("nothing", 2)
    assert budget.relative == pytest.approx(0.3, abs=0.1)
    assert readings == executed_after("nothing", 1)[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_units_that_two_contexts_use_stay_when_one_is_released(optimizer: str) -> None:
    model, old = two_sided(), rows(1.0)
    keeper = Keeper(model)
    assert (keep(model, keeper, old), keep(model, keeper, old)) == (0, 1)
    before, free = model(old).detach(), keeper.free
    assert keeper.release_oldest_() == 0
    assert keeper.free == free
    learn(model, old, OPTIMIZERS[optimizer](model.parameters()), keeper, steps=5)
    assert torch.equal(model(old), before)
    assert keeper.release_oldest_() == 1
    assert set(keeper.free.values()) == {1.0}
    learn(model, old, OPTIMIZERS[optimizer](model.parameters()), keeper, steps=5)
    assert not torch.equal(model(old), before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_released_learns_again_beside_what_is_kept(optimizer: str) -> None:
    model, old, new = two_sided(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    keep(model, keeper, old)
    keep(model, keeper, new)
    before, other = model(new).detach(), model(old).detach()
    assert keeper.release_oldest_() == 0
    learn(model, old, OPTIMIZERS[optimizer](model.parameters()), keeper)
    assert torch.equal(model(new), before)
    assert not torch.equal(model(old), other)


def of_units(*numbers: int) -> dict[str, Tensor]:
    chosen = torch.zeros(64, dtype=torch.bool)
    chosen[list(numbers)] = True
    return {"layers.1": chosen}


def test_a_unit_goes_to_the_oldest_of_those_who_use_it() -> None:
    model = gated()
    keeper = Keeper(model)
    for units in ((0, 1), (1, 2), (1,), (1, 3)):
        keeper.keep_(of_units(*units))
    assert keeper.contexts == 4, "also where a context has no unit of its own"
    owner = keeper.owner_of["layers.1"]
    assert owner[:5].tolist() == [0, 0, 1, 3, -1]
    keeper.release_(1)
    assert owner[:5].tolist() == [0, 0, -1, 3, -1]
    keeper.release_(0)
    assert owner[:5].tolist() == [-1, 2, -1, 3, -1]
    keeper.release_(3)
    assert owner[:5].tolist() == [-1, 2, -1, -1, -1]
    assert keeper.release_oldest_() == 2
    assert set(owner.tolist()) == {-1}


def test_who_uses_a_unit_is_saved_with_the_model(tmp_path: Any) -> None:
    model = gated()
    keeper = Keeper(model)
    keeper.keep_(of_units(0, 1))
    keeper.keep_(of_units(1, 2))
    dg.save(model, tmp_path / "model.safetensors")
    copied = gated()
    copied.load_state_dict(model.state_dict())
    stated = Keeper(gated())
    stated.load_state_dict(keeper.state_dict())
    for again in (Keeper(dg.load(tmp_path / "model.safetensors")), Keeper(copied), stated):
        again.release_(0)
        assert again.owner_of["layers.1"][:4].tolist() == [-1, 1, 1, -1]
    assert keeper.owner_of["layers.1"][:4].tolist() == [0, 0, 1, -1], "copies are copies"
    copied.load_state_dict(gated().state_dict(), strict=False)
    assert not hasattr(dg.named_gates(copied)["layers.1"], "borrowed")
    with pytest.raises(ValueError, match="pairs of a context and one of 64 units"):
        copied.load_state_dict({"layers.1.gate.borrowed": torch.tensor([[0, 64]])}, strict=False)


def test_blocks_that_another_context_opens_are_not_given_away() -> None:
    model = contextual(3)
    keeper = Keeper(model)
    contexts = Contexts(model, keeper, share=1, reuse=1)
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):  # the second one reuses the first
        x = torch.randn(40, 12, generator=draw)
        contexts.open_(x)
        contexts.close_(x)
    shared = contexts.own_units(0)["layers.1"]
    contexts.release_(0)
    assert torch.equal(contexts.own_units(1)["layers.1"] & shared, shared)
    assert set(keeper.owner_of["layers.1"][shared].tolist()) == {1}
