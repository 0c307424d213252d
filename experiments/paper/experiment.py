"""All tables of the paper, in its order, as one experiment."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment, Table
from experiments import ROOT
from experiments.paper import cifar10, mnist, moe, pbmc3k, speech, tiny_imagenet
from experiments.paper.section import Section

SECTIONS = {
    module.SECTION.name: module.SECTION for module in (mnist, cifar10, tiny_imagenet, speech, moe, pbmc3k)
}  # fmt: skip
PAPER = Experiment("paper", tuple(recipe.table for s in SECTIONS.values() for recipe in s.recipes), ROOT)


def choose_tables(name: str) -> list[Table]:
    """The tables of a name: "all", a section such as "mnist", or one recipe of it such as "mnist/ours"."""
    chosen, _, kind = name.partition("/")
    if chosen != "all" and chosen not in SECTIONS:
        raise ValueError(f"unknown table {chosen!r}: the tables are {', '.join(SECTIONS)}, or all")
    sections: list[Section] = list(SECTIONS.values()) if chosen == "all" else [SECTIONS[chosen]]
    return [recipe.table for s in sections for recipe in ([s.recipe(kind)] if kind else s.recipes)]
