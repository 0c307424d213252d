"""The tables of a dataset: NAME with all methods, NAME-tuning with all settings that a search can come to, NAME-gates
with the kinds of gates of ours, and NAME-oracle with what choosing units by the input gains if the choice is free.

What tuning chose is in chosen.json, from which the others take their settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dynamicgate.lab.runner import Table
from experiments.frontier import oracle
from experiments.frontier.datasets import DATASETS, Dataset, at_budget, table_of
from experiments.frontier.methods import (
    AT_A_BUDGET,
    BUDGETS,
    DENSE,
    GATE_AT,
    KINDS,
    NO_GATES,
    TUNED,
    WITHOUT_GATES,
    Choice,
    alternatives,
    asked,
    asked_of_ours,
    tuning_budgets,
)
from experiments.frontier.search import FACTOR, Trial, all_trials

CHOSEN = Path(__file__).with_name("chosen.json")
GATES = "gates"
OTHERS = ("", ", other", ", other 2")
Chosen = Mapping[str, Mapping[str, Any]]
"""By dataset: for each tuned method its `Choice` (None: it has none), and under "gates" the kinds of ours by budget."""


def read_chosen() -> dict[str, dict[str, Any]]:
    """What tuning chose."""
    return json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}


def tables_of(chosen: Chosen) -> tuple[Table, ...]:
    """All tables, with what was chosen; methods that were not tuned yet have the settings that a search starts from."""
    return tuple(table for name in DATASETS for table in tables_of_dataset(name, chosen.get(name, {})))


def tables_of_dataset(name: str, chosen: Mapping[str, Any]) -> Iterator[Table]:
    """The four tables of a dataset."""
    dataset = DATASETS[name]
    yield table_of(name, dataset, final_models(dataset, chosen), blind=False)
    seeds = {
        trial: dataset.tuning_seeds_of(method) for method, one in all_tuning() for trial in trial_names(method, one)
    }
    yield table_of(f"{name}-tuning", dataset, tuning_models(dataset), blind=True, own_seeds=seeds)
    yield table_of(f"{name}-gates", dataset, gate_models(dataset, chosen), blind=True)
    yield table_of(f"{name}-{oracle.ORACLE}", dataset, oracle_models(dataset, chosen), blind=False, train=oracle.train)


def choice_of(chosen: Mapping[str, Any], method: str, dataset: Dataset) -> Choice | None:
    """What was chosen for a method; None where tuning refused all of its settings."""
    if method not in chosen:
        return Choice(dataset.lr, 0.0, 0)
    return Choice(**chosen[method]) if chosen[method] else None


def kind_of(chosen: Mapping[str, Any], method: str, budget: float) -> str:
    """The kind of gates of ours at a budget; gates on units before that is chosen."""
    return chosen.get(GATES, {}).get(method, {}).get(f"{budget:g}", "units")


def final_models(dataset: Dataset, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Every method at every budget. Ours is left out where it has no gates: it is then the recipe without them."""
    models: dict[str, Any] = {}
    if found := choice_of(chosen, DENSE, dataset):
        models[DENSE] = asked(DENSE, 1.0, dataset, found)
    for method in AT_A_BUDGET:
        for budget in BUDGETS:
            found = choice_of(chosen, WITHOUT_GATES.get(method, method), dataset)
            if found is None:
                continue
            if method not in WITHOUT_GATES:
                models[at_budget(method, budget)] = asked(method, budget, dataset, found)
            elif (kind := kind_of(chosen, method, budget)) != NO_GATES:
                models[at_budget(method, budget)] = asked_of_ours(method, kind, budget, dataset, found)
    return models


def oracle_models(dataset: Dataset, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The oracle, trained as the dense network is, at the budgets at which the gate must not be below `small`."""
    found = choice_of(chosen, DENSE, dataset)
    return {at_budget(oracle.ORACLE, budget): asked(DENSE, budget, dataset, found) for budget in GATE_AT if found}


def trial_names(method: str, trial: Trial) -> dict[str, float]:
    """The names of a setting in a tuning table, one for each budget at which it is tried, and these budgets."""
    name = f"{method}, rate {FACTOR**trial.step:g}, dropout {trial.dropout:g}{OTHERS[trial.other]}"
    first, *more = tuning_budgets(method)
    return {name: first, **{f"{name}, budget {budget:g}": budget for budget in more}}


def choice_at(dataset: Dataset, trial: Trial) -> Choice:
    """A setting in numbers."""
    return Choice(float(f"{dataset.lr * FACTOR**trial.step:.6g}"), trial.dropout, trial.other)


def tuning_models(dataset: Dataset) -> dict[str, Any]:
    """Every setting that the search of a method can come to; few of them are run."""
    return {
        name: asked(method, budget, dataset, choice_at(dataset, trial))
        for method, trial in all_tuning()
        for name, budget in trial_names(method, trial).items()
    }


def all_tuning() -> list[tuple[str, Trial]]:
    """Every method with every setting that its search can come to."""
    return [(method, trial) for method in TUNED for trial in all_trials(alternatives(method))]


def kind_name(method: str, kind: str, budget: float) -> str:
    """The name of a kind of gates in a table of gates."""
    return f"{method}, {kind} {budget:g}"


def gate_models(dataset: Dataset, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Ours with every kind of gates, and with none, at every budget."""
    return {
        kind_name(method, kind, budget): asked_of_ours(method, kind, budget, dataset, found)
        for method, without in WITHOUT_GATES.items()
        if (found := choice_of(chosen, without, dataset))
        for kind in KINDS
        for budget in BUDGETS
    }
