"""`fit`: check the arguments, then train."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dynamicgate import distributed
from dynamicgate.accounting.quality import check_metrics
from dynamicgate.budget import GateBudget
from dynamicgate.data.tasks import Metric, OwnLoss, Task, as_task
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.callbacks import Callback, check_callbacks
from dynamicgate.training.classification import weights_per_class
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.ending import finish
from dynamicgate.training.folder_lock import only_process
from dynamicgate.training.loader_stream import LoaderStream
from dynamicgate.training.log import History
from dynamicgate.training.loop import Run
from dynamicgate.training.optimizer import MakeOptimizer
from dynamicgate.training.options import FitOptions
from dynamicgate.training.progress import Progress
from dynamicgate.training.reading import Data, outputs_of, read_data
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
    batch: int | None = None,
    loss: str | Task | OwnLoss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    optimizer: MakeOptimizer | None = None,
    lr: float | None = None,
    gate_lr_scale: float = 1.0,
    weight_decay: float | None = None,
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
    dense_macs: float | None = None,
    label: str = "training",
    show: bool = True,
) -> History:
    """Train a model in place, with AdamW and a cosine learning rate unless told otherwise.

    train, valid: a pair `(x, y)` of tensors, numpy arrays, DataFrames, a scipy sparse matrix or AnnData (a name as y is
        a column), or of a mapping or tuple of tensors for models with several arguments; `dynamicgate.data.Arrays`; an
        iterable of pairs, which is read once into memory. `fit` shuffles these itself, so that a run can be resumed. A
        DataLoader is used as it is: its batches, its order.
    budget: how many MACs the gates may execute. sparsifier: RigL, SET, Static or Magnitude, made for this `model`.
    batch: rows per optimizer step over all processes, processed in `accumulate` micro-batches. None: 128.
    loss: what the targets are. None: one class per row, or per token of a sequence, by cross entropy. "mse", "huber",
        "quantile": measurements. "multilabel": several labels, 0 or 1. `dynamicgate.data.tasks` has them with settings.
        Or a function `(outputs, targets)` to the loss of each row, or to their mean.
    metrics: functions `(outputs, targets)` of all validation rows to a number, by name.
    optimizer: makes an optimizer of parameters, `functools.partial(torch.optim.SGD, lr=0.1)` for instance, in place of
        AdamW with `lr` and `weight_decay`. Its learning rate is the peak of the schedule.
    lr: peak learning rate, None is 2e-3; gate_lr_scale: that of the weights of gate networks relative to it.
    weight_decay: of weight matrices, None is 0.01. warmup: fraction of training in which the learning rate rises.
    clip: largest gradient norm. bf16: bfloat16 autocast. class_weights: one weight per class, or "balanced".
    teacher: a trained model to distill from; distill_weight: its fraction of the loss, None is 0.5.
    stage_loss: how the stages of a model that has some are trained; None weights all stages and rows alike.
    patience: epochs without a better validation before stopping; the best weights are then restored. Better is a higher
        accuracy, or a lower loss where there are no classes. With a budget only epochs that meet it can be best.
    callbacks: what follows the run, writes its numbers elsewhere or stops it: `dynamicgate.training.Callback`.
    out: folder for log.jsonl, last.safetensors (continue by calling again with the same arguments) and
        best.safetensors. Interrupting with Ctrl-C saves a checkpoint first.
    dense_macs: MACs per row of the dense network that `relative` and `target` of the log and of the history, and the
        progress, refer to, where the model is wider or narrower than that one. None: the model's own.
    """
    task, metrics = as_task(loss), check_metrics(metrics)
    if isinstance(train, DataLoader) and batch is not None:
        raise ValueError(f"batch={batch} means nothing with a DataLoader, which has batches of its own: leave it out")
    if optimizer is not None and (lr is not None or weight_decay is not None):
        raise ValueError(
            "lr and weight_decay are those of AdamW: give your own optimizer its own, as in "
            "functools.partial(torch.optim.SGD, lr=0.1, weight_decay=1e-4)"
        )
    if task.name != "classification" and (class_weights is not None or label_smoothing):
        raise ValueError(f"class_weights and label_smoothing are for classes, and loss={loss!r:.60} has none")
    if teacher is None and distill_weight is not None:
        raise ValueError(f"distill_weight={distill_weight} is a teacher's fraction of the loss: pass teacher= as well")
    if patience is not None and valid is None:
        raise ValueError("early stopping (patience) needs validation data: pass valid=")
    options = FitOptions(
        epochs=epochs, batch=128 if batch is None else batch, lr=2e-3 if lr is None else lr,
        gate_lr_scale=gate_lr_scale, weight_decay=0.01 if weight_decay is None else weight_decay, warmup=warmup,
        accumulate=accumulate, clip=clip, bf16=bf16, label_smoothing=label_smoothing, patience=patience, seed=seed,
    )  # fmt: skip
    chosen = distributed.choose_device(device)
    model.to(chosen)
    folder = None if out is None else Path(out)
    with (
        torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []),
        only_process(folder, LOCK, chosen),
    ):
        data = read_data(model, train, valid, task, chosen)
        if teacher is not None:
            _check_teacher(teacher.to(chosen), data)
        torch.manual_seed(seed + distributed.rank())
        run = Run(
            model=model,
            train=data.train,
            valid=data.valid,
            task=task,
            metrics=metrics,
            optimizer=optimizer,
            budget=budget,
            sparsifier=sparsifier,
            options=options,
            device=chosen,
            class_weights=_class_weights(class_weights, data),
            out=folder,
            teacher=None if teacher is None else Teacher(teacher, distill_weight, chosen),
            stage_loss=stage_loss,
            callbacks=check_callbacks(callbacks),
            checkpoint_seconds=checkpoint_seconds,
            dense_macs=dense_macs,
        )
        resume(run)
        if sparsifier is not None and show and distributed.rank() == 0:
            print(sparsifier, file=sys.stderr, flush=True)
        with run.interrupts, Progress(label, show=show and distributed.rank() == 0) as progress:
            run.train(progress)
        finish(run)
    return run.history


def _class_weights(class_weights: Tensor | str | None, data: Data) -> Tensor | None:
    labels = None if isinstance(data.train, LoaderStream) else data.train.y
    return weights_per_class(class_weights, labels, data.outputs.shape[-1])


def _check_teacher(teacher: nn.Module, data: Data) -> None:
    found = outputs_of(teacher, data.example).shape
    if found != data.outputs.shape:
        raise ValueError(
            f"the teacher's outputs have shape {list(found)}, those of the model {list(data.outputs.shape)}: "
            "distillation needs the same"
        )
