"""The model `sparsify`: short trainings of all recipes, of which held-out rows choose the one that is trained."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dynamicgate import distributed
from dynamicgate.data import Arrays
from dynamicgate.data.tasks import Task
from dynamicgate.files import read_json, write_text
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import GATED_SPARSE, Settings, given, no_gates_note
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.methods.recipes import gated_recipes, plain_recipes, recipes
from dynamicgate.presets.pilot import STEPS, Build, Choice, Trial, choose_trial

CHOICE_FILE = "choice.json"


def choose_settings(
    s: Settings, splits: Splits, folder: Path, *, task: Task | None = None, device: str = "auto", show: bool = True
) -> tuple[Settings, dict[str, Any]]:
    """The settings that `sparsify` trains, and how they were chosen: `recipe`, `reason`, held-out `accuracy` of every
    recipe that was tried (of a regression, minus its loss), why others were `refused`, and the `steps` and `seconds`
    that this took.

    The choice is kept in `folder`, so that an interrupted run does not repeat it. No test row takes part.
    """
    path = folder / CHOICE_FILE
    if not path.exists():
        choice = describe(try_recipes(s, splits, task=task, device=device, show=show))
        if distributed.rank() == 0:
            write_text(path, json.dumps(choice))
    else:
        choice = read_json(path)
    return recipes(s)[choice["recipe"]].resolved(splits), choice


def try_recipes(s: Settings, splits: Splits, *, task: Task | None = None, device: str, show: bool) -> Choice:
    """Train each recipe as it would be trained in full, but for 600 steps at most. Not for less where the training is
    that short itself: narrow networks learn more slowly, and would be judged before they have caught up."""
    steps = given(s.epochs) * math.ceil(len(splits.train) / given(s.batch))

    def builds(named: Mapping[str, Settings]) -> dict[str, Build]:
        return {name: build(one, splits, min(STEPS, steps)) for name, one in named.items()}

    plain, gated = builds(plain_recipes(s)), builds(gated_recipes(s))
    held: dict[str, Any] = {"task": task, "seed": s.seed, "show": show, "device": device, "clock": s.clock}
    return choose_trial(splits.train, splits.valid, plain=plain, gated=gated, **held)


def build(s: Settings, splits: Splits, steps: int) -> Build:
    """A recipe as a trial of about so many steps."""

    def trial(rows: Arrays) -> Trial:
        here = replace(splits, train=rows)
        epochs = max(1, round(steps / math.ceil(len(rows) / given(s.batch))))
        found = replace(s, epochs=epochs).resolved(here)
        if found.model == GATED_SPARSE and not found.gate_density:
            raise ValueError(no_gates_note(found))
        torch.manual_seed(s.seed)
        model, *parts = MODELS[found.model](found, here)
        options = {
            "epochs": epochs, "batch": given(found.batch), "lr": given(found.lr), "weight_decay": found.weight_decay,
            "gate_lr_scale": found.gate_lr_scale, "accumulate": found.accumulate, "clip": found.clip,
            "bf16": found.bf16, "class_weights": "balanced" if found.balanced else None,
        }  # fmt: skip
        return Trial(model, {**options, **dict(zip(("budget", "sparsifier", "stage_loss"), parts, strict=True))})

    return trial


def describe(choice: Choice) -> dict[str, Any]:
    """A choice as a run stores it."""
    return {
        "recipe": choice.name,
        "reason": choice.reason,
        "accuracy": dict(choice.accuracy),
        "refused": dict(choice.refused),
        "steps": choice.steps,
        "seconds": choice.seconds,
    }


def choice_note(choice: Mapping[str, Any]) -> str:
    """What was chosen, why, and what finding out took."""
    return f"{choice['reason']}; finding out took {choice['steps']:,} steps in {choice['seconds']:.0f} s"
