"""The table of `dynamicgate continual`: columns for what was measured, and no others."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.continual import Retention
from dynamicgate.lab.report.continual_page import continual_table, render_continual

R = torch.tensor([[0.9, 0.3], [0.6, 0.8]])


def run(model: str, retention: Retention) -> dict[str, Any]:
    quality = {"acc": retention.acc, "learned": retention.learned, "forgetting": retention.forgetting}
    return {
        "model": model, "seed": 0, "quality": {**quality, "retention": retention.to_dict()}, "bytes": 0, "params": 1,
        "macs": {"executed": 1.0, "relative": 1.0}, "seconds": 1.0, "told": {"scenario": "domain", "known": "ids"},
        "settings": {"method": model},
    }  # fmt: skip


def test_what_was_measured_has_a_column_and_what_was_not_has_none() -> None:
    bare = run("bare", Retention(R))
    head = continual_table([bare]).splitlines()[0]
    assert "BWT" in head
    assert "FWT" not in head
    everything = Retention(R, untrained=torch.tensor([0.1, 0.2]), joint=torch.tensor([0.9, 0.9]),
                           lowest=torch.tensor([0.5, 0.8]), online=[0.4, 0.6], fresh=[0.8, 0.6])  # fmt: skip
    lines = continual_table([bare, run("measured", everything)]).splitlines()
    assert all(name in lines[0] for name in ("FWT", "intransigence", "stability gap", "plasticity"))
    assert "ageing" not in lines[0]
    assert lines[1].split().count("–") == 4
    assert [value in lines[2] for value in ("10.00", "5.00", "40.00", "75.00")] == [True] * 4
    page = render_continual([bare, run("measured", everything)], {}, {})
    assert "<th>stability gap</th>" in page


def test_results_of_before_there_was_a_summary_are_still_shown() -> None:
    old = run("old", Retention(R))
    del old["quality"]["retention"]["summary"]
    assert "BWT" not in continual_table([old])
