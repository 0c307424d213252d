"""Runs that are made again although their settings are the same, because the code behind a method has changed."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable

from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.results import table_path
from experiments.frontier.datasets import method_of


def forget(experiment: Experiment, tables: Iterable[str], methods: Collection[str]) -> list[Job]:
    """Take the runs of these methods out of the tables and their folders; returns the jobs that were stored."""
    forgotten = []
    for name in tables:
        path = table_path(experiment.results, name)
        runs = read_runs(path)
        gone = [run for run in runs if base_of(run["model"]) in methods]
        if gone:
            keys = {(run["model"], run["seed"]) for run in gone}
            jobs = experiment.jobs([experiment.table(name)])
            forgotten += [job for job in jobs if (job.model, job.seed) in keys]
            write_runs(path, [run for run in runs if (run["model"], run["seed"]) not in keys])
    for job in forgotten:
        shutil.rmtree(job.folder, ignore_errors=True)  # absent where another machine made the run
    return forgotten


def base_of(model: str) -> str:
    """The method of a model of a search (`gate, rate 1, dropout 0, budget 0.2`) or of a final table (`gate 0.1`)."""
    method, searched, _ = model.partition(", ")
    return method if searched else method_of(model)[0]
