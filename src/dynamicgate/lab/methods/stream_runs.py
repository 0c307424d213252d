"""Runs of continual learning: follow a stream with a method, then measure what is retained and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.continual import Contexts, Learner, Readout, Retention, Stream, follow, joined
from dynamicgate.continual.asking import Questions
from dynamicgate.continual.reading_out import KIND, read_out
from dynamicgate.io.tensor_file import read_tensors
from dynamicgate.lab.methods.hyperparameters import dense_macs
from dynamicgate.lab.methods.stream_methods import METHODS
from dynamicgate.modules import evaluating

Answer = Callable[[Tensor, int], Tensor]
"""The classes of rows of a task, given its number."""
OVERLAP_ROWS = 1000


def run_stream(
    stream: Stream, asked: dict[str, Any], seed: int, *, device: str = "auto", folder: Path | None = None
) -> dict[str, Any]:
    """Follow a stream with a method, then measure what is retained, what it costs and what is kept."""
    started = time.monotonic()
    torch.manual_seed(seed)
    if asked["method"] not in METHODS:
        raise ValueError(f"unknown method {asked['method']!r}: expected one of {', '.join(METHODS)}")
    joint = asked["method"] == "joint"
    followed = joined(stream) if joint else stream
    made = METHODS[asked["method"]](stream, {**asked, "seed": seed})
    shown = {
        "device": device,
        "out": folder,
        "show": asked.get("show", False),
        "label": f"{asked['method']}, seed {seed}",
    }
    readout: Readout | None = made.parts.get("readout")
    steps = 0
    if readout is not None:
        assert isinstance(made.model, nn.Sequential)
        retention = read_out(made.model, stream, readout, **shown)
    else:
        steps = sum(-(-len(task.train) // asked["batch"]) for task in followed) * asked["epochs"]
        retention = follow(
            made.model, followed, **made.parts, epochs=asked["epochs"], batch=asked["batch"], lr=asked["lr"],
            gate_lr_scale=asked.get("gate_lr_scale", 1.0), clock=asked.get("clock", "task"),
            horizon=asked.get("horizon"), online=asked.get("online", False), test_every=asked.get("test_every"),
            new_optimizer=asked.get("new_optimizer", True), references=asked.get("references", False), seed=seed,
            checkpoint_seconds=60.0, **shown,
        )  # fmt: skip
    if joint:
        retention = tested(made.model, stream)
    seconds = max(time.monotonic() - started, _trained_seconds(folder))
    diagonal, last = retention.matrix.diagonal(), retention.matrix[-1]
    contexts: Contexts | None = made.parts.get("contexts")
    learner: Learner | None = made.parts.get("learner")
    kept = (0 if learner is None else learner.bytes) + (0 if readout is None else readout.bytes)
    if contexts is not None:
        kept += sum(4 * net.prototypes.numel() for net in contexts.nets.values())
    measured = dg.measure(made.model, some_test_rows(stream))
    return {
        "quality": {
            "accuracy": retention.acc, "acc": retention.acc, "learned": retention.learned,
            "forgetting": retention.forgetting, "retention": retention.to_dict(),
            **_plasticity(retention), **accuracies(answers(made.model, stream, contexts), stream),
            "drop": [0.0] * len(stream) if joint else (diagonal - last).tolist(),
            "overlap": overlaps(made.model, stream) if asked.get("overlap") else None,
            "open_overlap": open_overlaps(made.model, stream) if asked.get("open_overlap") else None,
            "contexts": None if contexts is None else contexts.opened,
        },
        "free": None if contexts is None or contexts.keeper is None else contexts.keeper.free,
        "macs": beside_dense(measured.macs, (stream.features, *asked.get("usual", asked["hidden"]), stream.classes)),
        "params": sum(int((p != 0).sum()) for p in made.model.parameters()), "bytes": kept,
        "told": {"scenario": stream.scenario, "known": stream.known},
        "seconds": round(seconds, 2), "steps_a_second": round(steps / seconds, 1),
    }  # fmt: skip


def _trained_seconds(folder: Path | None) -> float:
    """How long a run took, what came before an interruption included: its last checkpoint says it."""
    path = None if folder is None else folder / "last.safetensors"
    if path is None or not path.exists():
        return 0.0
    _, header = read_tensors(path, kind=("stream", KIND), with_tensors=False)
    return float(header["position"]["seconds"])


def _plasticity(retention: Retention) -> dict[str, float]:
    """How well rows were answered before the step on them, where that was counted."""
    if not retention.online:
        return {}
    return {"online": sum(retention.online) / len(retention.online), "ageing": retention.ageing}


def beside_dense(macs: Mapping[str, float], sizes: Sequence[int]) -> dict[str, float]:
    """MACs of a row beside those of one dense network, the same for all methods that are compared. A method's own body,
    all of it open, may cost many times as much: "body"."""
    dense, executed = float(dense_macs(sizes)), macs["executed"]
    body = macs.get("body", macs.get("dense", executed))
    return {"executed": executed, "gate": macs["gate"], "dense": dense, "relative": executed / dense, "body": body}


def tested(model: nn.Module, stream: Stream) -> Retention:
    """A model that has learned all tasks at once: every row of the matrix is the same."""
    found = Retention.empty(len(stream))
    questions = Questions(model, stream, None, next(model.parameters()).device)
    for number in range(len(stream)):
        found.matrix[number:, number] = questions.accuracy(number)
    return found


def answers(model: nn.Module, stream: Stream, contexts: Contexts | None = None) -> Answer:
    """From rows to classes, by a model that is told no more and no less than the stream tells."""
    questions = Questions(model, stream, contexts, next(model.parameters()).device)
    known = [] if contexts is None or len(contexts.known) < len(stream) else contexts.known  # those of the tasks
    return lambda x, number: questions.answers(x, number, known).cpu()


def accuracies(answer: Answer, stream: Stream) -> dict[str, Any]:
    """On the test rows of all tasks together, at the end: the fraction of right answers ("pooled"), and its mean over
    classes ("balanced"); and both for each task. The mean over tasks, ACC, counts a row of a small task more."""
    right, rows = torch.zeros(len(stream), stream.classes), torch.zeros(len(stream), stream.classes)
    for number, task in enumerate(stream):
        for x, y in task.test.batches(4096):
            right[number].index_add_(0, y, (answer(x, number) == y).float())
            rows[number].index_add_(0, y, torch.ones(len(y)))
    pooled, balanced = _both(right.sum(0), rows.sum(0))
    each = [
        dict(zip(("pooled", "balanced"), _both(*of_task), strict=True)) for of_task in zip(right, rows, strict=True)
    ]
    return {"pooled": pooled, "balanced": balanced, "by_task": each}


def _both(right_C: Tensor, rows_C: Tensor) -> tuple[float, float]:
    asked = rows_C > 0
    return float(right_C.sum() / rows_C.sum()), float((right_C[asked] / rows_C[asked]).mean())


def some_test_rows(stream: Stream) -> tuple[Tensor, Tensor]:
    """A few test rows of every task, for measuring cost."""
    each = max(20, 2000 // len(stream))
    rows = [torch.arange(min(each, len(task.test))) for task in stream]
    x = torch.cat([task.test.rows(index) for task, index in zip(stream, rows, strict=True)])
    return x, torch.cat([task.test.y[index] for task, index in zip(stream, rows, strict=True)])


@torch.no_grad()
def overlaps(model: nn.Module, stream: Stream) -> list[list[float]]:
    """How much the same hidden units are active for two tasks: sum of the smaller over sum of the larger rates."""
    rates, device = [], next(model.parameters()).device
    hidden: list[Tensor] = []
    readers = [model.get_submodule(site.consumer) for site in dg.find_sites(model) if not site.is_input]
    hooks = [m.register_forward_hook(lambda _m, args, _o: hidden.append(args[0])) for m in readers]
    with evaluating(model):
        for x in some_of_each(stream):
            hidden.clear()
            model(x.to(device))
            rates.append(torch.cat([(h != 0).float().mean(0) for h in hidden]))
    for hook in hooks:
        hook.remove()
    return _shared(torch.stack(rates))


@torch.no_grad()
def open_overlaps(model: nn.Module, stream: Stream) -> list[list[float]]:
    """The same of the blocks that gates open, whatever their units then say."""
    rates, device = [], next(model.parameters()).device
    with evaluating(model):
        for x in some_of_each(stream):
            with dg.usage(model) as used:
                model(x.to(device))
            rates.append(torch.cat([one.open.float().mean(0) for one in used.values()]))
    return _shared(torch.stack(rates))


def some_of_each(stream: Stream) -> list[Tensor]:
    """Test rows of every task, to see what is active."""
    return [task.test.rows(torch.arange(min(OVERLAP_ROWS, len(task.test)))) for task in stream]


def _shared(rates_TN: Tensor) -> list[list[float]]:
    smaller, larger = (of(rates_TN[:, None], rates_TN).sum(2) for of in (torch.minimum, torch.maximum))
    return [[round(v, 4) for v in row] for row in (smaller / larger.clamp(min=1e-9)).tolist()]
