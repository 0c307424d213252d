"""The frontier: its tables, its statistics and pages, and a few of its runs from end to end."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.frontier import __main__ as command
from experiments.frontier import clock, looks, record, summary
from experiments.frontier.comparisons import (
    Entries,
    Entry,
    against,
    against_best,
    area,
    ask_the_clock,
    best_control,
    entries_of,
    mean_difference,
    read_entries,
)
from experiments.frontier.datasets import DATASETS, TUNED_AGAIN, method_of, table_of
from experiments.frontier.experiment import FRONTIER
from experiments.frontier.latency import DENSE_EAGER, DENSE_PLAN, DENSE_TORCH, refused, rival_of, twins
from experiments.frontier.methods import (
    ANY_SPEED,
    AT_A_BUDGET,
    BUDGETS,
    CONTROLS,
    OURS,
    SPARSE,
    TUNED,
    UNGATED,
    Choice,
    asked,
    asked_of_ours,
)
from experiments.frontier.tables import final_models, tables_of
from experiments.frontier.train import accuracy_of_mean_mask, train

import dynamicgate as dg
from dynamicgate.data import check_arrays
from dynamicgate.gating.folding import fold_
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.samples import unpack_rows
from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.training import settings_of


def entry(*accuracy: float, cost: float = 0.1, **more: Any) -> Entry:
    runs = [
        {"seed": seed, "model": "x", "quality": {"accuracy": a}, "macs": {"relative": cost}, "gates": [], **more}
        for seed, a in enumerate(accuracy)
    ]
    return Entry(runs)


def test_tuning_cannot_see_the_test_rows() -> None:
    parts = [check_arrays(torch.full((4, 2), float(part)), torch.arange(4) % 2) for part in range(3)]
    splits = Splits("clouds", *parts, 2, 0.0, 1.0)
    for kind in ("digits-tuning", "digits-gates"):
        (change,) = FRONTIER.table(kind).changes
        assert change.apply(splits).test is splits.valid
    for name in DATASETS:
        for kind in ("tuning", "gates"):
            table = FRONTIER.table(f"{name}-{kind}")
            assert table.changes[-1].name == "without_test"
            assert min(table.all_seeds()) >= 100
            assert not set(table.all_seeds()) & set(FRONTIER.table(name).all_seeds())


def test_every_method_has_its_search_and_is_run_at_every_budget() -> None:
    (table, tuning, _), *_ = (tables_of({})[i : i + 3] for i in range(0, 3 * len(DATASETS), 3))
    assert {f"{m} {b:g}" for m in AT_A_BUDGET for b in BUDGETS} | {"dense"} == set(table.models)
    trials = [model.split(",")[0] for model in tuning.models]
    assert all(trials.count(method) == (2 * 54 if method in TUNED_AGAIN else 36) for method in TUNED)
    assert set(trials) == set(TUNED)


@pytest.mark.parametrize("method", SPARSE)
def test_controls_with_sparse_layers_have_what_the_recipe_has(method: str) -> None:
    dataset = DATASETS["mnist"]
    found = asked(method, 0.2, dataset, Choice(0.01, 0.2, other=0))
    ours = asked_of_ours(OURS, "units", 0.2, dataset, Choice(0.01, 0.2, other=0))
    shared = ("distribution", "widen", "every", "lr", "dropout", "epochs", "batch")
    assert {key: found[key] for key in shared} == {key: ours[key] for key in shared}
    assert found["distribution"] == "erk"
    plain = asked(method, 0.2, dataset, Choice(0.01, 0.2, other=1))
    assert (plain["distribution"], plain["widen"]) == ("uniform", 1.0)


@pytest.mark.parametrize("method", SPARSE)
def test_masks_are_updated_fifty_times_or_more(method: str) -> None:
    splits = load_dataset("digits", seed=0)
    job = next(job for job in FRONTIER.jobs([FRONTIER.table("digits")]) if job.model == f"{method} 0.1")
    settings = settings_of(job, splits)
    steps = settings.epochs * -(-len(splits.train) // settings.batch)  # type: ignore[operator]
    first = 0.2 if method.startswith("pruned") else 0.0
    assert (0.75 - first) * steps / settings.every >= 50  # type: ignore[operator]


def test_ours_is_left_out_where_it_has_no_gates_and_a_refused_method_everywhere() -> None:
    chosen = {"gates": {OURS: {"0.05": "no gates", "0.1": "two stages", "0.2": "units"}}, "switch": None}
    models = final_models(DATASETS["mnist"], chosen)
    assert f"{OURS} 0.05" not in models
    assert models[f"{OURS} 0.1"]["model"] == "staged"
    assert models[f"{OURS} 0.1"]["stages"] == "two"
    assert models[f"{OURS} 0.2"]["model"] == "gate+rigl"
    assert not any(model.startswith("switch") for model in models)


def test_a_name_says_method_and_budget() -> None:
    assert method_of("ours 16x1 0.05") == ("ours 16x1", 0.05)
    assert method_of("dense") == ("dense", None)


def test_a_cell_is_won_or_lost_only_by_a_corrected_test() -> None:
    noisy, steady = (0.80, 0.95, 0.81, 0.93), (0.9000, 0.9001, 0.9002, 0.9001)
    found = {
        "clear": {(OURS, 0.1): entry(*steady), (UNGATED, 0.1): entry(0.5, 0.5002, 0.5, 0.5001)},
        "noise": {(OURS, 0.1): entry(*noisy), (UNGATED, 0.1): entry(0.9, 0.9, 0.9, 0.9)},
        "worse": {(OURS, 0.1): entry(0.5, 0.5002, 0.5, 0.5001), (UNGATED, 0.1): entry(*steady)},
    }
    cells = {cell.name: cell for cell in against(found, OURS, UNGATED)}
    assert {name: cell.outcome for name, cell in cells.items()} == {"clear": "won", "noise": "tied", "worse": "lost"}
    assert cells["clear"].p_holm == pytest.approx(21 * cells["clear"].p, rel=0.2), "missing cells count"
    text = summary.lost("gates", list(cells.values()))
    assert text.startswith("Lost (gates): worse at 0.1 to rigl from dense -40.00 ± ")
    assert "Lower, but tied: noise at 0.1" in text


def test_the_same_model_is_tied_with_itself_and_said_to_be_the_same() -> None:
    same = entry(0.9, 0.91)
    (cell,) = against({"clouds": {(OURS, 0.1): same, (UNGATED, 0.1): same}}, OURS, UNGATED)
    assert (cell.same, cell.outcome, cell.p_holm) == (True, "tied", 1.0)
    assert "same model" in summary.family([cell], lambda _: "no gates", "gates")


def test_ours_without_gates_has_the_runs_of_the_recipe_without_them(tmp_path: Path) -> None:
    chosen = {"digits": {"gates": {OURS: {"0.05": "units", "0.1": "no gates", "0.2": "units"}}}}
    experiment = replace(FRONTIER, tables=tables_of(chosen), root=tmp_path)
    sizes = {"name": "x", "train": 3, "valid": 1, "test": 1, "features": 5, "classes": 3}
    runs = [
        {**run, "model": job.model, "seed": job.seed, "hash": job.hash, "meta": {"created": "", "data": sizes}}
        for job in experiment.jobs([experiment.table("digits")])
        if job.model.startswith(UNGATED) and "16x1" not in job.model
        for run in entry(0.9 + 0.001 * job.seed, cost=job.settings["budget"]).runs
    ]
    write_runs(experiment.results / "digits.jsonl", runs)
    entries, data = read_entries(experiment, "digits", chosen)
    assert data == sizes
    assert (OURS, 0.05) not in entries
    assert entries[OURS, 0.1].runs is entries[UNGATED, 0.1].runs
    (cell,) = against({"digits": entries}, OURS, UNGATED)
    assert (cell.same, cell.n, cell.budget) == (True, 10, 0.1)


def test_gates_that_the_clock_refuses_are_replaced_by_none_and_kept_under_another_name() -> None:
    entries: Entries = {(OURS, 0.1): entry(0.9, 0.93), (OURS, 0.2): entry(0.9, 0.9), (UNGATED, 0.1): entry(0.8, 0.81)}
    slow, fast = timed(ours=2.2, twin=2.0), timed(ours=2.05, twin=2.0)
    assert (refused(slow), refused(fast), refused({})) == ({(OURS, 0.1)}, set(), set())
    asked = ask_the_clock(entries, refused(slow))
    assert asked[OURS, 0.1] is entries[UNGATED, 0.1]
    assert asked[OURS + ANY_SPEED, 0.1] is entries[OURS, 0.1]
    assert asked[OURS, 0.2] is entries[OURS, 0.2], "its twin was not run"
    found = {"clouds": asked}
    assert [cell.same for cell in against(found, OURS, UNGATED)] == [True]
    text = summary.primary(found, lambda *_: "units")
    assert "so that the clock refused them, in points of accuracy: clouds at 0.1 +11.00 ± " in text
    assert ask_the_clock(entries, refused(fast)) == entries


def test_the_best_control_meets_the_budget_and_is_named() -> None:
    entries: Entries = {
        (OURS, 0.1): entry(0.9, 0.92), ("rigl", 0.1): entry(0.95, 0.93), ("small", 0.1): entry(0.5, 0.5),
        ("switch", 0.1): entry(0.99, 0.99, cost=0.2), (UNGATED, 0.1): entry(0.99, 0.99),
    }  # fmt: skip
    assert best_control(entries, 0.1) == "rigl", "switch misses the budget, and the recipe is no control of itself"
    (cell,) = against_best({"clouds": entries})
    assert (cell.control, cell.difference) == ("rigl", pytest.approx(-3.0))


def test_the_mean_over_cells_has_an_interval_over_seeds() -> None:
    found = {
        "a": {(OURS, 0.1): entry(0.90, 0.92), ("rigl", 0.1): entry(0.90, 0.90)},
        "b": {(OURS, 0.1): entry(0.80, 0.80), ("rigl", 0.1): entry(0.80, 0.80)},
    }
    mean, half = mean_difference(found, against(found, OURS, "rigl"))
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(12.706 * 0.5 * 2**0.5 / 2**0.5, rel=1e-3), "t(1) times half of 1.414 / sqrt 2"
    single = {"a": {(OURS, 0.1): entry(0.9), ("rigl", 0.1): entry(0.8)}}
    assert mean_difference(single, against(single, OURS, "rigl")) == (pytest.approx(10.0), None)


def test_the_area_is_the_mean_over_the_logarithm_of_the_budget() -> None:
    flat: Entries = {("rigl", budget): entry(0.9, 0.8) for budget in BUDGETS}
    found = area(flat, "rigl")
    assert found is not None
    assert found.mean == pytest.approx(85.0)
    assert found.n == 2
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
    fold_(gate, gate.bias.detach().clone())
    assert accuracy_of_mean_mask(model, splits) == before, "a folded gate chooses nothing by the input"


@pytest.mark.slow
def test_a_gate_that_is_not_folded_is_also_measured_with_its_mean_mask(tmp_path: Path) -> None:
    dataset = DATASETS["digits"]
    models = {"gate 0.2": asked("gate", 0.2, dataset, Choice(dataset.lr, 0.0, other=2))}
    experiment = Experiment("frontier", (table_of("digits", dataset, models, blind=False),), tmp_path, quick=True)
    (job,) = experiment.jobs(seeds=1, device="cpu")
    run = train(job, load_splits(job, None))
    assert {gate["kind"] for gate in run["gates"]} == {"dynamic"}
    assert 0.0 <= run["accuracy_of_mean_mask"] <= 1.0


def test_the_readme_shows_dense_best_control_and_ours_with_and_without_gates() -> None:
    entries: Entries = {
        ("small", 0.1): entry(0.5), (OURS, 0.1): entry(0.6, 0.7), (UNGATED, 0.1): entry(0.6), ("dense", None): entry(1),
    }  # fmt: skip
    text = summary.overview({"digits": entries})
    assert "| digits | 100.00 | 50.00 (small) | 60.00 | 65.00 ± 63.53 |" in text
    assert "| mnist | – | – | – | – |" in text
    assert "Of 21 cells 20 are still to be run." in text
    assert summary.overview({}).endswith("The runs are still to be made.")


def test_a_dead_layer_that_was_not_reported_is_named() -> None:
    dead = {"gates": [{"open": 0.5}, {"open": 0.001}]}
    found = {"clouds": {("gate", 0.1): entry(0.5, 0.5, **dead, collapses=[]), ("gate", 0.2): entry(0.5, collapses=[])}}
    assert "| clouds | gate | 2 | 0 | 2 | 2 |" in record.collapses(found)
    assert "reported: 2 (clouds x seed 0, clouds x seed 1)." in record.collapses(found)
    known = {"clouds": {("gate", 0.1): entry(0.5, **dead, collapses=["closed"])}}
    assert "reported: 0." in record.collapses(known)


def test_running_again_with_other_settings_is_another_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "looks.json"
    path.write_text(json.dumps({"digits": {"rigl": 2}}), encoding="utf-8")
    monkeypatch.setattr(looks, "LOOKS", path)
    jobs = [job for job in FRONTIER.jobs([FRONTIER.table("digits")]) if job.model in ("rigl 0.1", "pruned 16x1 0.2")]
    looks.count_another_look(jobs)
    assert looks.read_looks() == {"digits": {"rigl": 3, "pruned 16x1": 1}}, "one for each method, not for each seed"


def test_looks_are_counted_for_every_dataset_and_method() -> None:
    found = looks.read_looks()
    assert set(found) == set(DATASETS)
    assert all(set(counts) == {"dense", *AT_A_BUDGET} for counts in found.values())


def timed(**times: float) -> dict[str, Any]:
    names = {
        "eager": DENSE_EAGER,
        "torch": DENSE_TORCH,
        "plan": DENSE_PLAN,
        "ours": "ours 0.1",
        "twin": f"{UNGATED} 0.1",
    }
    return {names[key]: {"batches": {"1": {"mean_us": t}, "256": {"mean_us": t}}} for key, t in times.items()}


def test_gated_models_are_timed_against_their_twins_and_dense_in_its_faster_compiled_form() -> None:
    found = timed(eager=1.0, torch=5.0, plan=4.0, ours=2.2, twin=2.0)
    assert rival_of(found, 1) == (DENSE_PLAN, 4.0), "eager is no rival, however fast"
    assert [(row.batch, row.ratio) for row in twins({"clouds": found})] == [(1, pytest.approx(1.1)), (256, 1.1)]
    assert rival_of(timed(eager=1.0), 1) is None
    text = clock.latency_summary({"clouds": found, "rain": timed(ours=2.0, twin=2.0)})
    assert "take 1.05 times as long at batch 1 and 1.05 times as long at batch 256 as their twins" in text
    assert "Slower by more than 3%: 2 of 4 (clouds ours 0.1 at batch 1, 1.10; clouds ours 0.1 at batch 256" in text
    shown = clock.latency_section(found, lambda *_: True)
    assert "so the rival is dense, our plan" in shown
    assert "| ours | – | 0.550 / 0.550 | – |" in shown
    shown = clock.latency_section(found, lambda *_: False)
    assert "| ours | – | 0.500 / 0.500 | – |" in shown, "without gates it is its twin"
    assert "| ours, any speed | – | 0.550 / 0.550 | – |" in shown


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["frontier", *words])
    command.main()


def test_a_few_runs_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "FRONTIER", replace(FRONTIER, root=tmp_path))
    methods = ("dense", "small", "gate", UNGATED, OURS)
    asked = {"dense", "small 0.2", "gate 0.2", f"{UNGATED} 0.2", f"{OURS} 0.2"}
    models = asked & set(FRONTIER.table("digits").models)  # ours is no model of its own where it has no gates
    assert len(models) >= 4
    words = ("digits", "--quick", "--jobs", "1", "--only", *methods, "--budgets", "0.2")
    run(monkeypatch, *words, "--dry-run")
    assert f"in all: {len(models)} of {len(models)} runs left" in capsys.readouterr().out
    run(monkeypatch, *words)
    assert "wrote runs/frontier-quick/docs/why-it-works.md" in capsys.readouterr().out
    where = tmp_path / "runs" / "frontier-quick"
    runs = {one["model"]: one for one in read_runs(where / "results" / "digits.jsonl")}
    assert set(runs) == models
    gate = runs["gate 0.2"]
    assert ("accuracy_of_mean_mask" in gate) == any(one["kind"] == "dynamic" for one in gate["gates"])
    for one in runs.values():
        right = unpack_rows(one["right"], one["meta"]["data"]["test"])
        assert float(right.double().mean()) == pytest.approx(one["quality"]["accuracy"])
    text = (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")
    assert "digits, 64-128-10" in text
    assert "Not run yet: mnist, " in text
    run(monkeypatch, *words, "--dry-run")
    assert f"in all: 0 of {len(models)} runs left" in capsys.readouterr().out
    entries = entries_of(runs.values())
    assert entries["gate", 0.2].meets(0.2)


def test_test_rows_are_not_looked_at_before_tuning_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "FRONTIER", replace(FRONTIER, root=tmp_path))
    monkeypatch.setattr(command, "read_chosen", dict)
    with pytest.raises(ValueError, match=r"tuning has not ended on digits \(dense, small, .*run `python -m"):
        run(monkeypatch, "digits", "--jobs", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mnst",), "unknown datasets mnst: there are digits, mnist"),
        (("latency", "mnst"), "unknown datasets mnst"),
        (("digits", "--only", "rigle"), "unknown methods rigle: there are dense, small"),
        (("digits", "--budgets", "0.3"), "unknown budgets 0.3: there are 0.05, 0.1, 0.2"),
        (("digits", "--again"), "--again: name methods with --only"),
    ],
)
def test_what_there_is_none_of_is_a_mistake(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(monkeypatch, *words)


def test_controls_are_all_methods_that_are_not_the_recipe() -> None:
    assert set(AT_A_BUDGET) - set(CONTROLS) == {m for m in AT_A_BUDGET if m.startswith((UNGATED, OURS)) or "16x1" in m}
