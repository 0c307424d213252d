"""The search of the frontier: one rule for all methods, by validation rows alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.frontier.datasets import DATASETS, TUNED_AGAIN
from experiments.frontier.experiment import FRONTIER
from experiments.frontier.search import Score, Trial, best_of, is_at_edge, least_left, most_left, next_trials
from experiments.frontier.tuning import Tuning, best_kind

from dynamicgate.lab.methods.samples import pack_rows
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.results import FINISHED

Accuracy = Callable[[Trial], float]


def search(accuracy: Accuracy, alternatives: int = 1) -> dict[Trial, Score | None]:
    tried: dict[Trial, Score | None] = {}
    while trials := next_trials(tried, alternatives):
        assert least_left(tried, alternatives) <= most_left(tried, alternatives)
        tried |= {trial: Score(accuracy(trial), 0.0) for trial in trials}
    assert most_left(tried, alternatives) == 0
    return tried


def test_a_best_rate_inside_the_grid_takes_five_runs() -> None:
    tried = search(lambda trial: 0.9 - 0.1 * abs(trial.step) + 0.01 * (trial.dropout > 0) + 0.02 * trial.other)
    assert list(tried) == [Trial(-1), Trial(0), Trial(1), Trial(0, 0.2), Trial(0, 0.2, other=1)]
    assert best_of(tried) == Trial(0, 0.2, other=1)
    assert not is_at_edge(tried, Trial(0, 0.2))


def test_the_grid_grows_outwards_until_the_best_rate_is_inside() -> None:
    tried = search(lambda trial: 0.9 - 0.1 * abs(trial.step - 2) - 0.01 * (trial.dropout > 0))
    assert sorted({trial.step for trial in tried}) == [-1, 0, 1, 2, 3]
    assert best_of(tried) == Trial(2)
    assert Trial(2, other=1) in tried, "the alternative is tried with the better dropout"
    assert len(tried) == 7


def test_the_grid_grows_at_most_three_times_and_then_the_pick_is_at_an_edge() -> None:
    tried = search(lambda trial: -float(trial.step))
    assert sorted({trial.step for trial in tried}) == [-4, -3, -2, -1, 0, 1]
    assert len(tried) == 8
    best = best_of(tried)
    assert best is not None
    assert is_at_edge(tried, best)


def test_a_rate_at_the_edge_that_is_close_to_the_best_leads_on() -> None:
    rates = {-1: 0.90, 0: 0.97, 1: 0.9695, 2: 0.98, 3: 0.96}
    tried: dict[Trial, Score | None] = {Trial(step): Score(rates[step], 0.0) for step in (-1, 0, 1)}
    assert next_trials(tried) == [Trial(0, 0.2)]
    assert next_trials(tried, close=0.001) == [Trial(2)]
    tried |= {Trial(step): Score(rates[step], 0.0) for step in (2, 3)}
    assert next_trials(tried, close=0.001) == [Trial(2, 0.2)]


def test_two_alternatives_are_tried_at_the_same_rate_and_dropout() -> None:
    tried = search(lambda trial: 0.9 - 0.1 * abs(trial.step) + 0.01 * trial.other, alternatives=2)
    assert list(tried)[-2:] == [Trial(0, other=1), Trial(0, other=2)]
    assert best_of(tried) == Trial(0, other=2)
    assert len(tried) == 6


def test_what_the_fourth_round_tunes_again_has_more_seeds_where_validation_rows_are_few() -> None:
    for name, dataset in DATASETS.items():
        table = FRONTIER.table(f"{name}-tuning")
        found: dict[str, set[int]] = {}
        for job in FRONTIER.jobs([table]):
            found.setdefault(job.model.split(",")[0], set()).add(job.seed)
        few = len(dataset.tuning_seeds) > 1
        assert {len(found[method]) for method in TUNED_AGAIN} == {8 if few else 1}
        assert len(found["rigl"]) == len(dataset.tuning_seeds)


def test_a_tie_is_decided_by_the_loss() -> None:
    assert best_of({Trial(0): Score(0.9, -0.5), Trial(1): Score(0.9, -0.4), Trial(-1): None}) == Trial(1)


def test_a_method_that_cannot_meet_the_budget_has_no_further_search() -> None:
    tried: dict[Trial, Score | None] = {Trial(step): None for step in (-1, 0, 1)}
    assert next_trials(tried) == []
    assert best_of(tried) is None


def result(right: list[bool], **more: Any) -> dict[str, Any]:
    meta = {"data": {"test": len(right), "majority": 0.3}}
    accuracy = sum(right) / len(right)
    return {
        "right": pack_rows(torch.tensor(right)), "meta": meta, "gates": [{}], "quality": {"accuracy": accuracy},
        "valid": {"loss": 1.0 - accuracy}, **more,
    }  # fmt: skip


def rows(wrong: int, of: int = 400) -> list[bool]:
    return [False] * wrong + [True] * (of - wrong)


def test_gates_are_chosen_only_where_they_gain_more_than_the_standard_error() -> None:
    none, much = (result(rows(wrong)) for wrong in (40, 20))
    little = result(rows(39)[::-1])  # 40 rows gained, 39 lost
    others = {"two stages": [none], "three stages": [none]}
    assert best_kind({"no gates": [none], "units": [much], **others}) == "units"
    assert best_kind({"no gates": [none], "units": [little], **others}) == "no gates", "one row is noise"
    assert best_kind({"no gates": [much], "units": [none], **others}) == "no gates"
    impossible = {"unreachable": "too small a budget"}
    assert best_kind({"no gates": [impossible], "units": [impossible], **others}) == "no gates"
    left_out = {**much, "gates": []}
    assert best_kind({"no gates": [none], "units": [left_out], **others}) == "no gates", "it has no gates"


class Trained:
    """Stands in for training: every job gets a made-up result."""

    def __init__(self, accuracy: Callable[[Job], int]) -> None:
        self.accuracy, self.jobs = accuracy, list[Job]()

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)
        job.folder.mkdir(parents=True)
        found = {**result(rows(self.accuracy(job))), "hash": job.hash, "stages": {}}
        (job.folder / FINISHED).write_text(json.dumps(found), encoding="utf-8")


def tune(train: Trained, root: Path) -> Tuning:
    tuning = Tuning(replace(FRONTIER, root=root), ["mnist"], wanted=lambda *_: True, seeds=None, device="cpu")
    waiting = tuning.all_jobs()
    while waiting:
        train(waiting[0])
        waiting = [*tuning.after(waiting[0]), *waiting[1:]]
    return tuning


def test_the_search_of_all_methods_and_the_choice_of_gates_follow_one_another(tmp_path: Path) -> None:
    def wrong(job: Job) -> int:
        if job.model.startswith("static"):
            return 300  # worse than the most frequent class
        if "stages" in job.model:
            return 5 if "two stages 0.1" in job.model else 60
        return 40 if job.settings["lr"] == 2 * DATASETS["mnist"].lr else 50

    train = Trained(wrong)
    chosen = tune(train, tmp_path).chosen["mnist"]
    assert chosen["static"] is None
    assert chosen["rigl"] == {"lr": 2 * DATASETS["mnist"].lr, "dropout": 0.0, "other": 0}
    assert chosen["gates"]["ours"] == {"0.05": "no gates", "0.1": "two stages", "0.2": "no gates"}
    gates = [job for job in train.jobs if job.table.name == "mnist-gates"]
    assert len(gates) == 24
    assert {job.settings["lr"] for job in gates} == {2 * DATASETS["mnist"].lr}
    assert len({job.hash for job in train.jobs}) == len(train.jobs), "nothing is trained twice"


def test_nothing_is_chosen_with_fewer_seeds_than_asked_for(tmp_path: Path) -> None:
    tuning = Tuning(replace(FRONTIER, root=tmp_path), ["speech"], wanted=lambda *_: True, seeds=1, device="cpu")
    train = Trained(lambda _: 40)
    for job in tuning.all_jobs():
        train(job)
        tuning.after(job)
    assert tuning.chosen == {"speech": {}}


@pytest.mark.parametrize(("only", "count"), [("rigl", 3), ("switch", 3), ("ours", 0)])
def test_one_method_can_be_searched_alone(only: str, count: int, tmp_path: Path) -> None:
    tuning = Tuning(
        replace(FRONTIER, root=tmp_path), ["mnist"], wanted=lambda method, _: method == only, seeds=None, device="cpu"
    )
    assert len(tuning.all_jobs()) == count
