"""Train one model and measure it: what each run of a comparison or an experiment does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynamicgate import distributed
from dynamicgate.accounting.full_width import relative_to
from dynamicgate.accounting.measurement import measure
from dynamicgate.budget import Budget, GateBudget
from dynamicgate.data.schema import Schema
from dynamicgate.files import read_json, write_text
from dynamicgate.io.model_file import load as load_model
from dynamicgate.io.model_file import save
from dynamicgate.io.tensor_file import read_tensors
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.cascade import open_at_random_, train_cascade
from dynamicgate.lab.methods.dense_reference import NOTE, asked_for
from dynamicgate.lab.methods.hyperparameters import GATED_SPARSE, SPARSIFY, Settings, given, no_gates_note
from dynamicgate.lab.methods.models import MODELS, Prepared
from dynamicgate.lab.methods.pilots import choice_note, choose_settings
from dynamicgate.lab.methods.regression import answer_in_units_, scaled, task_of
from dynamicgate.lab.methods.samples import RegressionStats, SampleStats
from dynamicgate.training import Callback, fit
from dynamicgate.training.ending import MISSED
from dynamicgate.training.folder_lock import only_process

SAMPLES_FILE = "samples.json"
LOCK = ".run.lock"
BUDGET_UNIT = "executed MACs per sample, as a fraction of the dense network asked for"


def run_one(
    settings: Settings,
    splits: Splits,
    folder: Path,
    *,
    prepare: Callable[[Settings, Splits], Prepared] | None = None,
    device: str = "auto",
    label: str = "",
    show: bool = True,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train one model, measure it on the test data, and leave model, log, checkpoints and run.json in `folder`.

    A finished run is read from its folder, an interrupted one continues from its checkpoint. InUseError if another
    process is at it. `prepare` builds a model that is not in `MODELS`; the caller then has to tell its runs apart.
    callbacks: follow the training; not of a cascade, which trains several networks.
    """
    if callbacks and prepare is None and settings.model == "cascade":
        raise ValueError("a cascade trains several networks, each with its own log: it takes no loggers or callbacks")
    with only_process(folder, LOCK, distributed.choose_device(device)):
        return _run_one(
            settings, splits, folder, prepare=prepare, device=device, label=label, show=show, callbacks=callbacks
        )


def _run_one(
    settings: Settings,
    splits: Splits,
    folder: Path,
    *,
    prepare: Callable[[Settings, Splits], Prepared] | None,
    device: str,
    label: str,
    show: bool,
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    finished = folder / "run.json"
    if finished.exists():
        if (folder / "model.safetensors").exists():  # damaged, it is no longer what the run measured
            read_tensors(folder / "model.safetensors", kind="model")
        return _check_same(read_json(finished), settings, folder)
    if prepare is None and settings.model not in MODELS:
        raise ValueError(f"unknown model {settings.model!r}; the models are {', '.join(MODELS)}")
    label = label or f"{settings.model} seed {settings.seed}"
    if prepare is None and settings.model == "cascade":  # each of its networks has the teacher it may need
        return train_cascade(settings, splits, folder, run_one=run_one, device=device, label=label, show=show)
    asked, seconds, choice = settings, 0.0, dict[str, Any]()
    task, (learned, scale) = task_of(settings, splits), scaled(splits)
    if prepare is None and settings.model == SPARSIFY:
        settings, choice = choose_settings(asked, learned, folder, task=task, device=device, show=show)
        seconds, label = choice["seconds"], f"{label}, {choice['recipe']}"
    distillation = dict[str, Any]()
    if settings.distill_weight:
        teacher, of_teacher = _train_teacher(settings, splits, folder / "teacher", device)
        distillation, seconds = {"teacher": teacher, "distill_weight": settings.distill_weight}, seconds + of_teacher
    torch.manual_seed(settings.seed)
    model, budget, sparsifier, stage_loss = (prepare or MODELS[settings.model])(settings, learned)
    dense = asked_for(settings, splits)
    history = fit(
        model,
        learned.train,
        valid=learned.valid,
        loss=task,
        budget=budget,
        sparsifier=sparsifier,
        epochs=given(settings.epochs),
        batch=given(settings.batch),
        lr=given(settings.lr),
        gate_lr_scale=settings.gate_lr_scale,
        weight_decay=settings.weight_decay,
        accumulate=settings.accumulate,
        clip=settings.clip,
        bf16=settings.bf16,
        class_weights="balanced" if settings.balanced else None,
        **distillation,
        stage_loss=stage_loss,
        patience=settings.patience,
        seed=settings.seed,
        callbacks=callbacks,
        device=device,
        out=folder,
        dense_macs=dense.macs,
        label=label,
        show=show,
    )
    if settings.model == "staged-random":
        open_at_random_(model, splits.valid)
    answer_in_units_(model, scale)
    stats: SampleStats | RegressionStats = SampleStats() if task is None else RegressionStats()
    found = relative_to(measure(model, splits.test, watch=stats.add, loss=task), dense.macs).to_dict()
    run = {
        "model": asked.model,
        "seed": settings.seed,
        "data": splits.name,
        **{key: found[key] for key in ("quality", "macs", "proxies", "layers", "params")},
        "seconds": history.seconds + seconds,
        "budget": settings.budget if isinstance(budget, Budget) else None,
        "sparsity": sparsifier.stats() if sparsifier else None,
        "samples": found["samples"],
        "gates": found["gates"],
        **({"stages": found["stages"], "curve": found["curve"]} if found["stages"] else {}),
        **({"choice": choice} if choice else {}),
        "notes": [
            *([choice_note(choice)] if choice else []),
            *_gate_notes(settings),
            *_folded(budget),
            *missed_budget(settings, budget, found["macs"]["relative"]),
            *found["notes"],
        ],
        "valid": history.final,
        "steps": history.steps,
        "collapses": [str(collapse) for collapse in budget.collapses] if budget else [],
        "settings": asked.to_json(),
    }
    if distributed.rank() == 0:
        notes = {"data": splits.name, "settings": asked.to_json(), NOTE: dense.to_json()}
        save(model, folder / "model.safetensors", notes=notes, schema=_schema(settings, splits, run["macs"]["dense"]))
        write_text(folder / SAMPLES_FILE, json.dumps(stats.to_dict(splits)))
        write_text(finished, json.dumps(run))
    distributed.any_of(False, device=distributed.choose_device(device))  # all wait until the model can be read
    return run


def _schema(settings: Settings, splits: Splits, dense: float) -> Schema:
    """What the model knows of its data, and of its budget if it has one."""
    schema = replace(splits.described(), dense_macs=int(dense))
    if settings.model in ("dense", "dropout"):
        return schema
    return replace(schema, budget=settings.budget, budget_unit=BUDGET_UNIT)


def _folded(budget: GateBudget | None) -> list[str]:
    """The gates that became constant in training."""
    return [str(one) for one in budget.folded] if isinstance(budget, Budget) else []


def missed_budget(settings: Settings, budget: GateBudget | None, executed: float) -> list[str]:
    """What the gates execute where that is not what was asked for: logits that lie together open and close at once."""
    if not isinstance(budget, Budget) or abs(executed - settings.budget) <= MISSED:
        return []
    return [f"the budget is missed: {settings.budget:g} of the dense MACs was asked for, {executed:.3f} is executed"]


def _gate_notes(settings: Settings) -> list[str]:
    if settings.model != GATED_SPARSE or settings.gate_density:
        return []
    return [no_gates_note(settings)]


def _check_same(run: dict[str, Any], settings: Settings, folder: Path) -> dict[str, Any]:
    """The finished run, if it was made with these settings: a hash of changed fields cannot see a moved default."""
    made, asked = Settings().to_json() | run["settings"], settings.to_json()
    apart = sorted(name for name in made.keys() | asked.keys() if made.get(name) != asked.get(name))
    if apart:
        raise ValueError(
            f"{folder} holds a run with another {', '.join(apart)}: expected the settings asked for; delete that "
            "folder, or choose another"
        )
    return run


def _train_teacher(settings: Settings, splits: Splits, folder: Path, device: str) -> tuple[nn.Module, float]:
    """The dense network with dropout, trained like the model that will be distilled from it, and how long that took."""
    run = run_one(replace(settings, model="dropout", distill_weight=0.0), splits, folder, device=device, show=False)
    return load_model(folder / "model.safetensors"), run["seconds"]
