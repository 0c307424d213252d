"""All tables of the paper, in its order, as one experiment."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment, Table
from experiments import ROOT
from experiments.paper import cifar10, forgetting, mnist, moe, pbmc3k, speech, tiny_imagenet
from experiments.paper.section import Section

SECTIONS = {
    module.SECTION.name: module.SECTION for module in (mnist, cifar10, tiny_imagenet, speech, moe, pbmc3k)
}  # fmt: skip
OTHERS = {forgetting.SECTION: forgetting.TABLE}  # on claims for which the paper has no table
PAPER = Experiment(
    "paper", (*(recipe.table for s in SECTIONS.values() for recipe in s.recipes), *OTHERS.values()), ROOT
)


def choose_tables(name: str) -> list[Table]:
    """The tables of a name: "all", a section such as "mnist", or one recipe of it such as "mnist/ours"."""
    chosen, _, kind = name.partition("/")
    if chosen in OTHERS:
        return [OTHERS[chosen]]
    if chosen != "all" and chosen not in SECTIONS:
        raise ValueError(f"unknown table {chosen!r}: the tables are {', '.join([*SECTIONS, *OTHERS])}, or all")
    sections: list[Section] = list(SECTIONS.values()) if chosen == "all" else [SECTIONS[chosen]]
    tables = [recipe.table for s in sections for recipe in ([s.recipe(kind)] if kind else s.recipes)]
    return [*tables, *(OTHERS.values() if chosen == "all" else ())]
