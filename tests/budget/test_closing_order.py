"""Units that add least to what reads them close first."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.budget.closing_order import SPREAD
from dynamicgate.training import Callback
from tests.budget.loop import task

WIDTH = 24


def gated(seed: int = 0, **config: Any) -> nn.Sequential:
    """A network whose gates start alike, with a gate network that looks at nothing."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    dg.gate_(model, dg.GateConfig(**{"net": "low-rank", "rank": 1, **config}))
    for gate in dg.named_gates(model).values():
        if gate.config.kind == "dynamic":
            nn.init.zeros_(gate.last.weight)  # type: ignore[arg-type]
    return model


def warm_up(model: nn.Module, budget: dg.Budget, rows: Tensor) -> None:
    """Forward passes in the warm-up, without training, and the step that ends it."""
    for progress in (0.0, 0.02, 0.04):
        budget.apply_(model, progress)
        with torch.no_grad():
            model(rows)
    budget.apply_(model, 0.05)


def added(model: nn.Sequential, rows: Tensor) -> Tensor:
    """What every unit adds to the output: the root of its mean square, times the norm of the weights that read it."""
    units = torch.relu(model[0](rows)).double()
    return units.square().mean(0).sqrt() * model[2].weight.double().norm(dim=0)


def test_logits_are_moved_apart_by_what_units_add() -> None:
    model, (x, _) = gated(), task(64)
    (gate,) = dg.named_gates(model).values()
    before = gate.bias.detach().clone()
    right = added(model, x)
    warm_up(model, dg.Budget(target=0.5, order_units=True), x)
    moved = (gate.bias.detach() - before).double()
    expected = SPREAD * (right - right.mean()) / right.std(correction=0)
    torch.testing.assert_close(moved, expected.detach(), atol=1e-6, rtol=0.0)


def test_blocks_are_ordered_by_what_their_units_add_together() -> None:
    model, (x, _) = gated(block=5), task(64)  # blocks of 5, 5, 5, 5 and 4 units
    (gate,) = dg.named_gates(model).values()
    before = gate.bias.detach().clone()
    blocks = torch.stack([part.square().sum().sqrt() for part in added(model, x).split([5, 5, 5, 5, 4])])
    warm_up(model, dg.Budget(target=0.5, order_units=True), x)
    moved = (gate.bias.detach() - before).double()
    expected = SPREAD * (blocks - blocks.mean()) / blocks.std(correction=0)
    torch.testing.assert_close(moved, expected.detach(), atol=1e-6, rtol=0.0)


def test_units_that_add_nothing_are_the_first_to_close() -> None:
    model, (x, y) = gated(kind="static", net="auto", rank=None), task(512)
    with torch.no_grad():
        model[2].weight[:, ::2] = 0.0
    for parameter in (*model[0].parameters(), model[2].weight):
        parameter.requires_grad_(False)  # they stay useless
    dg.fit(model, (x, y), epochs=6, batch=64, budget=dg.Budget(target=0.5, order_units=True), show=False)
    (gate,) = dg.named_gates(model).values()
    open_units = (gate.bias > gate.logit_threshold).nonzero().flatten().tolist()
    assert 10 <= len(open_units) <= 12
    assert all(unit % 2 for unit in open_units)


def test_nothing_stays_on_the_model_after_a_pass_and_nobody_looks_after_the_warm_up() -> None:
    model, (x, _) = gated(), task(64)
    budget = dg.Budget(target=0.5, order_units=True)
    before_all = len(model[2]._forward_pre_hooks)
    budget.apply_(model, 0.0)
    assert len(model[2]._forward_pre_hooks) == before_all + 1
    model(x)
    assert len(model[2]._forward_pre_hooks) == before_all
    warm_up(model, budget, x)
    assert len(model[2]._forward_pre_hooks) == before_all
    (gate,) = dg.named_gates(model).values()
    before = gate.bias.detach().clone()
    budget.apply_(model, 0.06)
    assert torch.equal(gate.bias, before)


def test_a_model_can_be_copied_and_pickled_in_the_warm_up() -> None:
    model, (x, _) = gated(), task(8)
    dg.Budget(target=0.5, order_units=True).apply_(model, 0.0)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def test_a_copy_of_a_budget_serves_another_model() -> None:
    model, (x, _) = gated(), task(64)
    budget = dg.Budget(target=0.5, order_units=True)
    budget.apply_(model, 0.0)
    other = gated(seed=1)
    right = added(other, x)
    (gate,) = dg.named_gates(other).values()
    before = gate.bias.detach().clone()
    warm_up(other, copy.deepcopy(budget), x)
    moved = (gate.bias.detach() - before).double()
    expected = SPREAD * (right - right.mean()) / right.std(correction=0)
    torch.testing.assert_close(moved, expected.detach(), atol=1e-6, rtol=0.0)


def test_channels_that_a_linear_layer_reads_at_several_places_are_left_as_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    dg.gate_(model, dg.GateConfig(kind="static"))
    gates = dg.named_gates(model)
    before = {site: gate.bias.detach().clone() for site, gate in gates.items()}
    warm_up(model, dg.Budget(target=0.5, order_units=True), torch.randn(20, 1, 4, 4))
    assert [site for site, gate in gates.items() if not torch.equal(gate.bias, before[site])] == ["5"]


def test_a_batch_with_nan_does_not_end_the_order() -> None:
    model, (x, _) = gated(), task(64)
    (gate,) = dg.named_gates(model).values()
    before = gate.bias.detach().clone()
    budget = dg.Budget(target=0.5, order_units=True)
    budget.apply_(model, 0.0)
    model(torch.full_like(x, torch.nan))
    warm_up(model, budget, x)
    assert not torch.equal(gate.bias, before)
    assert gate.bias.isfinite().all()


@pytest.mark.parametrize("stop", [3, 20])
def test_training_resumes_to_the_bit_in_and_after_the_warm_up(tmp_path: Path, stop: int) -> None:
    def train(model: nn.Module, folder: Path, callbacks: tuple[Callback, ...] = ()) -> None:
        budget = dg.Budget(target=0.4, warmup=0.2, order_units=True)
        dg.fit(
            model, task(256), epochs=10, batch=64, budget=budget, seed=1, out=folder, show=False, callbacks=callbacks,
            checkpoint_seconds=0.0,
        )  # fmt: skip

    class Interrupt(Callback):
        def on_log(self, row: dict[str, float], step: int) -> bool | None:
            if step >= stop:
                raise RuntimeError("pulled the plug")
            return None

    whole, again = gated(), gated()
    train(whole, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="plug"):
        train(gated(), tmp_path / "parts", (Interrupt(),))
    train(again, tmp_path / "parts")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_second_training_starts_with_a_new_order() -> None:
    model, (x, _) = gated(), task(64)
    budget = dg.Budget(target=0.5, order_units=True)
    warm_up(model, budget, x)
    budget.reset()
    other = gated(seed=1)
    (gate,) = dg.named_gates(other).values()
    before = gate.bias.detach().clone()
    warm_up(other, budget, x)
    assert not torch.equal(gate.bias, before)


def test_what_cannot_be_ordered_is_refused() -> None:
    with pytest.raises(ValueError, match="expected warmup > 0"):
        dg.Budget(target=0.5, warmup=0.0, order_units=True)
    model = gated()
    with pytest.raises(RuntimeError, match="no training pass of '2'"):
        dg.Budget(target=0.5, order_units=True).apply_(model, 0.5)
    torch.manual_seed(0)
    staged = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    dg.gate_(staged, dg.GateConfig(kind="stages", stages=(0.5, 0.5)))
    with pytest.raises(ValueError, match="moves the cut alone"):
        dg.Budget(target=0.7, order_units=True).apply_(staged, 0.0)
    frozen = gated()
    for gate in dg.named_gates(frozen).values():
        gate.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="none whose logits are trained"):
        dg.Budget(target=0.5, order_units=True).apply_(frozen, 0.0)
