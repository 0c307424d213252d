"""Training: every method learns, the budget is met, and an interrupted run ends where an uninterrupted one does."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dynamicgate.budget import Budget
from dynamicgate.lab.language.evaluation import evaluate_text
from dynamicgate.lab.language.ffn_methods import METHODS, FFNSettings
from dynamicgate.lab.language.text import Text, draw_windows, fixed_windows
from dynamicgate.lab.language.training import LanguageRun, Loss, Training
from tests.lab.language.conftest import SIZES

CPU = torch.device("cpu")
SHORT = Training(steps=60, batch=8, lr=5e-3)


def run_of(method: str, text: Text, folder: Path, training: Training = SHORT) -> LanguageRun:
    settings = FFNSettings(method=method, width=8, executes=2, block=16)  # type: ignore[arg-type]
    return LanguageRun(settings, SIZES, training, text, device=CPU, folder=folder)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str, text: Text, tmp_path: Path) -> None:
    run = run_of(method, text, tmp_path)
    run.train()
    found = evaluate_text(run.costs, text, "valid", CPU, most=32)
    assert found["loss"] < 0.8 * math.log(256)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    assert run.step == 60
    assert run.spent.total > 0


def test_the_budget_is_met(text: Text, tmp_path: Path) -> None:
    run = run_of("gate", text, tmp_path, replace(SHORT, steps=120))
    run.train()
    assert isinstance(run.prepared.budget, Budget)
    found = evaluate_text(run.costs, text, "valid", CPU)
    assert found["executed"] / run.costs.dense == pytest.approx(run.prepared.budget.target, abs=0.01)
    assert len(found["open"]) == SIZES.layers


def test_equal_layers_have_equal_rates(text: Text, tmp_path: Path) -> None:
    settings = FFNSettings(method="gate", width=8, executes=2, block=16, layers="equal")
    run = LanguageRun(settings, SIZES, replace(SHORT, steps=100), text, device=CPU, folder=tmp_path)
    for _ in range(30):
        run._recent.append(run.optimize())
    run.save()
    run = LanguageRun(settings, SIZES, replace(SHORT, steps=100), text, device=CPU, folder=tmp_path)
    run.train()
    found = evaluate_text(run.costs, text, "train", CPU)
    rate = (2 * 2 * 32**2 - 32 * 16) / (2 * 32 * 256)  # after the gate network over 16 blocks
    assert found["open"] == pytest.approx([rate, rate], abs=0.02)


@pytest.mark.parametrize("method", ["gate+rigl", "relu router"])
def test_a_stopped_run_continues_to_the_same_weights(method: str, text: Text, tmp_path: Path) -> None:
    whole = run_of(method, text, tmp_path / "whole")
    whole.train()
    first = run_of(method, text, tmp_path / "parts")
    for _ in range(17):
        first._recent.append(first.optimize())
    first.save()
    second = run_of(method, text, tmp_path / "parts")
    second.train()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert second.spent.total == pytest.approx(whole.spent.total, rel=1e-12)
    other = run_of(method, text, tmp_path / "parts", replace(SHORT, lr=1e-3))
    with pytest.raises(ValueError, match="was made with"):
        other.train()


def test_a_loss_that_is_not_finite_ends_the_run(text: Text, tmp_path: Path) -> None:
    run = run_of("dense", text, tmp_path)
    with torch.no_grad():
        run.model.head.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="lower the learning rate"):
        run.train()


def test_windows_are_of_the_text_and_shifted_by_one() -> None:
    tokens = torch.arange(100, dtype=torch.uint8)
    ids, targets = draw_windows(tokens, 5, 7, torch.Generator().manual_seed(0))
    assert torch.equal(ids + 1, targets)
    assert torch.equal(ids - ids[:, :1], torch.arange(7).expand(5, 7))
    batches = list(fixed_windows(tokens, 4, 9, None))
    assert [len(batch[0]) for batch in batches] == [4, 4, 3]
    assert torch.equal(torch.cat([batch[0] for batch in batches]).flatten(), torch.arange(99))
    some = torch.cat([batch[0] for batch in fixed_windows(tokens, 4, 9, 5)])
    assert some[:, 0].tolist() == [0, 18, 36, 54, 72]
    with pytest.raises(ValueError, match="has no window of 200"):
        next(fixed_windows(tokens, 4, 200, None))


def test_a_run_by_another_way_moves_the_same_weights(text: Text, tmp_path: Path) -> None:
    run = run_of("gate", text, tmp_path)
    run.model.train()
    calls = []

    def watched(loss: Loss) -> Loss:
        def work_out(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
            calls.append(len(ids))
            return loss(model, ids, targets)

        return work_out

    other = run.run_by(watched, capture=False)
    before = run.model.head.weight.detach().clone()
    other.optimize()
    assert calls == [SHORT.batch]
    assert not torch.equal(run.model.head.weight, before)
    assert other.optimizer is run.optimizer
