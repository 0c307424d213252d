"""Claims of the paper, and the evidence that decides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.results import Runs
from dynamicgate.lab.runner.statistics import Interval, Paired, interval, paired

Outcome = Literal["holds", "does not hold", "cannot be tested"]


class Verdict(NamedTuple):
    """Whether a claim holds, and the number that decides it."""

    outcome: Outcome
    number: str


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, and a function from the evidence to a verdict."""

    section: str
    text: str
    decide: Callable[[Evidence], Verdict]


class MissingRunError(LookupError):
    """A run that a number needs has not been made."""


METRICS: dict[str, Callable[[Run], float]] = {
    "accuracy": lambda run: run["quality"]["accuracy"],
    "macro_f1": lambda run: run["quality"]["macro_f1"],
    "params": lambda run: run["params"],
    "relative": lambda run: run["macs"]["relative"],
    "gate_cost": lambda run: run["macs"]["gate"] / run["macs"]["dense"],
    "gate_saved": lambda run: run["macs"]["gate_saved"],
    "structure_saved": lambda run: run["macs"]["structure_saved"],
    "zero_skip": lambda run: run["macs"]["relative_zero_skip"],
    "compute_proxy": lambda run: run["proxies"]["compute_proxy_g"],
    "relmac": lambda run: run["proxies"]["relmac_g"],
    "relmac_fuse": lambda run: run["proxies"]["relmac_fuse_g"],
    "seconds": lambda run: run["seconds_relative"],
    "claimed": lambda run: run.get("claimed", run["macs"]["relative"]),
    "varying": lambda run: max((gate["varying"] for gate in run["gates"]), default=0.0),
}


class Evidence:
    """The runs of all tables, asked by table, kind, model and metric."""

    def __init__(self, runs: Runs, data: Mapping[str, Mapping[str, Any]]) -> None:
        """From what `read_results` gives."""
        self.runs, self.data = runs, data

    def of(self, table: str, kind: str, model: str) -> list[Run]:
        """The runs of a model, one a seed."""
        found = self.runs.get((table, kind, model))
        if not found:
            raise MissingRunError(f"{table} {kind} {model}")
        return found

    def values(self, table: str, kind: str, model: str, metric: str) -> list[float]:
        """A metric of each run: a name in `METRICS`, or a path such as "routing.entropy"."""
        read = METRICS.get(metric)
        return [read(run) if read else _at(run, metric) for run in self.of(table, kind, model)]

    def interval(self, table: str, kind: str, model: str, metric: str) -> Interval:
        """Its mean with a 95 % interval."""
        return interval(self.values(table, kind, model, metric))

    def mean(self, table: str, kind: str, model: str, metric: str) -> float:
        """Its mean."""
        return self.interval(table, kind, model, metric).mean

    def paired(self, table: str, kind: str, ours: str, theirs: str, metric: str = "accuracy") -> Paired:
        """The difference of two models over the seeds that both have."""
        by_seed = [{run["seed"]: run for run in self.of(table, kind, model)} for model in (ours, theirs)]
        seeds = [seed for seed in by_seed[0] if seed in by_seed[1]]
        if not seeds:
            raise MissingRunError(f"{table} {kind}: no seed that both {ours} and {theirs} have")
        return paired(*([METRICS[metric](runs[seed]) for seed in seeds] for runs in by_seed))


def _at(run: Run, path: str) -> float:
    found: Any = run
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        raise MissingRunError(path)
    return float(found)
