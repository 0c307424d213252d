"""The recipe files: they load, they have every model, and the published settings are those of the published code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from experiments.paper.experiment import PAPER, SECTIONS, choose_tables
from experiments.paper.section import Recipe, Section

from dynamicgate.lab.methods import Settings

RECIPES = [pytest.param(s, r, id=r.table.name) for s in SECTIONS.values() for r in s.recipes]
EVERY_TABLE = {
    "dense", "dropout", "pruned", "small", "static", "random", "gate", "static-sparse", "rigl", "gate+rigl",
}  # fmt: skip


def published(name: str, model: str) -> dict[str, Any]:
    return dict(SECTIONS[name].recipe("published").table.models[model])


def test_there_is_a_file_for_each_table_in_the_order_of_the_paper() -> None:
    assert {name: section.number for name, section in SECTIONS.items()} == {
        "mnist": "5.1", "cifar10": "5.2", "tiny-imagenet": "5.3", "speech": "5.4", "moe": "5.5", "pbmc3k": "5.6",
    }  # fmt: skip


@pytest.mark.parametrize(("section", "recipe"), RECIPES)
def test_a_recipe_is_plain_data_with_enough_seeds_and_its_dense_network_first(section: Section, recipe: Recipe) -> None:
    table = recipe.table
    assert table.name == f"{section.name}/{recipe.kind}"
    assert next(iter(table.models)) == "dense"
    assert len(table.seeds) == (10 if section.name == "pbmc3k" else 5)
    for asked in table.models.values():
        assert json.loads(json.dumps(asked)) == asked
    assert recipe.remarks
    hashes = [job.hash for job in PAPER.jobs([table])]
    assert len(set(hashes)) == len(hashes) == len(table.seeds) * len(table.models)


def test_tables_are_chosen_by_section_and_kind() -> None:
    assert [table.name for table in choose_tables("mnist")] == ["mnist/published", "mnist/written", "mnist/ours"]
    assert [table.name for table in choose_tables("moe/ours")] == ["moe/ours"]
    assert [table.name for table in choose_tables("forgetting")] == ["forgetting/ours"]
    assert len(choose_tables("all")) == len(PAPER.tables) == 18
    with pytest.raises(ValueError, match=r"unknown table 'cloud': the tables are mnist, cifar10, .* or all"):
        choose_tables("cloud")
    with pytest.raises(ValueError, match="moe has the recipes published, ours, received 'written'"):
        choose_tables("moe/written")


@pytest.mark.parametrize("name", SECTIONS)
def test_ours_has_every_model_at_one_budget_with_equal_training(name: str) -> None:
    table = SECTIONS[name].recipe("ours").table
    assert table.models.keys() >= EVERY_TABLE
    if name == "moe":
        assert table.models.keys() >= {"switch top-1", "switch top-2"}
    shared = {
        key: {str(asked[key]) for asked in table.models.values()} for key in ("epochs", "batch", "budget", "hidden")
    }
    assert all(len(values) == 1 for values in shared.values()), shared
    for asked in table.models.values():
        Settings(**{key: value for key, value in asked.items() if key != "model_options"})


def test_budgets_are_within_the_limits_for_a_comparison_with_the_paper() -> None:
    budgets = {name: section.recipe("ours").table.models["gate"]["budget"] for name, section in SECTIONS.items()}
    limits = {"mnist": 0.25, "cifar10": 0.35, "tiny-imagenet": 0.40, "speech": 0.40, "moe": 0.25, "pbmc3k": 0.20}
    assert all(budgets[name] <= limits[name] for name in limits)


def test_the_published_settings_of_mnist() -> None:
    dense, gate = published("mnist", "dense"), published("mnist", "gate")
    assert (dense["epochs"], dense["batch"], dense["optimizer"], dense["lr"], dense["weight_decay"]) == (
        50,
        128,
        "adam",
        1e-3,
        0.0,
    )
    assert published("mnist", "dropout")["dropout"] == 0.5
    assert published("mnist", "pruned")["prune"] == 0.3
    assert (gate["gate_lr"], gate["input_logit"], gate["hidden_logit"]) == (5e-5, 3.0, 2.0)
    assert (gate["theta"], gate["theta_epochs"], gate["weight"], gate["weight_from"]) == ([0.60, 0.90], 25, 3e-4, 15)
    assert (gate["target_rate"], gate["target_weight"], gate["input_weight"]) == (0.90, 2.0, 0.1)


def test_the_published_settings_of_cifar10() -> None:
    dense, gate, pruned = (published("cifar10", name) for name in ("dense", "gate", "pruned"))
    assert (dense["hidden"], dense["epochs"], dense["lr"], dense["weight_decay"]) == ([1024, 512], 15, 1e-3, 1e-4)
    assert published("cifar10", "dropout")["dropout"] == 0.1
    assert (pruned["prune"], pruned["prune_epochs"]) == (0.4, 8)
    assert (gate["open"], gate["theta"], gate["tau"], gate["tau_epochs"]) == (0.65, 0.5, [2.0, 1.2], 10)
    assert (gate["weight"], gate["weight_from"], gate["targets"], gate["target_weight"]) == (2e-2, 3, [0.52, 0.35], 0.8)
    assert SECTIONS["cifar10"].recipe("published").table.seeds[0] == 52


def test_the_published_settings_of_tiny_imagenet() -> None:
    dense, both = published("tiny-imagenet", "dense"), published("tiny-imagenet", "gate+rigl")
    assert (dense["hidden"], dense["epochs"], dense["optimizer"]) == ([256], 20, "adam")
    assert published("tiny-imagenet", "dropout")["dropout"] == 0.3
    assert (both["theta"], both["min_open"], both["target"]) == (0.6, 0.20, 0.50)
    assert (both["weight"], both["weight_from"], both["growth"], both["max_weight"]) == (1e-3, 3, 1.5, 0.1)
    assert (both["sparsity"], both["every"], both["fraction"], both["momentum"]) == (0.8, 200, 0.01, 0.9)


def test_the_published_settings_of_speech() -> None:
    dense, gate = published("speech", "dense"), published("speech", "gate")
    assert (dense["hidden"], dense["epochs"], gate["epochs"], dense["batch"]) == ([512, 256], 8, 10, 256)
    assert (gate["open"], gate["tau"], gate["weight"]) == (0.70, [2.0, 1.0], 5e-3)
    assert gate["weight_from"] == pytest.approx(600 / 3400)
    assert gate["phases"] == [[3, 0.90, 0.55, 0.0], [7, 0.60, 0.70, 1.0], [10, 0.45, 0.74, 1.5]]


def test_the_published_settings_of_the_mixture_of_experts() -> None:
    gate, experts = published("moe", "gate"), published("moe", "switch top-2")
    assert (gate["hidden"], gate["epochs"], gate["optimizer"], gate["weight_decay"]) == ([512], 8, "adamw", 0.01)
    assert (gate["theta"], gate["weight"], gate["weight_from"]) == (0.05, 5e-4, 1)
    assert (experts["experts"], experts["width"], experts["top_k"], experts["capacity"]) == (8, 512, 2, 2.5)


def test_the_published_settings_of_pbmc3k() -> None:
    dense, gate, rigl, pruned = (published("pbmc3k", name) for name in ("dense", "gate", "rigl", "pruned"))
    assert (dense["hidden"], dense["epochs"], dense["batch"], dense["lr"]) == ([1000, 500], 10, 256, 2e-3)
    assert published("pbmc3k", "dropout")["dropout"] == 0.2
    assert (gate["rank"], gate["open"], gate["tau"], gate["theta"], gate["weight"]) == (
        32,
        0.85,
        [4.0, 0.2],
        [0.45, 0.97],
        0.3,
    )
    assert gate["targets"] == [[2, 0.90, 0.85], [6, 0.25, 0.20], [10, 0.05, 0.03]]
    assert (rigl["density"], rigl["every"], rigl["fraction"]) == (0.25, 400, 0.05)
    assert (pruned["prune"], pruned["prune_epochs"]) == (0.5, 3)
    table = SECTIONS["pbmc3k"].recipe("published").table
    assert table.seeds == tuple(range(42, 52))
    assert table.data_options == {"labels": "leiden", "fit": "all", "hvg": "log", "split": "paper"}
