"""Continual learning: every kind of run from end to end at a quick size, grids that choose, and the pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.continual import grids, page
from experiments.continual.page import pages, title
from experiments.continual.settings import BYTES, replay_of
from experiments.continual.shown import rows_of, usual_hidden
from experiments.continual.tables import CONTINUAL, TUNED
from experiments.continual.tuning import DECAYING, best_ages

from dynamicgate.continual import Replay
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.results import collect, write_finished
from tests.experiments.continual_runs import as_cells, quick


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ("e0-permuted-5", "gate, short"), ("e0-permuted-5", "gate+rigl, short"), ("e1", "keep"), ("e1", "joint"),
        ("e1", "xdg"), ("e2", "separate"), ("e2", "static"), ("e2", "joint"), ("e3", "keep"), ("e5", "fresh"),
        ("e5", "side by side"), ("e5-decay", "side by side"),
        ("e6-wide", "width 2,000"), ("e7", "keep"), ("e8", "readout 1000"), ("e8", "er 200"),
        ("e8", "readout 500, windows"), ("e8", "readout 500, learned"), ("e9", "keep + reuse"),
        ("e9-cifar10", "lwf"), ("e10", "nearest mean"), ("e10", "keep"), ("e11", "jumping, gates 0.1, every 10"),
        ("e11-consolidation", "jumping, every 30, kept after 1"), ("e8", "er, 32 MB"), ("e3", "horizon 1000"),
        ("tuning-horizon", "horizon 1000"), ("tuning-classes", "er, 2 MB, lr 0.001"),
        ("tuning-learners", "keep, lr 0.005"), ("tuning-plasticity", "side by side"),
        ("tuning-keep", "joint, labels smoothed, lr 0.001"),
    ],
)  # fmt: skip
def test_a_run_of_every_kind(table: str, model: str, tmp_path: Path, digits: Splits) -> None:
    job = quick(table, model, tmp_path, **({"window": 3} if "windows" in model else {}))
    found = job.table.train(job, as_cells(digits) if table == "e10" else digits)
    assert found["model"] == model
    assert 0.0 <= found["quality"]["accuracy"] <= 1.0
    assert "relative" in found["macs"]


def test_stored_runs_relate_to_the_network_that_others_train() -> None:
    for table in CONTINUAL.tables:
        if usual_hidden(table, quick=False) is not None:
            macs = [run["macs"] for runs in rows_of(CONTINUAL, table.name).values() for run in runs]
            assert len({one["dense"] for one in macs}) <= 1
            assert all(one["relative"] == one["executed"] / one["dense"] for one in macs)


def test_a_grid_chooses_where_it_is_stored_whole_and_says_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(CONTINUAL.table("tuning-learners"), seeds=(1000,))
    grid = {"naive": grids.points((1e-5, 1e-4, 1e-3)), "si": grids.points((1e-3, 3e-3), (1.0, 10.0, 100.0))}
    reached = {"naive, lr 1e-05": 0.5, "naive, lr 0.0001": 0.7, "naive, lr 0.001": 0.6, "si 1": 0.8, "si 10": 0.9}
    runs = {(m, 1000): {"hash": Job(table, m, 1000).hash, "quality": {"acc": acc}} for m, acc in reached.items()}
    monkeypatch.setattr(grids, "stored_runs", lambda name: runs)
    assert grids.chosen(table, grid) == {"naive": (None, 1e-4)}, "that of SI is not whole"
    assert grids.settings_by(table, grid) == {"naive": {"lr": 1e-4}}
    assert not grids.at_edge((None, 1e-4), grid["naive"])
    assert grids.at_edge((None, 1e-3), grid["naive"])
    assert grids.at_edge((10.0, 1e-3), grid["si"]), "inside by strength, at the edge by rate"
    runs["naive, lr 0.001", 1000]["quality"]["acc"] = 0.7015
    assert grids.chosen(table, grid) == {"naive": (None, 1e-4)}, "as good but for chance, and inside"
    runs["naive, lr 0.001", 1000]["quality"]["acc"] = 0.71
    assert grids.chosen(table, grid) == {"naive": (None, 1e-3)}
    runs["naive, lr 0.001", 1000]["hash"] = "stale"
    assert grids.chosen(table, grid) == {}


def test_no_stored_choice_lies_at_an_edge() -> None:
    for table, tried in TUNED.values():
        for row, point in grids.chosen(table, tried).items():
            assert not grids.at_edge(point, tried[row]), f"{table.name}: try more values of {row} beyond {point}"


def test_no_stored_choice_of_weights_held_small_lies_at_an_edge() -> None:
    for method, chosen in best_ages("tuning-plasticity-decay").items():
        for option in set(chosen) & {"l2", "shrink"}:
            tried = DECAYING[method][option]
            assert min(tried) < chosen[option] < max(tried), f"try more values of {option} beyond {chosen[option]}"


def test_replay_at_equal_bytes_keeps_no_more_than_a_readout() -> None:
    rows = replay_of(BYTES["er, 2 MB"], 784)["learner"]["rows"]
    learner = Replay(torch.nn.Linear(784, 10), rows=rows)
    x = torch.randint(256, (rows, 784), dtype=torch.uint8).float() / 255
    learner.loss(x, torch.arange(rows) % 10)
    assert BYTES["er, 2 MB"] - 785 < learner.bytes <= BYTES["er, 2 MB"]


def test_the_page_says_what_runs_say(tmp_path: Path, digits: Splits) -> None:
    experiment = replace(CONTINUAL, root=tmp_path, quick=True)
    data = {"name": "mnist", "train": 1, "valid": 1, "test": 1, "features": 64, "classes": 10}
    for table, model in (("e1", "naive"), ("e5", "side by side"), ("e7", "keep"), ("e0-permuted-5", "dense, short"),
                         ("e0-permuted-5", "gate, short"), ("e11", "jumping, gates 0.1, every 10"),
                         ("e11-consolidation", "jumping, every 30, kept after 1"), ("e1", "keep"), ("e1", "xdg"),
                         ("e10-shared-genes", "naive")):  # fmt: skip
        job = replace(next(j for j in experiment.jobs([experiment.table(table)]) if j.model == model), device="cpu")
        rows = as_cells(digits) if table.startswith("e10") else digits
        write_finished(job, {"data": data, "created": "now"}, job.table.train(job, rows))
        collect(experiment.results, [job])
    found = pages(experiment)
    sections = found["docs/continual-results.md"]
    assert not isinstance(sections, str)
    text = "".join(sections.values())
    for part in ("E1: Ten permutations", "naive", "set + recycling", "by age", "forgets more than dense", "every 10",
                 "kept after 1", "balanced, PBMC 68k"):  # fmt: skip
        assert part in text
    usual = 64 * 32 + 32 * 32 + 32 * 10
    for model in ("naive", "keep", "xdg"):
        run = rows_of(experiment, "e1")[model][0]
        assert run["macs"]["dense"] == usual, "one network for all methods"
        assert run["macs"]["relative"] == run["macs"]["executed"] / usual
    summary = found["docs/continual.md"]
    assert not isinstance(summary, str)
    assert "with room for 2" in summary["summary"]
    assert all(str(found[f"docs/figures/continual-{name}.svg"]).startswith("<svg") for name in ("age", "capacity"))
    named = [name for names in page.SECTIONS.values() for name in names]
    assert sorted(named) == sorted(table.name for table in CONTINUAL.tables), "every table has a place on the page"
    assert all(title(name) for name in named)
