"""Runs that are made again because the code behind their method has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.frontier.again import base_of, forget
from experiments.frontier.experiment import FRONTIER

from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner.results import FINISHED, table_path


def test_the_method_of_a_model_is_found_in_both_kinds_of_tables() -> None:
    models = {"gate 0.1": "gate", "pruned 16x1 0.2": "pruned 16x1", "dense": "dense"}
    models |= {"pruned 16x1, rate 1, dropout 0": "pruned 16x1", "static, rate 2, dropout 0, budget 0.2": "static"}
    assert {model: base_of(model) for model in models} == models


@pytest.mark.parametrize("table", ["digits", "digits-tuning"])
def test_the_runs_of_a_method_and_no_others_are_forgotten(table: str, tmp_path: Path) -> None:
    experiment = replace(FRONTIER, root=tmp_path)
    jobs = [job for job in experiment.jobs([experiment.table(table)]) if base_of(job.model) in ("static", "small")]
    jobs = [job for job in jobs if job.seed in (0, 1, 100)]
    runs = [{"model": j.model, "seed": j.seed, "hash": j.hash, "meta": {"created": ""}} for j in jobs]
    write_runs(table_path(experiment.results, table), runs)
    for job in jobs:
        job.folder.mkdir(parents=True)
        (job.folder / FINISHED).write_text("{}", encoding="utf-8")
    gone = forget(experiment, [table], ["static"])
    expected = {(job.model, job.seed) for job in jobs if base_of(job.model) == "static"}
    assert {(job.model, job.seed) for job in gone} == expected
    left = {(run["model"], run["seed"]) for run in read_runs(table_path(experiment.results, table))}
    assert left == {(job.model, job.seed) for job in jobs} - expected
    assert all(job.folder.exists() == ((job.model, job.seed) in left) for job in jobs)
    assert forget(experiment, [table], ["static"]) == []
