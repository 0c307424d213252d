"""Tuning by validation rows: the search of every method, then the kind of gates of ours, as a growing list of jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dynamicgate.lab.methods.samples import unpack_rows
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.results import FINISHED, find_runs
from experiments.frontier.datasets import DATASETS, method_of
from experiments.frontier.methods import BUDGETS, KINDS, NO_GATES, TUNED, WITHOUT_GATES, alternatives, close_to_best
from experiments.frontier.search import Score, Trial, Tried, all_trials, best_of, least_left, most_left, next_trials
from experiments.frontier.tables import GATES, choice_at, kind_name, tables_of_dataset, trial_names

Jobs = dict[str, dict[str, Job]]
"""By model and hash: one job for each seed."""
Wanted = Callable[[str, float | None], bool]
"""Whether a method at a budget is asked for; None is the budget of tuning."""


class Tuning:
    """What tuning knows of some datasets, and what it wants to know next.

    seeds: only the first few; nothing is chosen with fewer than a table has, except in a quick run.
    """

    def __init__(
        self, experiment: Experiment, names: Sequence[str], *, wanted: Wanted, seeds: int | None, device: str
    ) -> None:
        """Reads the stored runs."""
        self.experiment, self.names, self.wanted = experiment, list(names), wanted
        self.device, self.asked = device, set[str]()
        self.count = seeds or (1 if experiment.quick else None)
        self.runs: dict[str, Run] = {}
        self.chosen: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        self.searched = {name: self.jobs_of(name, "tuning") for name in self.names}
        for name in self.names:
            self.read(self.searched[name])
            self.choose(name)
            self.read(self.jobs_of(name, GATES))  # with the settings that were chosen just now
            self.choose(name)

    def read(self, jobs: Jobs) -> None:
        """Read the stored runs of these jobs."""
        found, _ = find_runs(self.experiment.results, [job for of_model in jobs.values() for job in of_model.values()])
        self.runs |= {job.hash: run for job, run in found}

    def jobs_of(self, name: str, kind: str) -> Jobs:
        """The jobs of a table of a dataset, with the settings chosen so far and the seeds asked for."""
        table = next(t for t in tables_of_dataset(name, self.chosen[name]) if t.name == f"{name}-{kind}")
        found: Jobs = {}
        for job in self.experiment.jobs([table], seeds=self.count, device=self.device):
            found.setdefault(job.model, {})[job.hash] = job
        return found

    def all_jobs(self) -> list[Job]:
        """What can be run now."""
        return [job for name in self.names for job in self.next_jobs(name)]

    def after(self, finished: Job) -> list[Job]:
        """What can be run now that this job has finished."""
        self.runs[finished.hash] = json.loads((finished.folder / FINISHED).read_text(encoding="utf-8"))
        name = finished.table.name.rpartition("-")[0]
        self.choose(name)
        return self.next_jobs(name)

    def next_jobs(self, name: str) -> list[Job]:
        """What can be run now on a dataset and was not asked for before."""
        found: dict[str, Job] = {}
        for method in TUNED:
            if self.wanted(method, None):
                for trial in next_trials(self.tried(name, method), *rules(name, method)):
                    for one in trial_names(method, trial):
                        found |= self.searched[name][one]
        gates = self.jobs_of(name, GATES)
        for method, without in WITHOUT_GATES.items():
            if self.chosen[name].get(without):
                found |= self.kinds(gates, method)
        new = {key: job for key, job in found.items() if key not in self.runs and key not in self.asked}
        self.asked |= new.keys()
        return list(new.values())

    def kinds(self, gates: Jobs, method: str) -> dict[str, Job]:
        """The jobs of ours with all kinds of gates that are asked for."""
        return {
            key: job
            for model, jobs in gates.items()
            for key, job in jobs.items()
            if model.startswith(f"{method}, ") and self.wanted(method, method_of(model)[1])
        }

    def tried(self, name: str, method: str) -> Tried:
        """The settings of a method that all seeds have run, at all budgets at which it is tuned."""
        found: dict[Trial, Score | None] = {}
        for trial in all_trials(alternatives(method)):
            runs = [self.runs_of(self.searched[name], one) for one in trial_names(method, trial)]
            if all(runs):
                found[trial] = score_of([run for of_budget in runs for run in of_budget])
        return found

    def runs_of(self, jobs: Jobs, model: str) -> list[Run]:
        """The runs of all seeds of a model; none where one is missing."""
        keys = list(jobs.get(model, ()))
        return [self.runs[key] for key in keys] if all(key in self.runs for key in keys) else []

    def choose(self, name: str) -> None:
        """Choose what the runs so far decide."""
        most = max(len(DATASETS[name].tuning_seeds_of(method)) for method in TUNED)
        if not (self.experiment.quick or self.count is None or self.count >= most):
            return
        tried = {method: self.tried(name, method) for method in TUNED}
        ended = [m for m in TUNED if tried[m] and not next_trials(tried[m], *rules(name, m))]
        self.chosen[name] = {method: self.choice(name, method, tried[method]) for method in ended}
        if kinds := self.choose_kinds(name):
            self.chosen[name][GATES] = kinds

    def choice(self, name: str, method: str, tried: Tried) -> dict[str, Any] | None:
        """The best setting of a method that beats always answering the most frequent class; None without one."""
        runs = self.runs_of(self.searched[name], next(iter(trial_names(method, next(iter(tried))))))
        least = fmean(run["meta"]["data"]["majority"] for run in runs)
        best = best_of({trial: score for trial, score in tried.items() if score and score.accuracy > least})
        return choice_at(DATASETS[name], best)._asdict() if best else None

    def choose_kinds(self, name: str) -> dict[str, dict[str, str]]:
        """The kinds of gates of ours, by method and budget."""
        gates, found = self.jobs_of(name, GATES), dict[str, dict[str, str]]()
        for method in WITHOUT_GATES:
            for budget in BUDGETS:
                runs = {kind: self.runs_of(gates, kind_name(method, kind, budget)) for kind in KINDS}
                if all(runs.values()):
                    found.setdefault(method, {})[f"{budget:g}"] = best_kind(runs)
        return found

    def left(self, name: str) -> tuple[int, int]:
        """How many runs are left of a dataset, at least and at most."""
        gates = self.jobs_of(name, GATES)
        kinds = [key for method in WITHOUT_GATES for key in self.kinds(gates, method) if key not in self.runs]
        least = most = len(kinds)
        for method in TUNED:
            if self.wanted(method, None):
                tried = self.tried(name, method)
                seeds = sum(len(self.searched[name][one]) for one in trial_names(method, Trial(0)))
                least += seeds * least_left(tried, *rules(name, method))
                most += seeds * most_left(tried, *rules(name, method))
        return least, most


def score_of(runs: Sequence[Run]) -> Score | None:
    """Mean accuracy and loss over seeds; None where the budget cannot be met."""
    if any("unreachable" in run for run in runs):
        return None
    return Score(fmean(run["quality"]["accuracy"] for run in runs), -fmean(run["valid"]["loss"] for run in runs))


def best_kind(runs: Mapping[str, Sequence[Run]]) -> str:
    """The most accurate kind of gates, if it exceeds none by more than the standard error over validation rows."""
    if any("unreachable" in run for run in runs[NO_GATES]):
        return NO_GATES
    plain = right_rows(runs[NO_GATES])
    gains = {
        kind: right_rows(rows) - plain
        for kind, rows in runs.items()
        if kind != NO_GATES and all(has_gates(run) for run in rows)
    }
    if not gains:
        return NO_GATES
    best = max(gains, key=lambda kind: float(gains[kind].mean()))
    error = float(gains[best].std()) / math.sqrt(len(plain))
    return best if float(gains[best].mean()) > error else NO_GATES


def has_gates(run: Run) -> bool:
    """Whether a run met the budget with gates or stages; gates that it does not pay for are left out of the model."""
    return "unreachable" not in run and bool(run["gates"] or run.get("stages"))


def right_rows(runs: Sequence[Run]) -> Tensor:
    """Which validation rows are right, one seed behind the other."""
    return torch.cat([unpack_rows(run["right"], run["meta"]["data"]["test"]).double() for run in runs])


def rules(name: str, method: str) -> tuple[int, float]:
    """How many alternatives a search tries, and how near to the best a rate at the edge leads it on."""
    return alternatives(method), close_to_best(method, DATASETS[name])
