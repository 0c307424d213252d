"""Which rows the gates are calibrated on at the end of a training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import dynamicgate as dg
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget.calibration import executed_error, executed_relative
from dynamicgate.budget.collapse import Reading
from dynamicgate.budget.new_rows import recent_rate
from tests.training.easy import blobs, gated

TARGET = 0.6


def trained(valid: tuple[Tensor, Tensor]) -> tuple[torch.nn.Module, float]:
    """A short training, and what the model then executes on the validation rows."""
    model = gated()
    history = dg.fit(model, blobs(), valid=valid, budget=dg.Budget(target=TARGET), epochs=4, batch=24, show=False)
    assert history.final is not None
    return model, history.final["relative"]


def other_rows(count: int) -> tuple[Tensor, Tensor]:
    """Rows on which gates that were trained on blobs open other numbers of units."""
    x, y = blobs(count, seed=3)
    return 0.2 * x, y


def test_validation_rows_alone_count_where_they_say_clearly_what_is_executed() -> None:
    model, on_valid = trained(other_rows(400))
    assert on_valid == pytest.approx(TARGET, abs=0.003)
    assert abs(dg.measure(model, blobs()).macs["relative"] - TARGET) > 0.02  # training rows had no say


def test_training_rows_join_a_few_validation_rows() -> None:
    model, on_valid = trained(other_rows(3))
    joined = [torch.cat([x, y]) for x, y in zip(other_rows(3), blobs(), strict=True)]
    assert dg.measure(model, (joined[0], joined[1])).macs["relative"] == pytest.approx(TARGET, abs=0.003)
    assert abs(on_valid - TARGET) > 0.01


def test_the_error_of_a_mean_is_that_of_the_batches() -> None:
    model, (x, _) = gated().eval(), blobs(240, seed=3)
    counter = MacCounter.for_mlp(model)
    each = torch.tensor([executed_relative(model, counter, [part]) for part in x.split(30)], dtype=torch.float64)
    found = executed_error(model, counter, x.split(30))
    assert found == pytest.approx(float(each.std()) / 8**0.5)
    assert found > 0.0
    assert executed_error(model, counter, [x]) == float("inf")


def test_one_strange_step_at_the_end_does_not_say_how_open_a_layer_was() -> None:
    model, (x, _) = gated().eval(), blobs(200, seed=3)
    budget = dg.Budget(target=TARGET)
    with dg.usage(model) as used:
        model(x)
    rates = {site: float(used[site].open.mean()) for site in used}
    for site, rate in rates.items():
        usual = [Reading(0.95 + i / 200, rate, rate, 0.5, 1.0, 0.0, TARGET) for i in range(10)]
        budget.readings[site] = [*usual, Reading(1.0, rate, 3.0 * rate, 0.5, 1.0, 0.0, TARGET)]
    budget.calibrate_(model, x)
    assert dg.measure(model, x).macs["relative"] == pytest.approx(TARGET, abs=0.005)


def test_of_a_short_training_the_end_alone_says_how_open_a_layer_was() -> None:
    falling = [Reading(i / 12, 1.0 - i / 12, 1.0 - i / 12, 0.5, 1.0, 0.0, TARGET) for i in range(12)]
    assert recent_rate(falling) == falling[-1].g
