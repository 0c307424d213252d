"""What a reader must know to believe the results: how settings were searched, how often test rows were seen, and which
gates collapsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.comparisons import Entries
from experiments.frontier.datasets import DATASETS, TUNED_AGAIN
from experiments.frontier.looks import read_looks
from experiments.frontier.methods import (
    ANY_SPEED,
    AT_A_BUDGET,
    BUDGETS,
    DENSE,
    GATE_AT,
    NO_GATES,
    OURS,
    OURS_IN_TILES,
    TUNED,
    TUNED_AT,
)
from experiments.frontier.oracle import ORACLE
from experiments.frontier.search import FACTOR, Trial, Tried, best_of, is_at_edge
from experiments.frontier.tables import GATES, OTHERS, Chosen
from experiments.frontier.tuning import Tuning

FLOOR = 0.02  # of the blocks of a layer: fewer are open in a layer that is dead
GATED = ("gate", "static", OURS, OURS_IN_TILES, OURS + ANY_SPEED, OURS_IN_TILES + ANY_SPEED)


def search(experiment: Experiment) -> str:
    """How many settings were tried with each method, what was picked, and which picks are at an edge."""
    tuning = Tuning(experiment, list(DATASETS), wanted=lambda *_: True, seeds=None, device="cpu")
    tried = {(name, method): tuning.tried(name, method) for name in DATASETS for method in TUNED}
    names = [name for name in DATASETS if any(tried[name, method] for method in TUNED)]
    if not names:
        return "## The search\n\nNo runs yet.\n"
    seeds = ", ".join(f"{name} {len(DATASETS[name].tuning_seeds)}" for name in names)
    more_seeds = ", ".join(f"{name} {len(DATASETS[name].tuning_seeds_of(TUNED_AGAIN[0]))}" for name in names)
    again = ", ".join(f"`{method}`" for method in TUNED_AGAIN)
    rows = [[method, *(_pick(tried[name, method]) for name in names)] for method in TUNED]
    edges = [
        f"{method} on {name}"
        for (name, method), found in tried.items()
        if (best := best_of(found)) and is_at_edge(found, best)
    ]
    refused = [f"{method} on {name}" for name in names for method, c in tuning.chosen[name].items() if c is None]
    return (
        "## The search\n\n"
        f"By validation rows at a budget of {TUNED_AT:g}, those of the fourth round ({again}) at "
        f"{' and '.join(f'{b:g}' for b in GATE_AT)}; protocol.md beside the code has the rule. In each cell: "
        "settings tried, then the one picked: learning rate relative to that of the dataset, dropout, and `other` "
        f"where the alternative won, `other 2` where the second did. Tuning seeds for each setting: {seeds}; of "
        f"the fourth round: {more_seeds}.\n\n"
        f"{markdown(['method', *names], rows)}\n\n"
        f"Picked at the edge of the learning rates tried: {', '.join(edges) or 'none'}. Refused, because no setting "
        f"beats the most frequent class or meets the budget: {', '.join(refused) or 'none'}.\n"
    )


def _pick(tried: Tried) -> str:
    best: Trial | None = best_of(tried)
    if best is None:
        return f"{len(tried)}: {ABSENT}" if tried else ABSENT
    return f"{len(tried)}: {FACTOR**best.step:g}, {best.dropout:g}{OTHERS[best.other]}"


def kinds(chosen: Chosen) -> str:
    """Which gates validation rows chose."""
    names = [name for name in DATASETS if chosen.get(name, {}).get(GATES)]
    if not names:
        return ""
    rows = []
    for method in (OURS, OURS_IN_TILES):
        for budget in BUDGETS:
            found = [chosen[name][GATES].get(method, {}).get(f"{budget:g}", ABSENT) for name in names]
            rows.append([f"{method} {budget:g}", *found])
    every = [kind for row in rows for kind in row[1:] if kind != ABSENT]
    return (
        f"Which gates validation rows chose for ours; in {every.count(NO_GATES)} of {len(every)} cells none:\n\n"
        f"{markdown(['ours', *names], rows)}\n"
    )


def looks(found: Mapping[str, Entries], oracles: Mapping[str, Entries]) -> str:
    """How often the test rows were looked at, the runs of this page included."""
    before = read_looks()
    rows = []
    for method in (DENSE, *AT_A_BUDGET, ORACLE):
        now = {
            name: any(key[0] == method for key in (*found.get(name, ()), *oracles.get(name, ()))) for name in DATASETS
        }
        rows.append([method, *(str(before[name].get(method, 0) + now[name]) for name in DATASETS)])
    return (
        "## How often test rows were looked at\n\nSets of results that were recorded on the test rows of a dataset, "
        "earlier frontiers and the runs on this page included. The first ones decided what the older recipe was "
        f"searched for, so no test set is untouched.\n\n{markdown(['method', *DATASETS], rows, numbers=True)}\n"
    )


def collapses(found: Mapping[str, Entries]) -> str:
    """Runs in which a gated layer is dead on test rows, and whether training had said so."""
    rows, undiagnosed = [], []
    for name, entries in found.items():
        for method in GATED:
            runs = gated_runs(entries, method)
            if not runs:
                continue
            dead = [run for run in runs if is_dead(run)]
            silent = [run for run in dead if not run["collapses"]]
            reported = sum(bool(run["collapses"]) for run in runs)
            undiagnosed += [f"{name} {run['model']} seed {run['seed']}" for run in silent]
            if dead or reported:
                rows.append([name, method, *map(str, (len(runs), reported, len(dead), len(silent)))])
    columns = ["dataset", "method", "runs with gates", "collapse reported", "dead on test rows", "dead, not reported"]
    table = f"{markdown(columns, rows, numbers=True)}\n\n" if rows else ""
    return (
        f"## Collapse\n\nA layer is dead where fewer than {FLOOR:.0%} of its blocks are open on test rows. Methods and "
        f"datasets without any are left out.\n\n{table}Dead without having been reported: {len(undiagnosed)}"
        + (f" ({', '.join(undiagnosed)})" if undiagnosed else "")
        + ".\n"
    )


def gated_runs(entries: Entries, method: str) -> list[Run]:
    """The runs of a method at all budgets that have gates on units."""
    return [
        run for budget in BUDGETS for run in (entries[method, budget].runs if (method, budget) in entries else ())
        if run["gates"]
    ]  # fmt: skip


def is_dead(run: Mapping[str, Any]) -> bool:
    """Whether a gated layer is closed on test rows."""
    return any(gate["open"] < FLOOR for gate in run["gates"])
