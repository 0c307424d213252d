"""Claims of the paper, and the runs that decide them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dynamicgate.lab.report.run_metrics import METRICS
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.results import Runs
from dynamicgate.lab.statistics import Interval, Paired, interval, paired

Outcome = Literal["holds", "does not hold", "inconclusive", "cannot be tested"]


class Verdict(NamedTuple):
    """Whether a claim holds, and the number that decides it."""

    outcome: Outcome
    number: str


def verdict(holds: bool, number: str) -> Verdict:
    """It holds, or it does not."""
    return Verdict("holds" if holds else "does not hold", number)


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, and a function from the evidence to a verdict."""

    section: str
    text: str
    decide: Callable[[Evidence], Verdict]


class MissingRunError(LookupError):
    """A run that a number needs has not been made."""


class Evidence:
    """The runs of all tables, by section, kind of recipe, model and metric."""

    def __init__(
        self,
        runs: Runs,
        data: Mapping[str, Mapping[str, Any]],
        frontier: Mapping[str, Mapping[tuple[str, float | None], Sequence[Run]]] | None = None,
        source: str = "ours",
        streams: Mapping[str, Mapping[str, Sequence[Run]]] | None = None,
    ) -> None:
        """From what `read_results` returns. frontier: by dataset, the runs of each method at each budget there. source:
        what to call the runs. streams: by table of experiments.continual, the runs of each model in which nothing is
        kept."""
        self.runs, self.data, self.frontier, self.source = runs, data, frontier or {}, source
        self.streams = streams or {}

    def of(self, section: str, kind: str, model: str) -> list[Run]:
        """The runs of a model, one a seed."""
        found = self.runs.get((f"{section}/{kind}", model))
        if not found:
            raise MissingRunError(f"{section} {kind} {model}")
        return found

    def values(self, section: str, kind: str, model: str, metric: str) -> list[float]:
        """A metric of each run: a name in `METRICS`, or a path such as "routing.entropy"."""
        return [value_of(run, metric) for run in self.of(section, kind, model)]

    def interval(self, section: str, kind: str, model: str, metric: str) -> Interval:
        """Its mean with a 95 % interval."""
        return interval(self.values(section, kind, model, metric))

    def mean(self, section: str, kind: str, model: str, metric: str) -> float:
        """Its mean."""
        return self.interval(section, kind, model, metric).mean

    def paired(self, section: str, kind: str, ours: str, theirs: str, metric: str = "accuracy") -> Paired:
        """The difference of two models over the seeds that both have."""
        apart = self.differences(section, kind, ours, theirs, metric)
        return paired(apart, [0.0] * len(apart))

    def differences(self, section: str, kind: str, ours: str, theirs: str, metric: str = "accuracy") -> list[float]:
        """The difference of two models for each seed that both have."""
        by_seed = [{run["seed"]: run for run in self.of(section, kind, model)} for model in (ours, theirs)]
        seeds = [seed for seed in by_seed[0] if seed in by_seed[1]]
        if not seeds:
            raise MissingRunError(f"{section} {kind}: no seed that both {ours} and {theirs} have")
        return [value_of(by_seed[0][seed], metric) - value_of(by_seed[1][seed], metric) for seed in seeds]


def value_of(run: Run, metric: str) -> float:
    """A metric of a run: a name in `METRICS`, or a path such as "routing.entropy"."""
    found: Any = METRICS[metric](run) if metric in METRICS else run
    for key in () if metric in METRICS else metric.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        raise MissingRunError(metric)
    return float(found)
