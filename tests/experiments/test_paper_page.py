"""The page of the paper: every claim can be decided, and what was not run is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments.paper.claims import CLAIMS, better, falls, speech_for_less
from experiments.paper.evidence import Claim, Evidence
from experiments.paper.experiment import PAPER, SECTIONS
from experiments.paper.overall import DATA, against, not_speed
from experiments.paper.page import decided, pages

from dynamicgate.lab.result_file import write_runs
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.results import read_results, table_path

PAGE = "docs/paper.md"


def made_up(job: Job, accuracy: float) -> dict[str, Any]:
    """A run with everything that a page may ask for."""
    gate = {"name": "layers.1", "kind": "static", "open": 0.5, "varying": 0.25, "blocks": 8, "block": 1}
    run = {
        "model": job.model,
        "seed": job.seed,
        "quality": {"accuracy": accuracy, "macro_f1": accuracy},
        "macs": {"dense": 1000.0, "executed": 250.0, "gate": 50.0, "relative": 0.25, "relative_zero_skip": 0.1,
                 "structure_saved": 0.6, "gate_saved": 0.2},
        "proxies": {f"{name}_{of}": 0.5 for name in ("compute_proxy", "relmac", "relmac_fuse") for of in "pg"},
        "params": 1234,
        "seconds": 1.0,
        "seconds_relative": 1.5,
        "gates": [gate],
        "claimed": 0.2,
        "mask_updates": 0,
        "hard_open": {"inputs": 1.0, "units": 0.0},
        "accuracy_by_epoch": [0.5, 0.9],
        "active_by_epoch": [0.5, 0.4, 0.3],
        "dropped_by_epoch": [9, 5, 0],
        "steps": 3400,
        "forgotten": 0.1,
        "routing": {"active": 0.5, "corr_hardness": 0.1, "corr_reference": 0.1, "entropy": 2.0},
    }  # fmt: skip
    sizes = {"name": "x", "train": 100, "valid": 10, "test": 20, "features": 5, "classes": 3, "majority": 0.4}
    meta = {"created": "", "commit": "abc", "machine": {"gpu": None, "arch": "arm"}, "versions": {"torch": "2"}}
    return {**run, "hash": job.hash, "meta": {**meta, "data": sizes}}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The paper with made-up results of all runs."""
    experiment = replace(PAPER, root=tmp_path_factory.mktemp("paper"))
    runs: dict[str, list[dict[str, Any]]] = {}
    for job in experiment.jobs():
        accuracy = 0.9 + 0.001 * (job.seed % 7) + 0.01 * (job.model == "gate")
        runs.setdefault(job.table.name, []).append(made_up(job, accuracy))
    for name, made in runs.items():
        write_runs(table_path(experiment.results, name), made)
    return experiment


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:40])
def test_every_claim_is_decided_once_its_runs_are_there_and_not_before(claim: Claim, everything: Experiment) -> None:
    verdict = decided(claim, Evidence(*read_results(everything.results, everything.jobs())))
    assert verdict is not None
    assert verdict.outcome in ("holds", "does not hold", "inconclusive", "cannot be tested")
    assert verdict.number
    before = decided(claim, Evidence({}, {}))
    assert before is None or before == verdict, "only what no run can change is decided without runs"


def test_what_falls_after_the_second_epoch_waits_for_a_third() -> None:
    run = {"aux_by_epoch": [1.0]}
    claim = Claim("5.5", "the penalty falls", falls("switch top-2", "aux_by_epoch", "penalty"))
    assert decided(claim, Evidence({("moe/published", "switch top-2"): [run]}, {})) is None
    run["aux_by_epoch"] += [0.8, 0.5]
    assert decided(claim, Evidence({("moe/published", "switch top-2"): [run]}, {})).outcome == "holds"


def test_speech_commands_is_decided_with_all_its_steps_and_not_with_a_fraction_of_them(everything: Experiment) -> None:
    runs, data = read_results(everything.results, everything.jobs())
    assert speech_for_less(Evidence(runs, data)).outcome in ("holds", "does not hold")
    runs["speech/published", "gate"][0]["steps"] = 80
    assert speech_for_less(Evidence(runs, data)).outcome == "cannot be tested"


def test_there_are_at_least_25_claims_and_the_page_has_every_table(everything: Experiment) -> None:
    assert len(CLAIMS) >= 25
    text = pages(everything)[PAGE]
    assert text == pages(everything)[PAGE], "byte for byte"
    assert "not run yet" not in text.lower()
    for section in SECTIONS.values():
        rows = f"(a subset: 110 of {section.training_rows:,} training rows)"
        assert f"\n## {section.number} {section.title} {rows}" in text
        for recipe in section.recipes:
            for remark in recipe.remarks:
                assert f"- {remark}\n" in text


def test_a_table_has_means_intervals_and_paired_tests(everything: Experiment) -> None:
    text = pages(everything)[PAGE]
    section = text[text.index("### 5.1 ours") :]
    header = section[section.index("| model |") :].splitlines()[0]
    assert [word.strip() for word in header.split("|")[1:7]] == [
        "model", "seeds", "accuracy, %", "minus dense, points (p)", "minus rigl, points (p)", "macro-F1, %",
    ]  # fmt: skip
    row = next(line for line in section.splitlines() if line.startswith("| gate |"))
    assert row.startswith("| gate | 5 | 91.20 ± 0.16 [91.00, 91.40] | +1.00 (<0.001) | +1.00 (<0.001) | 91.20 ± 0.16 |")
    assert "| 1,234 | 0.250 | 0.050 | 0.200 | 0.600 | 0.100 | 0.500 | 0.500 | 0.500 | 1.50 |" in row


def test_the_page_says_which_runs_are_missing(tmp_path: Path) -> None:
    text = pages(replace(PAPER, root=tmp_path))[PAGE]
    assert "Not run yet: `python -m experiments.paper mnist/ours`" in text
    assert "wait for their runs" in text


def one_seed_each(*accuracy: float, **more: Any) -> list[dict[str, Any]]:
    return [{"seed": seed, "quality": {"accuracy": a}, **more} for seed, a in enumerate(accuracy)]


@pytest.mark.parametrize(
    ("dense", "outcome"),
    [
        ((0.44, 0.40, 0.43), "inconclusive"),  # one point ± five: neither no difference nor the printed one is excluded
        ((0.43, 0.431, 0.429), "holds"),
        ((0.412, 0.411, 0.413), "does not hold"),
        ((0.360, 0.361, 0.362), "does not hold"),
    ],
)
def test_a_difference_that_few_seeds_cannot_tell_from_none_is_inconclusive(
    dense: tuple[float, ...], outcome: str
) -> None:
    runs = {
        ("cifar10/published", "dense"): one_seed_each(*dense),
        ("cifar10/published", "dropout"): one_seed_each(0.4121, 0.4124, 0.4119),
    }
    assert better("cifar10", "dense", "dropout")(Evidence(runs, {})).outcome == outcome


def test_gates_are_judged_by_the_frontier_once_it_has_all_datasets() -> None:
    def entries(gate: float) -> dict[tuple[str, float | None], list[dict[str, Any]]]:
        return {("gate", 0.2): one_seed_each(gate), ("small", 0.2): one_seed_each(0.5)}

    ours = {(f"{t}/ours", m): one_seed_each(a) for t in DATA for m, a in (("gate", 0.4), ("small", 0.5))}
    some = {table: entries(0.6) for table in DATA if table != "speech"}
    paper = against("small")(Evidence(ours, {}, some))
    assert paper.outcome == "does not hold"
    assert paper.number.startswith("ours, gate − small in points: MNIST −10.00")
    frontier = against("small")(Evidence(ours, {}, {**some, "speech": entries(0.6)}))
    assert frontier.outcome == "holds"
    assert frontier.number.startswith("the frontier at 0.2, gate − small in points: MNIST +10.00")


def test_savings_are_not_speed_where_a_step_takes_longer_than_they_say() -> None:
    tables = [table for table in DATA if table != "tiny-imagenet"]
    slow = {(f"{t}/published", "gate"): one_seed_each(0.5, claimed=0.5, seconds_relative=1.2) for t in tables}
    assert not_speed(Evidence(slow, {})).outcome == "holds"
    fast = {(f"{t}/published", "gate"): one_seed_each(0.5, claimed=0.5, seconds_relative=0.4) for t in tables}
    assert not_speed(Evidence(fast, {})).outcome == "does not hold"
