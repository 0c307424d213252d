"""The frontier: its tables, its accounts, and a few of its runs from end to end."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import check_arrays
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.result_file import read_runs
from dynamicgate.lab.runner import load_tables
from dynamicgate.lab.runner.jobs import load_module
from tests.places import ROOT

FOLDER = ROOT / "experiments" / "frontier"
SETS, CELLS, TRAIN = (load_module(FOLDER, name) for name in ("sets", "cells", "train"))
PAGE, VERDICT = (load_module(FOLDER, name) for name in ("page", "verdict"))


def cell(*accuracy: float, cost: float = 0.1) -> object:
    return CELLS.Cell(accuracy, [cost] * len(accuracy), [])


def test_tuning_cannot_see_the_test_rows() -> None:
    parts = [check_arrays(torch.full((4, 2), float(part)), torch.arange(4) % 2) for part in range(3)]
    splits = Splits("clouds", *parts, 2, 0.0, 1.0)
    for table in load_tables(FOLDER):
        if table.name.endswith("-tuning") and table.recipes[0].data == "digits":
            (change,) = table.recipes[0].changes
            assert change.apply(splits).test is splits.valid


def test_every_method_stands_at_every_budget_with_the_same_tuning() -> None:
    tables = {table.name: table.recipes[0] for table in load_tables(FOLDER)}
    for name in SETS.SETS:
        models = tables[name].models
        assert {f"{m} {b:g}" for m in SETS.AT_A_BUDGET for b in SETS.BUDGETS} | {"dense", "dropout"} == set(models)
        trials = [model.split(" ")[0] for model in tables[f"{name}-tuning"].models]
        assert {method: trials.count(method) for method in ("rigl", "gate+rigl", "pruned", "small")} == {
            "rigl": 4, "gate+rigl": 4, "pruned": 4, "small": 2,
        }  # fmt: skip


def test_a_tenth_of_a_point_is_a_tie_and_a_dearer_control_is_no_rival() -> None:
    cells = {
        ("gate+rigl", 0.1): cell(0.9, 0.9), ("rigl", 0.1): cell(0.9009, 0.9009), ("small", 0.1): cell(0.95, 0.83),
        ("pruned", 0.1): cell(0.95, 0.95), ("switch", 0.1): cell(0.99, 0.99, cost=0.2),
    }  # fmt: skip
    assert {duel.control: duel.outcome for duel in CELLS.duels("clouds", cells)} == {
        "rigl": "tied", "small": "won", "pruned": "lost",
    }  # fmt: skip


def test_a_lost_cell_says_how_sure_it_is() -> None:
    def runs(*accuracy: float, first: int = 0) -> object:
        found = [{"seed": first + i, "quality": {"accuracy": x}} for i, x in enumerate(accuracy)]
        return CELLS.Cell(accuracy, [0.1] * len(accuracy), found)

    cells = {
        ("gate+rigl", 0.1): runs(0.80, 0.90, 0.85), ("rigl", 0.1): runs(0.81, 0.911, 0.86),
        ("set", 0.1): runs(0.90, 0.86, 0.90), ("small", 0.1): runs(0.99, 0.99, first=7),
    }  # fmt: skip
    found = {duel.control: duel for duel in CELLS.duels("clouds", cells)}
    assert found["rigl"].points == pytest.approx(-1.0333, abs=1e-3)
    assert found["rigl"].half == pytest.approx(4.3027 * 0.057735 / 3**0.5, rel=1e-3), "seeds are paired"
    assert found["small"].half is None, "no seed in common"
    text = VERDICT.lost("Lost", list(found.values()))
    assert "clouds at 0.1 to rigl, -1.03 ± 0.14" in text
    assert "to small, -14.00;" in text or "to small, -14.00." in text
    assert "one is beyond it" in text
    assert VERDICT.lost("Lost", []) == ""


def test_the_search_has_a_table_for_each_budget_of_what_was_tried_there(monkeypatch: pytest.MonkeyPatch) -> None:
    search = load_module(FOLDER, "search")
    tried = {
        "digits": {("as it is", 0.05): cell(0.9), ("lighter gate", 0.05): cell(0.91), ("pruned", 0.05): cell(0.88)},
        "mnist": {("as it is", 0.05): cell(0.5), ("lighter gate", 0.05): cell(0.52)},
    }
    found = {name: tried.get(name, {}) for name in search.TRIED_ON}
    monkeypatch.setattr(search, "read_cells", lambda _f, _r, name, quick: (found[name.removesuffix("-ablation")], {}))
    text = search.search(FOLDER, Path(), quick=False)
    assert "| at 0.05 | why | digits | mnist | mean |" in text
    assert "| lighter gate | it takes 2 % and leaves 95 % open | +1.00 | +2.00 | +1.50 |" in text
    assert "| pruned | control | -2.00 | – | -2.00 |" in text
    assert "as it is" not in text
    assert "at 0.1" not in text.split("default.")[1]


def test_controls_without_a_time_are_named() -> None:
    timed = {(method, 0.05): {} for method in SETS.CONTROLS}
    some = {key: row for key, row in timed.items() if key[0] not in ("gate", "switch")}
    text = VERDICT.untimed({"digits": timed, "mnist": some, "speech": {}})
    assert text == "\nNot timed, for want of the trained models: mnist gate, switch.\n"
    assert VERDICT.untimed({"digits": timed}) == ""


def on_the_clock(**ratios: tuple[float, ...]) -> dict[tuple[str, float], object]:
    """Latencies of methods at the first so many budgets, the same at both batch sizes."""
    return {
        (method.replace("_", " ").replace("ours", SETS.OURS_IN_CELLS), budget): {
            "batches": {str(batch): {"ratio": ratio} for batch in CELLS.BATCHES}
        }
        for method, row in ratios.items()
        for budget, ratio in zip(SETS.BUDGETS, row, strict=False)
    }


def test_controls_are_judged_by_what_they_reach_at_the_same_latency() -> None:
    # Ours takes 0.2 of the time at budget 0.05. Halfway in the logarithm between 0.1 and 0.4 rigl reaches 85, and the
    # models of pruned that are slower than its best are never worse; small is slower still, static was never timed.
    accuracy = {
        SETS.OURS_IN_CELLS: (0.7, 0.8505), "rigl": (0.8, 0.9), "pruned": (0.9, 0.6, 0.95), "small": (0.5, 0.9, 0.95),
        "set": (0.6, 0.84), "static": (0.9, 0.9),
    }  # fmt: skip
    cells = {
        (method, budget): cell(x, x)
        for method, row in accuracy.items()
        for budget, x in zip(SETS.BUDGETS, row, strict=False)
    }
    clock = on_the_clock(
        ours=(0.1, 0.2), rigl=(0.1, 0.4), pruned=(0.1, 0.2, 0.4), small=(0.3, 0.4, 0.5), set=(0.05, 0.1)
    )
    for batch in CELLS.BATCHES:
        found = {duel.control: duel for duel in CELLS.clock_duels("clouds", cells, clock, batch)}
        assert {duel.budget for duel in found.values()} == {0.05}
        assert {control: (duel.outcome, duel.faster) for control, duel in found.items()} == {
            "rigl": ("tied", False), "pruned": ("lost", False), "small": ("won", True), "set": ("won", False),
        }  # fmt: skip
        assert found["rigl"].points == pytest.approx(0.05)
        assert found["pruned"].points == pytest.approx(-4.95), "its slower model is worse than its faster one"
        assert found["set"].points == pytest.approx(1.05), "beyond its slowest model it has no better one"
        assert found["small"].points == pytest.approx(35.05), "told, but it does not decide"
    assert CELLS.clock_duels("clouds", cells, clock, 1, SETS.OURS) == []
    cells[SETS.OURS_IN_CELLS, 0.02] = cell(0.9)
    (pruned,) = (duel for duel in CELLS.clock_duels("clouds", cells, clock, 1) if duel.control == "pruned")
    assert pruned.points == pytest.approx(0.0), "ours may take its faster model, too"


def test_the_slower_never_does_worse() -> None:
    points = [(0.1, 80.0), (0.2, 70.0), (0.4, 90.0)]
    assert CELLS.accuracy_at(points, 0.2) == pytest.approx(80.0)
    assert CELLS.accuracy_at(points, 0.2 * 2**0.5) == pytest.approx(85.0)
    assert CELLS.accuracy_at(points, 3.0) == pytest.approx(90.0)


def test_the_area_is_the_mean_over_the_logarithm_of_the_budget() -> None:
    flat = {("rigl", budget): cell(0.9, 0.8) for budget in SETS.BUDGETS}
    found = CELLS.area(flat, "rigl")
    assert found.mean == pytest.approx(85.0)
    assert CELLS.area(dict(list(flat.items())[1:]), "rigl") is None


def test_a_gate_without_a_choice_loses_nothing_with_its_mean_mask() -> None:
    torch.manual_seed(0)
    part = check_arrays(torch.randn(60, 6), torch.arange(60) % 3)
    splits = Splits("clouds", part, part, part, 3, 0.0, 1.0)
    model = dg.nn.GatedMLP((6, 8, 3), dg.GateConfig(block=2))
    (gate,) = dg.named_gates(model).values()
    with torch.no_grad():
        gate.net.weight.zero_()  # type: ignore[operator]
        gate.bias.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
    before = dg.measure(model, part).quality["accuracy"]
    assert TRAIN.accuracy_of_mean_mask(model, splits) == before


def test_the_front_page_shows_one_budget_beside_dense_and_the_clock_beside_accuracy() -> None:
    cells = {("small", 0.1): cell(0.5), ("gate+rigl", 0.1): cell(0.6, 0.7), ("dense", None): cell(0.75)}
    cells |= {("gate+rigl 16x1", 0.1): cell(0.6)}
    fought = CELLS.duels("clouds", cells)
    table = VERDICT.overview({"clouds": cells}, fought)
    assert "| clouds | 50.00 | – | – | – | – | 65.00 | 75.00 |" in table
    assert table.endswith("against all 8 controls: 1 cells won, 0 tied, 0 lost.")
    timed = {("gate+rigl 16x1", 0.1): {"batches": {"1": {"ratio": 0.25}, "256": {"ratio": 0.125}}}}
    assert "| clouds | 0.1 | 0.250 | 0.125 | -15.00 |" in VERDICT.on_the_clock({"clouds": cells}, {"clouds": timed})


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["frontier", *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER), run_name="__main__")
    assert left.value.code == 0


def test_a_few_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    methods, budgets = ("dense", "small", "gate", "gate+rigl", "gate+rigl 16x1"), ("0.02", "0.1")
    run(monkeypatch, "digits", "--quick", "--jobs", "1", "--only", *methods, "--budgets", *budgets)
    assert "gate+rigl against the controls" in capsys.readouterr().out
    where = FOLDER.parents[1] / "runs" / "frontier-quick"
    runs = [run for run in read_runs(where / "results" / "digits.jsonl") if run["model"].startswith("gate")]
    assert any("unreachable" in run for run in runs), "2 % of digits do not pay for a gate"
    assert any("accuracy_of_mean_mask" in run for run in runs)
    assert "digits, 64-128-10" in (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")

    times = where / "results" / "clock" / "digits.json"
    times.unlink(missing_ok=True)
    threads = torch.get_num_threads()
    try:
        for before in (0, 7):  # the second time all that can be timed is found
            asked = ("--seconds", "0.02", "--repeats", "1", "--only", *methods, "--budgets", *budgets)
            run(monkeypatch, "clock", "digits", "--quick", *asked)
            assert f"{before} timed before, 1 skipped" in capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)
    written = json.loads(times.read_text())
    assert written["meta"]["machine"]["threads"] == 1
    assert [(row["method"], row["budget"]) for row in written["runs"]] == [
        ("small", 0.02), ("small", 0.1), ("gate", 0.1),
        ("gate+rigl", 0.02), ("gate+rigl", 0.1), ("gate+rigl 16x1", 0.02), ("gate+rigl 16x1", 0.1),
    ]  # fmt: skip
    for row in written["runs"]:
        assert 0.0 < row["accuracy"] <= 1.0
        assert row["relative"] == pytest.approx(row["budget"], abs=0.02)
        assert list(row["batches"]) == ["1", "256"]
        for timed in row["batches"].values():
            assert timed["ratio"] == pytest.approx(timed["ours_us"] / timed["dense_us"])
            assert len(timed["choices"]) == 2
    page = (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")
    assert "On the clock: " in page
    for batch in ("1", "256"):
        assert f"figures/clock-digits-{batch}.svg" in page
        drawn = (where / "docs" / "figures" / f"clock-digits-{batch}.svg").read_text(encoding="utf-8")
        assert f"latency at batch {batch}, relative to dense" in drawn


def test_data_that_nobody_tuned_on_have_a_section_where_there_are_results(tmp_path: Path) -> None:
    assert PAGE.elsewhere(CELLS.read_transfer(tmp_path)) == ""
    accuracy = {"dense": (0.5, 0.5), "small": (0.4, 0.42), "rigl": (0.5, 0.501), "gate+rigl": (0.49, 0.51)}
    for budget, more in ((0.05, 0.0), (0.1, 0.02)):
        runs = [
            {"model": m, "seed": seed, "quality": {"accuracy": x + more * (m == "rigl")}, "macs": {"relative": budget}}
            for m, xs in accuracy.items()
            for seed, x in enumerate(xs)
        ]
        (tmp_path / f"transfer-{budget:g}.json").write_text(json.dumps({"meta": {}, "runs": runs}), encoding="utf-8")
    told = PAGE.elsewhere(CELLS.read_transfer(tmp_path))
    assert "2 cells won, 1 tied, 1 lost" in told
    assert "| gate+rigl | 50.00 ± 1.41 | 50.00 ± 1.41 | – |" in told
    assert "Lost: characters at 0.1 to rigl, -2.05 ± " in told


def test_the_page_the_figures_and_the_front_page_are_made_from_the_committed_results(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    PAGE.write(tmp_path, ROOT / "experiments" / "results" / "frontier")
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 2 + 7 + 2 * 7
    for path in made:
        assert path.read_bytes() == (ROOT / path.relative_to(tmp_path)).read_bytes(), path.name
