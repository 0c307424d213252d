"""The frontier: its tables, its accounts, and a few of its runs from end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.frontier import __main__ as command
from experiments.frontier import summary
from experiments.frontier.comparisons import (
    BATCHES,
    Entry,
    accuracy_at,
    area,
    comparisons,
    latency_comparisons,
)
from experiments.frontier.datasets import (
    AT_A_BUDGET,
    BUDGETS,
    CONTROLS,
    DATASETS,
    OURS,
    OURS_IN_TILES,
    method_of,
)
from experiments.frontier.experiment import FRONTIER, choose_tables
from experiments.frontier.search import search_tables
from experiments.frontier.train import accuracy_of_mean_mask

import dynamicgate as dg
from dynamicgate.data import check_arrays
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.result_file import read_runs


def entry(*accuracy: float, cost: float = 0.1) -> Entry:
    return Entry(accuracy, [cost] * len(accuracy), [])


def test_tuning_cannot_see_the_test_rows() -> None:
    parts = [check_arrays(torch.full((4, 2), float(part)), torch.arange(4) % 2) for part in range(3)]
    splits = Splits("clouds", *parts, 2, 0.0, 1.0)
    for kind in ("digits-tuning", "digits-ablation"):
        (change,) = FRONTIER.table(kind).changes
        assert change.apply(splits).test is splits.valid
    for table in (*choose_tables("tuning"), *choose_tables("ablation")):
        assert table.changes[-1].name == "without_test"


def test_every_method_is_run_at_every_budget_with_the_same_tuning() -> None:
    for name in DATASETS:
        models = FRONTIER.table(name).models
        assert {f"{m} {b:g}" for m in AT_A_BUDGET for b in BUDGETS} | {"dense", "dropout"} == set(models)
        trials = [model.split(" ")[0] for model in FRONTIER.table(f"{name}-tuning").models]
        assert {method: trials.count(method) for method in ("rigl", "gate+rigl", "pruned", "small")} == {
            "rigl": 4, "gate+rigl": 4, "pruned": 4, "small": 2,
        }  # fmt: skip


def test_tables_are_chosen_by_dataset_and_kind() -> None:
    assert [table.name for table in choose_tables("all")] == list(DATASETS)
    assert len(choose_tables("tuning")) == 7
    assert len(choose_tables("ablation")) == 6
    assert [table.name for table in choose_tables("mnist-tuning")] == ["mnist-tuning"]
    with pytest.raises(ValueError, match="unknown table 'mnst': the tables of frontier are digits, digits-tuning"):
        choose_tables("mnst")


def test_a_name_says_method_and_budget() -> None:
    assert method_of("gate+rigl 16x1 0.05") == ("gate+rigl 16x1", 0.05)
    assert method_of("dropout") == ("dropout", None)


def test_a_tenth_of_a_point_is_a_tie_and_a_control_over_budget_is_not_compared() -> None:
    entries = {
        ("gate+rigl", 0.1): entry(0.9, 0.9), ("rigl", 0.1): entry(0.9009, 0.9009), ("small", 0.1): entry(0.95, 0.83),
        ("pruned", 0.1): entry(0.95, 0.95), ("switch", 0.1): entry(0.99, 0.99, cost=0.2),
    }  # fmt: skip
    assert {one.control: one.outcome for one in comparisons("clouds", entries)} == {
        "rigl": "tied", "small": "won", "pruned": "lost",
    }  # fmt: skip


def test_a_lost_comparison_has_an_interval_over_paired_seeds() -> None:
    def runs(*accuracy: float, first: int = 0) -> Entry:
        found = [{"seed": first + i, "quality": {"accuracy": x}} for i, x in enumerate(accuracy)]
        return Entry(accuracy, [0.1] * len(accuracy), found)

    entries = {
        ("gate+rigl", 0.1): runs(0.80, 0.90, 0.85), ("rigl", 0.1): runs(0.81, 0.911, 0.86),
        ("set", 0.1): runs(0.90, 0.86, 0.90), ("small", 0.1): runs(0.99, 0.99, first=7),
    }  # fmt: skip
    found = {one.control: one for one in comparisons("clouds", entries)}
    assert found["rigl"].points == pytest.approx(-1.0333, abs=1e-3)
    assert found["rigl"].half == pytest.approx(4.3027 * 0.057735 / 3**0.5, rel=1e-3), "seeds are paired"
    assert found["small"].half is None, "no seed in common"
    text = summary.list_lost("Lost", list(found.values()))
    assert "clouds at 0.1 to rigl, -1.03 ± 0.14" in text
    assert "to small, -14.00;" in text or "to small, -14.00." in text
    assert "one is beyond it" in text
    assert summary.list_lost("Lost", []) == ""


def test_the_search_page_has_one_table_for_each_budget_that_was_tried() -> None:
    text = search_tables(
        {
            "digits": {
                ("as it is", 0.05): entry(0.9), ("lighter gate", 0.05): entry(0.91), ("pruned", 0.05): entry(0.88),
            },
            "mnist": {("as it is", 0.05): entry(0.5), ("lighter gate", 0.05): entry(0.52)},
            "speech": {},
        }
    )  # fmt: skip
    assert "| at 0.05 | why | digits | mnist | mean |" in text
    assert "| lighter gate | it takes 2 % and leaves 95 % open | +1.00 | +2.00 | +1.50 |" in text
    assert "| pruned | control | -2.00 | – | -2.00 |" in text
    assert "as it is" not in text
    assert "| at 0.1 |" not in text
    assert search_tables({"digits": {}}) == ""


def test_controls_without_a_time_are_named() -> None:
    timed = {(method, 0.05): {} for method in CONTROLS}
    some = {key: row for key, row in timed.items() if key[0] not in ("gate", "switch")}
    text = summary.list_untimed({"digits": timed, "mnist": some, "speech": {}})
    assert text == "\nNot timed, because the trained models were missing: mnist gate, switch.\n"
    assert summary.list_untimed({"digits": timed}) == ""


def latencies_of(**ratios: tuple[float, ...]) -> dict[tuple[str, float], object]:
    """Latencies of methods at the first so many budgets, the same at both batch sizes."""
    return {
        (method.replace("_", " ").replace("ours", OURS_IN_TILES), budget): {
            "batches": {str(batch): {"ratio": ratio} for batch in BATCHES}
        }
        for method, row in ratios.items()
        for budget, ratio in zip(BUDGETS, row, strict=False)
    }


def test_controls_are_compared_by_what_they_reach_at_the_same_latency() -> None:
    # At budget 0.05 ours takes 0.2 of the time of dense. Interpolated in log latency, rigl reaches 85 % there. pruned
    # counts its best model that is no slower: 90 %. Every model of small is slower than ours. static was not timed.
    accuracy = {
        OURS_IN_TILES: (0.7, 0.8505), "rigl": (0.8, 0.9), "pruned": (0.9, 0.6, 0.95), "small": (0.5, 0.9, 0.95),
        "set": (0.6, 0.84), "static": (0.9, 0.9),
    }  # fmt: skip
    entries = {
        (method, budget): entry(x, x)
        for method, row in accuracy.items()
        for budget, x in zip(BUDGETS, row, strict=False)
    }
    latencies = latencies_of(
        ours=(0.1, 0.2), rigl=(0.1, 0.4), pruned=(0.1, 0.2, 0.4), small=(0.3, 0.4, 0.5), set=(0.05, 0.1)
    )
    for batch in BATCHES:
        found = {one.control: one for one in latency_comparisons("clouds", entries, latencies, batch)}
        assert {one.budget for one in found.values()} == {0.05}
        assert {control: (one.outcome, one.faster) for control, one in found.items()} == {
            "rigl": ("tied", False), "pruned": ("lost", False), "small": ("won", True), "set": ("won", False),
        }  # fmt: skip
        assert found["rigl"].points == pytest.approx(0.05)
        assert found["pruned"].points == pytest.approx(-4.95), "its slower model is worse than its faster one"
        assert found["set"].points == pytest.approx(1.05), "beyond its slowest model it has no better one"
        assert found["small"].points == pytest.approx(35.05), "shown, but it does not decide"
    assert latency_comparisons("clouds", entries, latencies, 1, OURS) == []
    entries[OURS_IN_TILES, 0.02] = entry(0.9)
    (pruned,) = (one for one in latency_comparisons("clouds", entries, latencies, 1) if one.control == "pruned")
    assert pruned.points == pytest.approx(0.0), "ours may take its faster model, too"


def test_a_longer_latency_never_means_a_lower_accuracy() -> None:
    points = [(0.1, 80.0), (0.2, 70.0), (0.4, 90.0)]
    assert accuracy_at(points, 0.2) == pytest.approx(80.0)
    assert accuracy_at(points, 0.2 * 2**0.5) == pytest.approx(85.0)
    assert accuracy_at(points, 3.0) == pytest.approx(90.0)


def test_the_area_is_the_mean_over_the_logarithm_of_the_budget() -> None:
    flat = {("rigl", budget): entry(0.9, 0.8) for budget in BUDGETS}
    found = area(flat, "rigl")
    assert found.mean == pytest.approx(85.0)
    assert area(dict(list(flat.items())[1:]), "rigl") is None


def test_a_gate_that_ignores_its_input_loses_nothing_with_its_mean_mask() -> None:
    torch.manual_seed(0)
    part = check_arrays(torch.randn(60, 6), torch.arange(60) % 3)
    splits = Splits("clouds", part, part, part, 3, 0.0, 1.0)
    model = dg.nn.GatedMLP((6, 8, 3), dg.GateConfig(block=2))
    (gate,) = dg.named_gates(model).values()
    with torch.no_grad():
        gate.net.weight.zero_()  # type: ignore[operator]
        gate.bias.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
    before = dg.measure(model, part).quality["accuracy"]
    assert accuracy_of_mean_mask(model, splits) == before


def test_the_readme_shows_one_budget_beside_dense() -> None:
    entries = {("small", 0.1): entry(0.5), ("gate+rigl", 0.1): entry(0.6, 0.7), ("dense", None): entry(0.75)}
    table = summary.overview({"clouds": entries}, comparisons("clouds", entries))
    assert "| clouds | 50.00 | – | – | – | – | 65.00 | 75.00 |" in table
    assert table.endswith("against all 8 controls: 1 comparisons won, 0 tied, 0 lost.")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["frontier", *words])
    command.main()


def test_a_few_runs_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "FRONTIER", replace(FRONTIER, root=tmp_path))
    methods, budgets = ("dense", "small", "gate", "gate+rigl", "gate+rigl 16x1"), ("0.02", "0.1")
    run(monkeypatch, "digits", "--quick", "--jobs", "1", "--only", *methods, "--budgets", *budgets)
    assert "wrote runs/frontier-quick/docs/why-it-works.md" in capsys.readouterr().out
    where = tmp_path / "runs" / "frontier-quick"
    runs = [one for one in read_runs(where / "results" / "digits.jsonl") if one["model"].startswith("gate")]
    assert any("unreachable" in one for one in runs), "2 % of digits is too little for a gate"
    assert any("accuracy_of_mean_mask" in one for one in runs)
    assert "digits, 64-128-10" in (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")
    for before in (0, 7):  # the second time everything that can be timed is found
        asked = ("--seconds", "0.02", "--repeats", "1", "--only", *methods, "--budgets", *budgets)
        run(monkeypatch, "latency", "digits", "--quick", *asked)
        assert f"{before} timed before, 1 skipped" in capsys.readouterr().out
    rows = read_runs(where / "results" / "latency.jsonl")
    assert [row["model"] for row in rows] == [
        "gate 0.1", "gate+rigl 0.02", "gate+rigl 0.1", "gate+rigl 16x1 0.02", "gate+rigl 16x1 0.1", "small 0.02",
        "small 0.1",
    ]  # fmt: skip
    for row in rows:
        assert row["meta"]["machine"]["threads"] == 1
        assert row["data"] == "digits"
        assert 0.0 < row["accuracy"] <= 1.0
        assert row["relative"] == pytest.approx(method_of(row["model"])[1], abs=0.02)
        assert list(row["batches"]) == ["1", "256"]
        for timed in row["batches"].values():
            assert timed["ratio"] == pytest.approx(timed["ours_us"] / timed["dense_us"])
            assert len(timed["choices"]) == 2
    text = (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")
    assert "At equal latency: " in text
    for batch in ("1", "256"):
        assert f"figures/latency-digits-{batch}.svg" in text
        drawn = (where / "docs" / "figures" / f"latency-digits-{batch}.svg").read_text(encoding="utf-8")
        assert f"latency at batch {batch}, relative to dense" in drawn


def test_a_dataset_that_cannot_be_timed_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown datasets mnst: those that can be timed are digits, mnist"):
        run(monkeypatch, "latency", "mnst")
