"""`fit`: check the arguments, then train."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.budget import GateBudget
from dynamicgate.data.contract import as_arrays
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.callbacks import Callback, check_callbacks
from dynamicgate.training.classification import check_labels, scored_classes, weights_per_class
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.ending import finish
from dynamicgate.training.folder_lock import only_process
from dynamicgate.training.log import History
from dynamicgate.training.loop import Run
from dynamicgate.training.options import FitOptions
from dynamicgate.training.progress import Progress
from dynamicgate.training.resuming import resume
from dynamicgate.training.stage_loss import StageLoss

LOCK = ".fit.lock"


def fit(
    model: nn.Module,
    train: Any,
    *,
    valid: Any = None,
    budget: GateBudget | None = None,
    sparsifier: Sparsifier | None = None,
    epochs: int = 10,
    batch: int = 128,
    lr: float = 2e-3,
    gate_lr_scale: float = 1.0,
    weight_decay: float = 0.01,
    warmup: float = 0.05,
    accumulate: int = 1,
    clip: float | None = None,
    bf16: bool = False,
    device: str = "auto",
    class_weights: Tensor | str | None = None,
    label_smoothing: float = 0.0,
    teacher: nn.Module | None = None,
    distill_weight: float | None = None,
    stage_loss: StageLoss | None = None,
    patience: int | None = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    checkpoint_seconds: float = 15.0,
    label: str = "training",
    show: bool = True,
) -> History:
    """Train a classifier in place with AdamW and a cosine learning rate.

    train, valid: a pair `(x, y)` of tensors or arrays, `dynamicgate.data.Arrays`, or a DataLoader of such pairs, which
        is read once into memory; `fit` does its own shuffling, so that a run can be resumed.
    budget: how many MACs the gates may execute. sparsifier: RigL, SET, Static or Magnitude, made for this `model`.
    batch: rows per optimizer step over all processes, processed in `accumulate` micro-batches.
    lr: peak learning rate; gate_lr_scale: that of the weights of gate networks relative to it.
    warmup: fraction of training in which the learning rate rises.
    clip: largest gradient norm. bf16: bfloat16 autocast. class_weights: one weight per class, or "balanced".
    teacher: a trained model to distill from; distill_weight: its fraction of the loss, None is 0.5.
    stage_loss: how the stages of a model that has some are trained; None weights all stages and rows alike.
    patience: epochs without a better validation accuracy before stopping; the best weights are then restored. With a
        budget only epochs that meet it can be best.
    callbacks: what follows the run, writes its numbers elsewhere or stops it: `dynamicgate.training.Callback`.
    out: folder for log.jsonl, last.safetensors (continue by calling again with the same arguments) and
        best.safetensors. Interrupting with Ctrl-C saves a checkpoint first.
    """
    options = FitOptions(
        epochs=epochs, batch=batch, lr=lr, gate_lr_scale=gate_lr_scale, weight_decay=weight_decay, warmup=warmup,
        accumulate=accumulate, clip=clip, bf16=bf16, label_smoothing=label_smoothing, patience=patience, seed=seed,
    )  # fmt: skip
    train = as_arrays(train, "training data", least_classes=2)
    if valid is not None:
        valid = as_arrays(valid, "validation data", least_classes=1)
    if teacher is None and distill_weight is not None:
        raise ValueError(f"distill_weight={distill_weight} is a teacher's fraction of the loss: pass teacher= as well")
    if patience is not None and valid is None:
        raise ValueError("early stopping (patience) needs validation data: pass valid=")
    chosen = distributed.choose_device(device)
    model.to(chosen)
    folder = None if out is None else Path(out)
    with (
        torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []),
        only_process(folder, LOCK, chosen),
    ):
        example = train.rows(torch.arange(2)).to(chosen)
        classes = scored_classes(model, example)
        check_labels(train, classes, "training data")
        if valid is not None:
            check_labels(valid, classes, "validation data")
        if teacher is not None and (found := scored_classes(teacher.to(chosen), example)) != classes:
            raise ValueError(
                f"the teacher scores {found} classes, the model {classes}: distillation needs the same classes"
            )
        torch.manual_seed(seed + distributed.rank())
        run = Run(
            model=model,
            train=train,
            valid=valid,
            budget=budget,
            sparsifier=sparsifier,
            options=options,
            device=chosen,
            class_weights=weights_per_class(class_weights, train, classes),
            out=folder,
            teacher=None if teacher is None else Teacher(teacher, distill_weight, chosen),
            stage_loss=stage_loss,
            callbacks=check_callbacks(callbacks),
            checkpoint_seconds=checkpoint_seconds,
        )
        resume(run)
        if sparsifier is not None and show and distributed.rank() == 0:
            print(sparsifier, file=sys.stderr, flush=True)
        with run.interrupts, Progress(label, show=show and distributed.rank() == 0) as progress:
            run.train(progress)
        finish(run)
    return run.history
