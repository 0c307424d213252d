"""`fit`: check what was asked for, then let a `Run` do it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.budget import Budget
from dynamicgate.data import Arrays, check_arrays
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.log import History
from dynamicgate.training.loop import Run
from dynamicgate.training.options import Options, check_labels, scored_classes, weights_per_class
from dynamicgate.training.progress import Progress


def fit(
    model: nn.Module,
    train: Arrays | tuple[Tensor, Tensor],
    *,
    valid: Arrays | tuple[Tensor, Tensor] | None = None,
    budget: Budget | None = None,
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
    distill_weight: float = 0.5,
    patience: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    checkpoint_seconds: float = 15.0,
    label: str = "training",
    show: bool = True,
) -> History:
    """Train `model` in place with AdamW and a cosine learning rate.

    budget: what the gates may use. sparsifier: which connections exist (RigL, SET, Static, Magnitude), made on `model`.
    batch: rows per optimizer step over all processes; `accumulate` works it off in that many pieces.
    gate_lr_scale: learning rate of the gate networks relative to `lr`.
    clip: largest gradient norm. bf16: autocast. class_weights: one per class, or "balanced".
    teacher: a trained model whose answers are imitated: `distill_weight` is its share of the loss, beside the labels.
    patience: epochs without a better validation accuracy before stopping; the best weights are then restored. With a
        budget only epochs that meet it can be best.
    out: folder for log.jsonl, last.safetensors (continue by calling again with the same arguments) and
        best.safetensors. Interrupting with Ctrl-C saves a checkpoint first.
    """
    options = Options(
        epochs, batch, lr, weight_decay, warmup, accumulate, clip, bf16, label_smoothing, patience, seed, gate_lr_scale
    )
    train = _as_arrays(train, "training data", least_classes=2)
    if valid is not None:
        valid = _as_arrays(valid, "validation data", least_classes=1)
    if patience is not None and valid is None:
        raise ValueError("early stopping (patience) needs validation data: pass valid=")
    chosen = distributed.choose_device(device)
    model.to(chosen)
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        example = train.rows(torch.arange(2)).to(chosen)
        classes = scored_classes(model, example)
        check_labels(train, classes, "training data")
        if valid is not None:
            check_labels(valid, classes, "validation data")
        if teacher is not None and (found := scored_classes(teacher.to(chosen), example)) != classes:
            raise ValueError(
                f"the teacher scores {found} classes, the model {classes}: one cannot learn from the other"
            )
        torch.manual_seed(seed + distributed.rank())
        run = Run(
            model,
            train,
            valid,
            budget,
            sparsifier,
            options,
            chosen,
            weights_per_class(class_weights, train, classes),
            Path(out) if out else None,
            Teacher(teacher, distill_weight, chosen) if teacher is not None else None,
        )
        run.checkpoint_seconds = checkpoint_seconds
        run.resume()
        if sparsifier is not None and show and distributed.rank() == 0:
            print(sparsifier, file=sys.stderr, flush=True)
        with run.interrupts, Progress(label, show=show and distributed.rank() == 0) as progress:
            run.train(progress)
        run.finish()
    return run.history


def _as_arrays(data: Any, what: str, *, least_classes: int) -> Arrays:
    if isinstance(data, Arrays):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(f"{what} is a pair (x, y) of tensors with one row a sample, received {type(data).__name__}")
    x, y = data
    return check_arrays(x, y, what=what, least_classes=least_classes)
