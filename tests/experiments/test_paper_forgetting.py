"""The experiment on forgetting: its tasks, and what decides the claim."""

from __future__ import annotations

import pytest
import torch
from experiments.paper.evidence import Evidence
from experiments.paper.experiment import PAPER, choose_tables
from experiments.paper.forgetting import CONTROLS, TASKS, less_forgetting, permuted, train

from dynamicgate.data import check_arrays
from dynamicgate.lab.datasets.splits import Splits


@pytest.fixture
def splits() -> Splits:
    """Two clouds that differ in every column."""
    torch.manual_seed(0)
    y = torch.arange(60) % 2
    part = check_arrays(torch.randn(60, 8) + 3.0 * y[:, None], y)
    return Splits("clouds", part, part, part, 2, 0.0, 1.0)


def test_a_task_permutes_the_columns_of_all_parts_alike(splits: Splits) -> None:
    first, second = permuted(splits, 0, 0), permuted(splits, 0, 1)
    assert first.test.x.equal(splits.test.x)
    assert not second.test.x.equal(splits.test.x)
    assert second.test.x.sort(1).values.equal(splits.test.x.sort(1).values)
    assert second.valid.x.equal(second.test.x)
    assert second.test.x.equal(permuted(splits, 0, 1).test.x)
    assert not second.test.x.equal(permuted(splits, 1, 1).test.x)


def test_a_run_says_how_accurate_it_is_on_every_task_after_every_task(splits: Splits) -> None:
    (table,) = choose_tables("forgetting")
    job = next(job for job in PAPER.jobs([table]) if job.model == "gate")
    run = train(job, splits)
    assert [len(row) for row in run["by_task"]] == [TASKS] * TASKS
    expected = sum(run["by_task"][t][t] - run["by_task"][-1][t] for t in range(TASKS - 1)) / (TASKS - 1)
    assert run["forgotten"] == pytest.approx(expected)
    assert run["macs"]["relative"] < 0.5


@pytest.mark.parametrize(("worse", "outcome"), [("", "holds"), ("random", "does not hold")])
def test_gates_must_forget_less_than_every_control(worse: str, outcome: str) -> None:
    def runs(forgotten: float) -> list[dict[str, object]]:
        return [{"seed": s, "forgotten": forgotten + 0.001 * (s % 2), "quality": {"accuracy": 0.5}} for s in range(4)]

    found = {("forgetting/ours", c): runs(0.19 if c == worse else 0.3 + 0.01 * i) for i, c in enumerate(CONTROLS)}
    assert less_forgetting(Evidence({**found, ("forgetting/ours", "gate"): runs(0.2)}, {})).outcome == outcome
