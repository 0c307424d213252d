"""The compared models: name, description, colour, group and role of each, in one table."""

import re
from dataclasses import dataclass
from typing import Literal

Group = Literal[
    "dense", "gated", "sparse", "gated and sparse", "sparse, in stages", "experts", "chosen by held-out rows"
]
Role = Literal["main", "alternative", "control"]


@dataclass(frozen=True)
class ComparedModel:
    """One row of the table.

    name: what `dynamicgate train --model` and the key "model" of a run call it.
    description: what it is, in one line of the page.
    colour: number of its colour in page.css (`--c0`, `--c1`, ...) and of its marker; no two models share one.
    group: which kind of network it is: which units or weights it leaves out, if any.
    role: "main" is the subject of a report, "alternative" its subject if no main model was run, "control" is only
        compared with.
    rivals: the models that this one combines or is made from; it is compared with each of them, whatever their role.
    """

    name: str
    description: str
    colour: int
    group: Group
    role: Role = "control"
    rivals: tuple[str, ...] = ()


_ROWS = (
    ComparedModel("dense", "the plain network: the accuracy to reach and the MACs to save", 3, "dense"),
    ComparedModel("small", "a dense network, made narrow enough for the budget", 2, "dense"),
    ComparedModel("dropout", "the dense network trained with dropout: regularised, saves nothing", 4, "dense"),
    ComparedModel("static", "one learned logit per unit: the same units are open for every input", 1, "gated"),
    ComparedModel("random", "a fixed random choice of units, as many as the budget allows", 11, "gated"),
    ComparedModel("gate", "gates that open and close units for each input", 0, "gated", role="main"),
    ComparedModel("pruned", "magnitude pruning: the smallest weights are removed during training", 9, "sparse"),
    ComparedModel("static-sparse", "a random sparse mask that never changes", 8, "sparse"),
    ComparedModel(
        "set",
        "dynamic sparse training (SET): prunes the smallest weights, regrows random ones",
        6,
        "sparse",
        role="alternative",
    ),
    ComparedModel(
        "rigl",
        "dynamic sparse training (RigL): prunes the smallest weights, regrows those with the largest gradients",
        5,
        "sparse",
        role="alternative",
    ),
    ComparedModel(
        "gate+rigl",
        "gates on top of RigL's sparse weights",
        7,
        "gated and sparse",
        role="main",
        rivals=("gate", "rigl"),
    ),
    ComparedModel(
        "switch",
        "mixture of experts: a router picks one expert for each input",
        10,
        "experts",
        role="alternative",
    ),
    ComparedModel(
        "staged",
        "hidden units in stages on RigL's sparse weights: easy inputs stop after the first, hard ones open more",
        12,
        "sparse, in stages",
        role="main",
        rivals=("rigl", "gate+rigl", "cascade", "staged-random"),
    ),
    ComparedModel(
        "cascade",
        "independent networks, one a stage: is it worth using again what earlier stages computed?",
        13,
        "sparse, in stages",
    ),
    ComparedModel(
        "staged-random",
        "the same stages, opened at random as often: does it matter which inputs get more?",
        14,
        "sparse, in stages",
    ),
    ComparedModel(
        "sparsify",
        "what held-out rows prefer after short trainings: sparse layers, with gates on units, in stages or without, "
        "or a pruned or a narrow network",
        15,
        "chosen by held-out rows",
        role="main",
        rivals=("rigl", "gate", "gate+rigl", "staged"),
    ),
)

MODEL_TABLE = {row.name: row for row in _ROWS}


def find_model(name: str) -> ComparedModel | None:
    """The row that a run's model belongs to: that of its name, or of the name before a variant, as in "gate 0.1" or
    "rigl, 16x1". None where the table does not know it."""
    return MODEL_TABLE.get(name) or MODEL_TABLE.get(re.split(r"[ ,]", name, maxsplit=1)[0])
