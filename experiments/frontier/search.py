"""The search for the recipe as tables, one for each budget: what was tried, why, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.ablation import AS_IT_IS, BUDGETS, CONTROLS, TRIED_ON, VARIANTS
from experiments.frontier.comparisons import Entries, read_entries

TITLE = """\
## The search

One thing was changed at a time, with three seeds and half as many epochs. The numbers are points of validation accuracy
relative to where this part of the search began: gates that take 5 % of the budget and leave 85 % open at every budget,
layers as wide as asked for, a dense start, and erk densities. The mean is over the datasets on which a change was
tried. The outcome: below a budget of 0.1 nothing beat that start on all datasets; from 0.1 on lighter gates on wider
layers did, and became the default. Being sparse sooner, or starting with half of the connections, gains on PBMC 3k,
whose dense network overfits, and loses more on Speech: how long to stay dense depends on the data, and no default is
right for both.
"""


def search(experiment: Experiment) -> str:
    """Everything that was tried."""
    return search_tables({name: read_entries(experiment, f"{name}-ablation")[0] for name in TRIED_ON})


def search_tables(found: Mapping[str, Entries]) -> str:
    """A table for each budget, from the entries of each dataset."""
    tables = [table for budget in BUDGETS if (table := table_at(budget, found))]
    return "\n".join([TITLE, *tables]) if tables else ""


def table_at(budget: float, found: Mapping[str, Entries]) -> str:
    """The table of one budget; empty where nothing was tried."""
    names = [name for name, entries in found.items() if (AS_IT_IS, budget) in entries]
    tried = [*((what, why) for what, (why, _) in VARIANTS.items()), *((control, "control") for control in CONTROLS)]
    rows = []
    for what, why in tried:
        if what == AS_IT_IS or not any((what, budget) in found[name] for name in names):
            continue
        gains = {
            name: found[name][what, budget].mean - found[name][AS_IT_IS, budget].mean
            for name in names
            if (what, budget) in found[name]
        }
        shown = (f"{gains[name]:+.2f}" if name in gains else ABSENT for name in names)
        rows.append([what, why, *shown, f"{fmean(gains.values()):+.2f}"])
    return f"{markdown([f'at {budget:g}', 'why', *names, 'mean'], rows)}\n" if rows else ""
