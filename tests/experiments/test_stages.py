"""The experiment on stages: what it asks for, how it decides, and how it matches models of equal accuracy."""

from __future__ import annotations

from typing import Any

import pytest
from experiments.stages.clock import equal_accuracy
from experiments.stages.experiment import STAGES, choose_tables
from experiments.stages.summary import Comparison, primary

from dynamicgate.lab.statistics import holm

SEEDS = range(5)


def run_of(seed: int, test: float, valid: float, random: float = 0.5) -> dict[str, Any]:
    return {
        "seed": seed,
        "quality": {"accuracy": test},
        "valid": {"accuracy": valid},
        "stages": {"random": random, "cost_error": 0.2, "open": [1.0, 0.2]},
    }


def comparison(gain_valid: float, gain_test: float, noise: float = 0.001) -> Comparison:
    wobble = [noise * (seed - 2) for seed in SEEDS]
    single = [run_of(s, 0.9, 0.9) for s in SEEDS]
    staged = [run_of(s, 0.9 + gain_test + w, 0.9 + gain_valid + w) for s, w in zip(SEEDS, wobble, strict=True)]
    return Comparison(single, staged, single)


def test_stages_are_used_only_where_validation_rows_gain_more_than_the_standard_error() -> None:
    assert comparison(0.01, 0.01).used
    assert not comparison(0.0001, 0.01).used
    assert not comparison(-0.01, 0.01).used
    assert comparison(-0.01, 0.01).gains == [0.0] * 5, "where they are not used nothing is gained or lost"


def test_the_primary_comparison_averages_over_budgets_and_corrects_over_datasets() -> None:
    budgets = (0.02, 0.05, 0.1)
    found = {("mnist", b): comparison(0.01, 0.02) for b in budgets}
    found |= {("digits", b): comparison(-0.01, 0.02) for b in budgets}
    digits, mnist = primary(found)
    assert (digits.name, digits.budgets, digits.difference) == ("digits", [], 0.0)
    assert mnist.difference == pytest.approx(2.0, abs=0.1)
    assert mnist.against_cascade.difference == pytest.approx(2.0, abs=0.1)
    assert digits.against_cascade.difference == 0.0, "without stages: the cascade is as good here as one network"
    assert mnist.corrected == pytest.approx(min(1.0, 7 * mnist.p)), "all seven datasets count, also those not run yet"


def test_holms_correction_steps_down_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_the_rival_is_the_fastest_model_without_stages_that_is_as_accurate() -> None:
    def row(model: str, accuracy: float, us: float) -> dict[str, Any]:
        times = {"mean_us": us, "p99_us": us}
        return {"model": model, "accuracy": accuracy, "batches": {"1": times, "256": times}}

    rows = [
        row("staged 0.02", 0.980, 10.0),
        row("single 0.02", 0.9785, 12.0),  # faster than the others, but 0.15 points worse
        row("single 0.05", 0.9795, 25.0),
        row("single 0.1", 0.990, 40.0),
    ]
    (found,) = equal_accuracy(rows)
    assert found["batches"]["1"]["rival"] == "single 0.05"
    assert found["batches"]["1"]["ratio"] == pytest.approx(2.5)


def test_every_dataset_has_its_tables_and_every_model_its_own_hash() -> None:
    assert len(choose_tables("all")) == len(choose_tables("16x1")) == len(choose_tables("tuning")) == 7
    hashes = [job.hash for job in STAGES.jobs()]
    assert len(set(hashes)) == len(hashes)
    blind = {table.name for table in STAGES.tables if any(c.name == "without_test" for c in table.changes)}
    chosen_by = {t.name for kind in ("tuning", "rates", "ablation") for t in choose_tables(kind)}
    assert blind == chosen_by, "choices see no test rows"
