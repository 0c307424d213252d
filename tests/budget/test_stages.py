"""The budget of staged models: the cut is put where rows execute the target, in training and afterwards."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import Budget, GateConfig
from dynamicgate.accounting.stage_costs import stage_macs
from dynamicgate.budget import OpenLoopBudget, executed_relative
from dynamicgate.budget.stage_cut import FOLLOW, STEER_EVERY, check_pays_first_stage, final_stage_macs
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.nn import GatedMLP
from dynamicgate.training import StageLoss
from tests.gating.staged import the_gate

from .test_budget import task

STAGED = GateConfig(kind="stages", stages=(0.25, 0.25, 0.5))


def make(sizes: tuple[int, ...] = (32, 64, 64, 4), config: GateConfig = STAGED) -> GatedMLP:
    torch.manual_seed(0)
    return GatedMLP(sizes, config)


def train(
    model: nn.Module,
    budget: Budget,
    batch: tuple[Tensor, Tensor],
    steps: int,
    *,
    first: int = 0,
    last: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: StageLoss | None = None,
) -> None:
    """The four lines."""
    (x, y), stage_loss = batch, loss or StageLoss()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for step in range(first, steps if last is None else last):
        rows = torch.randint(len(x), (128,), generator=torch.Generator().manual_seed(step))
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1.0 - step / steps)
        budget.apply_(model, progress := step / steps)
        with dg.usage(model) as used:
            model(x[rows])
        total = stage_loss(used, lambda out, rows=rows: F.cross_entropy(out, y[rows], reduction="none"))  # type: ignore[misc]
        (total + budget.step(used, progress)).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_row(model: nn.Module, x: Tensor) -> float:
    """What it adds to the mean if one row opens everything instead of the first stage alone, relative to dense. A row
    that needs the third stage more than the second opens both at once."""
    counter = dg.count_macs(model, x[:2])
    first, *_, last = stage_macs(counter).tolist()
    return (last - first) / counter.dense / len(x)


# --- calibration


@pytest.mark.parametrize("decide", ["margin", "entropy", "head"])
@pytest.mark.parametrize("target", [0.2, 0.31, 0.5, 0.7])
def test_calibration_is_within_one_row_of_the_target(target: float, decide: Any) -> None:
    model, (x, y) = make(config=GateConfig(kind="stages", stages=(0.25, 0.25, 0.5), decide=decide)), task(500)
    modes = [m.training for m in model.modules()]
    found = dg.calibrate_(model, x.split(130), macs=target)
    assert target - one_row(model, x) <= found <= target
    assert dg.measure(model, (x, y)).relative == pytest.approx(found, rel=1e-6)
    assert [m.training for m in model.modules()] == modes
    assert Budget(target=target).calibrate_(model, x) == found
    assert executed_relative(model, dg.count_macs(model, x[:2]), [x]) == pytest.approx(found, rel=1e-6)


def test_a_model_can_be_put_onto_every_point_of_its_curve() -> None:
    model, (x, y) = make(), task(300)
    for point in dg.measure(model, (x, y)).curve:
        assert dg.calibrate_(model, x, macs=point["relative"]) == pytest.approx(point["relative"], rel=1e-9)
        found = dg.measure(model, (x, y))
        assert (found.relative, found.accuracy) == pytest.approx((point["relative"], point["accuracy"]), rel=1e-9)


def test_more_than_everything_opens_everything() -> None:
    model, (x, _) = make(), task(50)
    whole = float(stage_macs(dg.count_macs(model, x))[-1]) / dg.count_macs(model, x).dense
    assert dg.calibrate_(model, x, macs=1.0) == pytest.approx(whole)
    assert bool((the_gate(model).cut == -torch.inf).all())


def test_equal_rows_stay_together_and_below_the_target() -> None:
    model, x = make(), torch.randn(1, 32).expand(10, 32)
    macs = stage_macs(dg.count_macs(model, x)) / dg.count_macs(model, x).dense
    found = dg.calibrate_(model, x, macs=float(macs.mean()))
    assert min(abs(found - float(cost)) for cost in macs) < 1e-9
    assert found <= float(macs.mean())


def test_gates_on_units_inside_stages_stay_as_they_are() -> None:
    model, (x, y) = make(), task(300)
    dg.gate_(model, GateConfig(block=8, net="linear", open=0.6))
    for gate in dg.named_gates(model).values():
        nn.init.normal_(gate.net.weight)
        gate.net.weight.data.mul_(getattr(gate.net, "mask", 1.0))  # type: ignore[operator]
    before = {name: gate.bias.detach().clone() for name, gate in dg.named_gates(model).items()}
    target = 0.35
    found = dg.calibrate_(model, x, macs=target)
    assert target - one_row(model, x) <= found <= target
    assert dg.measure(model, (x, y)).relative == pytest.approx(found, rel=1e-6)
    assert all(torch.equal(gate.bias, before[name]) for name, gate in dg.named_gates(model).items())


@pytest.mark.parametrize(
    ("macs", "message"),
    [
        (0.05, r"a budget of 0.05 cannot be met: the first stage, which every input opens, costs 0\.\d+ of the dense"),
        (0.0, "macs is a fraction of the dense MACs: expected 0 < macs <= 1, received 0.0"),
        (1.5, "received 1.5"),
    ],
)
def test_calibration_to_what_cannot_be_is_refused(macs: float, message: str) -> None:
    model = make()
    with pytest.raises(ValueError, match=message):
        dg.calibrate_(model, task(20)[0], macs=macs)
    assert bool((the_gate(model).cut == -torch.inf).all())


def test_a_target_that_is_the_cost_of_the_first_stage_pays_for_it() -> None:
    for least in range(1, 3000):
        target = least / 7919.0 * 7919.0  # a little less than `least` for some of them
        check_pays_first_stage(target, torch.tensor([least], dtype=torch.float64), 7919.0)
    with pytest.raises(ValueError, match="cannot be met"):
        check_pays_first_stage(0.9999, torch.tensor([1.0]), 7919.0)


def test_calibration_needs_gates_and_data() -> None:
    with pytest.raises(ValueError, match=r"calibration moves gates, and this model has none: call dynamicgate.gate_"):
        dg.calibrate_(GatedMLP((32, 8, 4)), task(20)[0], macs=0.5)
    with pytest.raises(ValueError, match="nothing to calibrate on: the dataset is empty"):
        dg.calibrate_(make(), torch.empty(0, 32), macs=0.5)


def test_one_call_calibrates_other_gates_as_well() -> None:
    model, (x, y) = GatedMLP((32, 64, 4), GateConfig(net="low-rank", rank=2)), task(500)
    assert dg.calibrate_(model, x, macs=0.5) == pytest.approx(0.5, abs=0.005)
    assert dg.measure(model, (x, y)).relative == pytest.approx(0.5, abs=0.005)


# --- in training


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    train = load_dataset("digits").train
    return train.rows(torch.arange(len(train))), train.y


@pytest.mark.parametrize("target", [0.25, 0.45])
def test_the_cut_follows_training_in_an_own_loop(digits: tuple[Tensor, Tensor], target: float) -> None:
    x, y = digits
    model = make((64, 96, 96, 10))
    budget = Budget(target=target)
    train(model, budget, (x, y), 250)
    found = dg.measure(model, (x, y))
    assert found.relative == pytest.approx(target, abs=0.02), "without calibration"
    assert found.accuracy > 0.95
    assert budget.reference == target
    assert found.stages is not None
    assert found.accuracy > found.stages["random"]


def test_the_cut_follows_with_gates_on_units_inside(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    model = make((64, 96, 96, 10))
    dg.gate_(model, GateConfig(block=8, net="linear"))
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias[::2] -= 4.0  # half of them begin closed: stages cost less than with all open
    train(model, Budget(target=0.3), (x, y), 250)
    found = dg.measure(model, (x, y))
    assert found.relative == pytest.approx(0.3, abs=0.02)
    assert found.accuracy > 0.9
    assert {row["name"] for row in found.gates} == {"layers.1", "layers.2"}
    assert all(0.0 < row["open"] < 1.0 for row in found.gates)


def test_the_first_step_puts_the_cut_where_the_batch_needs_it_and_later_ones_follow() -> None:
    model, (x, _) = make(), task(64)
    budget = Budget(target=0.4)
    cuts = []
    for part in (x, 3.0 * x):
        calibrated = copy.deepcopy(model)
        dg.calibrate_(calibrated, part, macs=0.4)
        cuts.append(float(the_gate(calibrated).cut[0]))
    for step in range(2 * STEER_EVERY):
        budget.apply_(model, step / 100)
        with dg.usage(model) as used:
            model(x if step == 0 else 3.0 * x)
        term = budget.step(used, step / 100)
        assert float(term) == 0.0, "the cut needs no penalty"
        expected = cuts[0] if step < STEER_EVERY else cuts[0] + FOLLOW * (cuts[1] - cuts[0])
        assert the_gate(model).cut.tolist() == pytest.approx([expected] * 2, rel=1e-5)
    assert cuts[0] != pytest.approx(cuts[1], rel=0.1)


def test_a_penalty_only_tells() -> None:
    model, (x, _) = make(), task(64)
    budget = Budget(target=0.4)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.0)
    before = the_gate(model).cut.clone()
    assert float(budget.penalty(used)) == 0.0
    assert torch.equal(the_gate(model).cut, before)


def test_a_budget_of_everything_keeps_a_finite_cut_in_training() -> None:
    model, (x, _) = make(), task(64)
    budget = Budget(target=1.0)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.0)
    assert bool(the_gate(model).cut.isfinite().all())
    assert dg.measure(model, x).relative == pytest.approx(
        float(stage_macs(dg.count_macs(model, x))[-1]) / dg.count_macs(model, x).dense
    )


def test_a_budget_below_the_first_stage_is_refused_before_training() -> None:
    model = make()
    with pytest.raises(ValueError, match=r"a budget of 0\.02 cannot be met: the first stage, which every input opens"):
        Budget(target=0.02).bind(dg.count_macs(model, task(4)[0]))
    with pytest.raises(ValueError, match="cannot be met: the first stage"):
        dg.fit(model, task(64), budget=Budget(target=0.02), epochs=1, show=False)


def test_a_sparser_end_makes_a_smaller_budget_possible() -> None:
    model = make((32, 64, 64, 4), GateConfig(kind="stages", stages=(16, 16, 32)))
    densities = dict.fromkeys(("layers.0", "layers.1"), 0.1)
    sparsifier = dg.RigL(model, densities, initial_density=dict.fromkeys(densities, 1.0), every=10)
    counter = dg.count_macs(model, task(4)[0])
    with pytest.raises(ValueError, match="cannot be met: the first stage"):
        Budget(target=0.05).bind(counter)
    Budget(target=0.05).bind(counter, sparsifier)
    expected = 0.1 * 16 * 32 + 0.1 * 16 * 16 + 4 * 16
    assert float(final_stage_macs(counter, sparsifier)[0]) == pytest.approx(expected, abs=1.0)


def test_an_open_loop_budget_says_that_stages_have_no_penalty() -> None:
    model = make()
    with pytest.raises(
        ValueError, match=r"this model has stages alone: use Budget\(target=\.\.\.\), which steers their cut"
    ):
        OpenLoopBudget(weight=0.1).apply_(model, 0.0)
    dg.gate_(model, GateConfig(kind="static", block=8))
    budget = OpenLoopBudget(weight=0.1)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(task(16)[0])
    assert budget.step(used, 0.0).item() > 0.0


def test_a_saved_loop_continues_to_the_same_bits() -> None:
    batch = task(400)

    def start() -> tuple[GatedMLP, Budget, torch.optim.Optimizer]:
        model = make()
        return model, Budget(target=0.4), torch.optim.AdamW(model.parameters(), lr=5e-3)

    loss = StageLoss(focus=0.5)
    straight, budget, optimizer = start()
    train(straight, budget, batch, 30, optimizer=optimizer, loss=loss)
    model, budget, optimizer = start()
    train(model, budget, batch, 30, last=17, optimizer=optimizer, loss=loss)
    states = model.state_dict(), json.loads(json.dumps(budget.state_dict())), copy.deepcopy(optimizer.state_dict())
    again, budget, optimizer = start()
    again.load_state_dict(states[0])
    budget.load_state_dict(states[1])
    optimizer.load_state_dict(states[2])
    train(again, budget, batch, 30, first=17, optimizer=optimizer, loss=loss)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in straight.state_dict().items())
