"""Latency at equal accuracy: each staged model against the fastest model without stages that is as accurate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.stages.latency import BATCHES, DENSE_PLAN, DENSE_TORCH
from experiments.stages.tables import STAGED

WITHIN = 0.001  # of accuracy: a tenth of a point


def equal_accuracy(timed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The staged models, each with its rival at every batch size and how many times as fast it is."""
    staged = [row for row in timed if row["model"].startswith(STAGED) and "accuracy" in row]
    others = [row for row in timed if not row["model"].startswith(STAGED) and "accuracy" in row]
    found = []
    for row in staged:
        as_good = [other for other in others if other["accuracy"] >= row["accuracy"] - WITHIN]
        batches = {}
        for batch in map(str, BATCHES):
            own = row["batches"][batch]["mean_us"]
            rival = min(as_good, key=lambda other: other["batches"][batch]["mean_us"], default=None)
            rival_us = rival["batches"][batch]["mean_us"] if rival else None
            batches[batch] = {
                **row["batches"][batch],
                "rival": rival["model"] if rival else None,
                "rival_us": rival_us,
                "ratio": rival_us / own if rival_us else None,
            }
        found.append({**row, "batches": batches})
    return found


def fastest_dense(timed: Sequence[dict[str, Any]], batch: int) -> float:
    """Microseconds of the dense network, the faster of its two forms."""
    return min(row["batches"][str(batch)]["mean_us"] for row in timed if row["model"] in (DENSE_PLAN, DENSE_TORCH))
