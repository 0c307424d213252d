"""The experiment on forgetting: its tasks, and what decides the claim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experiments.continual.matching import matched
from experiments.paper.evidence import Evidence
from experiments.paper.experiment import PAPER, choose_tables
from experiments.paper.forgetting import CONTROLS, TASKS, equally_learned, less_forgetting, permuted, train

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


def stream_run(seed: int, learned: float, forgetting: float, overlap: float = 0.5) -> dict[str, Any]:
    quality = {"learned": learned, "forgetting": forgetting, "overlap": [[1.0, overlap], [overlap, 1.0]]}
    return {"seed": seed, "quality": quality}


def test_forgetting_is_compared_where_as_much_was_learned() -> None:
    rows = {
        "dense, short": [stream_run(s, 0.80, 0.10) for s in (0, 1)],
        "dense, long": [stream_run(s, 0.90, 0.20 + 0.02 * s) for s in (0, 1)],
        "gate, short": [stream_run(s, 0.70, 0.0) for s in (0, 1)],  # no dense run has learned so little
        "gate, long": [stream_run(s, 0.85, 0.16, 0.4) for s in (0, 1)],
    }
    dense, gate = matched(rows)
    assert dense.apart is not None
    assert dense.apart.difference == pytest.approx(0.0)
    assert gate.apart is not None
    assert gate.apart.difference == pytest.approx(((0.16 - 0.15) + (0.16 - 0.16)) / 2)
    assert gate.overlap == pytest.approx(0.45)
    assert matched({"top-k, short": rows["gate, short"], "dense, long": rows["dense, long"]})[0].apart is None
    found = equally_learned({"e0-permuted-5": rows})
    assert not found[0]
    assert "5 permuted tasks: gate +0.50" in found[1]


def test_p_values_are_corrected_for_all_comparisons_and_said_in_words() -> None:
    dense = {"dense, a": [stream_run(s, 0.8, 0.1) for s in range(5)],
             "dense, b": [stream_run(s, 0.9, 0.3) for s in range(5)]}  # fmt: skip
    lost = {"gate, a": 0.25, "gate in blocks, a": 0.10}
    rows = dense | {name: [stream_run(s, 0.85, at + 0.002 * s) for s in range(5)] for name, at in lost.items()}
    noisy = dense | {name: [stream_run(s, 0.85, 0.2 + 0.05 * (s - 2.1)) for s in range(5)] for name in lost}
    holds, text = equally_learned({"e0-permuted-5": rows, "e0-rotated-5": noisy})
    assert not holds
    assert "a gate forgets more on 5 permuted tasks; neither significantly less nor more on 5 rotated tasks" in text
    assert "a gate in blocks forgets less on 5 permuted tasks" in text
    assert "corrected for 4 comparisons" in text
    raw = {one.method: one.apart for one in matched(noisy)}["gate"]
    assert raw is not None
    assert raw.p is not None
    assert f"5 rotated tasks: gate {100 * raw.difference:+.2f} (p = {min(1.0, 2 * raw.p):.3f})" in text


def test_streams_in_which_nothing_is_kept_are_part_of_the_verdict() -> None:
    def runs(forgotten: float) -> list[dict[str, Any]]:
        return [{"seed": s, "forgotten": forgotten + 0.001 * (s % 2), "quality": {"accuracy": 0.5}} for s in range(4)]

    ours = {("forgetting/ours", m): runs(0.1 if m == "gate" else 0.3) for m in ("gate", *CONTROLS)}
    dense = {"dense, a": [stream_run(s, 0.8, 0.1) for s in range(4)],
             "dense, b": [stream_run(s, 0.9, 0.3) for s in range(4)]}  # fmt: skip
    for forgetting, outcome in ((0.1, "holds"), (0.3, "does not hold")):
        gate = {"gate, a": [stream_run(s, 0.85, forgetting + 0.001 * s) for s in range(4)]}
        verdict = less_forgetting(Evidence(ours, {}, streams={"e0-rotated-5": {**dense, **gate}}))
        assert verdict.outcome == outcome
        assert "5 rotated tasks" in verdict.number
    assert "learned as much" not in less_forgetting(Evidence(ours, {}, streams={"e0-rotated-5": {}})).number
