"""What the tables of continual learning share: recipes, sizes, and how a table is made.

Sizes and settings come from small probes on plain MNIST and from published code; `tuning` compares them on permutations
and orders of other seeds, from 1,000 on, and on validation rows. Nothing is chosen on the streams that are reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Table

Models = dict[str, dict[str, Any]]

# Width, rate, length and smoothing of a context with 58 k connections: tuning-keep.
KEEP = {"width": 512, "density": 0.13, "lr": 3e-3, "batch": 128, "epochs": 10, "smoothing": 0.1, "at_once": 100}
# With its prototype a context of E2 has 58 k numbers, so that a hundred have the 5.8 M weights of 784-2048-2048-10.
KEPT = {**KEEP, "density": 0.128}
SEPARATE = {**KEEP, "width": 73, "density": None, "rewire": None}
STATIC = {**KEPT, "rewire": False}
JOINT = {"method": "joint", "hidden": [2048, 2048], "batch": 128, "epochs": 10, "lr": 1e-3}
SMALL = {**SEPARATE, "width": 72}  # about as many numbers as KEPT
WIDE = {"hidden": [2048, 2048], "batch": 256, "epochs": 3, "lr": 1e-3}
QUICK_KEEP = {"tasks": 3, "width": 32, "epochs": 1, "batch": 50, "at_once": 2, "hidden": [32, 32]}
QUICK_FOLLOW = {"tasks": 2, "hidden": [32, 32], "epochs": 1, "batch": 50, "rows": 200}
QUICK_SIDE = {"tasks": 3, "hidden": [20, 20], "rows": 400, "seeds": [0, 1]}
THREE, FIVE, OTHERS = (0, 1, 2), (0, 1, 2, 3, 4), (1000, 1001)

LENGTHS: Models = {"short": {"epochs": 1, "rows": 20_000}, "middle": {"epochs": 1}, "long": {"epochs": 2}}
OPEN = {"open_overlap": True}
E0_METHODS: Models = {
    "dense": {}, "small": {"budget": 0.35}, "gate": {"budget": 0.35, **OPEN}, "gate in blocks": {"method": "gate",
    "block": 16, "budget": 0.35, **OPEN}, "top-k": OPEN, "static-sparse": {}, "rigl": {}, "gate+rigl": OPEN,
}  # fmt: skip
LEARNERS: Models = {
    "naive": {}, "ewc": {"learner": {"strength": 100.0}}, "si": {"learner": {"strength": 10.0}}, "lwf": {},
    "er 200": {"method": "er", "learner": {"rows": 200}}, "er 2000": {"method": "er", "learner": {"rows": 2000}},
    "der++ 200": {"method": "der++", "learner": {"rows": 200}}, "a-gem 200": {"method": "a-gem", "learner":
    {"rows": 200}}, "joint": {},
}  # fmt: skip
OURS: Models = {
    "keep": {"width": 512, "density": 0.13, "lr": 5e-3},
    "separate": {"method": "keep", "width": 73, "lr": 5e-3},
}
BYTES = {"er, 2 MB": 2_015_912, "er, 8 MB": 7_967_912, "er, 32 MB": 32_192_168}  # what readouts of filters keep
GATE_RATES, PERIODS = (0.1, 0.3, 1.0, 3.0, 10.0), (10, 30, 100, 300, 1000, 0)
WORLDS = {
    "still": {"stream": "still", "tasks": 1, "epochs": 2},
    "jumping": {"stream": "permuted", "tasks": 5, "rows": 32_000, "epochs": 1},
    "turning": {"stream": "drifting", "tasks": 20, "epochs": 1},
}


def asked(models: Models, **shared: Any) -> Models:
    """Models with what all of them are asked for; a model is a method of its own name unless it says another."""
    return {name: {"method": name, **shared, **own} for name, own in models.items()}


def replay_of(room: int, features: int) -> dict[str, Any]:
    """Replay that keeps so many bytes: a row has a byte for each feature and one for its label. The rest is what the
    256 values of a pixel and 10 of a label mean, and the random numbers."""
    return {"method": "er", "learner": {"rows": (room - 4 * 256 - 8 * 10 - 5064) // (features + 1)}}


def table(name: str, models: Models, kind: Any, quick: dict[str, Any], seeds: tuple[int, ...], **more: Any) -> Table:
    """A table on MNIST unless other data are asked for. Settings are not chosen by its runs, so that validation rows
    are learned as well, as published streams do."""
    more = {"data": "mnist", "changes": (Change("all training rows", all_training_rows),), **more}
    return Table(name=name, models=models, train=kind.train, seeds=seeds, quick=quick, **more)


def on_validation_rows(splits: Splits) -> Splits:
    """Test on validation rows: settings are chosen by them."""
    return replace(splits, test=splits.valid)


def all_training_rows(splits: Splits) -> Splits:
    """Learn from training and validation rows."""
    train, valid, test = (
        replace(part, x=part.values, prepare=None) for part in (splits.train, splits.valid, splits.test)
    )
    train = replace(train, x=torch.cat([train.values, valid.values]), y=torch.cat([train.y, valid.y]))
    return replace(splits, train=train, valid=valid.take(torch.arange(1)), test=test)


def centred(splits: Splits) -> Splits:
    """Pixels about 0 by numbers that no image was looked at for."""
    flat = splits.flat()
    train, valid, test = (
        replace(part, x=(part.values - 0.5) / 0.25, prepare=None, augment=None)
        for part in (flat.train, flat.valid, flat.test)
    )
    return replace(flat, train=train, valid=valid, test=test, mean=0.0, std=1.0)
