"""Methods of continual learning by name, each as a model and what goes into `follow` with it, and runs of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.continual import (
    EWC,
    SI,
    Contexts,
    Keeper,
    Learner,
    Replay,
    Retention,
    Stream,
    drifting,
    follow,
    joined,
    labels_shuffled,
    permuted,
    rotated,
    some_rows,
    split,
)
from dynamicgate.continual.learners import LwF
from dynamicgate.continual.replay import AGEM, DarkReplay
from dynamicgate.continual.streams import Parts
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import dense_macs
from dynamicgate.modules import evaluating
from dynamicgate.sparsity import RigL, Static
from dynamicgate.sparsity.consolidation import Consolidation

Answer = Callable[[Tensor], Tensor]
OVERLAP_ROWS = 1000
STREAMS = ("permuted", "rotated", "drifting", "still", "split", "labels")


class Made(NamedTuple):
    """A model, and what goes into `follow` with it."""

    model: nn.Module
    parts: dict[str, Any]


def scaled(splits: Splits) -> Splits:
    """The same rows, flat, with mean 0 and standard deviation 1 over all features together, where the dataset has one
    mean: that of a feature alone would tell the first task more than a stream knows, and moves with the features."""
    flat = splits.flat()
    if not isinstance(flat.mean, float) or not isinstance(flat.std, float):
        return flat
    mean, std = flat.mean, flat.std
    train, valid, test = (
        replace(part, x=(part.values - mean) / std, prepare=None) for part in (flat.train, flat.valid, flat.test)
    )
    return replace(flat, train=train, valid=valid, test=test, mean=0.0, std=1.0)


def stream_of(data: Parts, asked: dict[str, Any], seed: int) -> Stream:
    """The stream that a run is asked for. Permutations are drawn from the seed; settings were tuned on others."""
    kind, known = asked.get("stream", "permuted"), asked.get("known", "boundaries")
    if kind not in STREAMS:
        raise ValueError(f"unknown stream {kind!r}: expected one of {', '.join(STREAMS)}")
    if kind == "permuted":
        stream = permuted(data, asked["tasks"], seed=seed, known=known)
    elif kind == "rotated":
        stream = rotated(data, asked["tasks"], known=known)
    elif kind == "labels":
        stream = labels_shuffled(data, asked["tasks"], seed=seed, known=known)
    elif kind == "drifting":
        stream = drifting(data, asked["tasks"], seed=seed)
    elif kind == "still":
        stream = permuted(data, 1, seed=seed)
    else:
        order = class_order(data, seed) if asked.get("shuffled") else None
        stream = split(data, asked.get("classes", 2), scenario=asked.get("scenario", "class"), order=order)
    rows = asked.get("rows")
    return stream if rows is None else some_rows(stream, min(rows, *(len(t.train) for t in stream)), seed=seed)


def class_order(data: Parts, seed: int) -> list[int]:
    """The classes in an order of the seed."""
    present = sorted(set(data.train.y.tolist()))
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(seed))
    return [present[place] for place in order.tolist()]


def mlp(stream: Stream, hidden: list[int], gate: dg.GateConfig | None = None) -> nn.Module:
    """A network for a stream."""
    return dg.nn.GatedMLP((stream.features, *hidden, stream.classes), gate)


def _learner(make: Callable[..., Learner], **options: Any) -> Callable[[Stream, dict[str, Any]], Made]:
    def build(stream: Stream, asked: dict[str, Any]) -> Made:
        model = mlp(stream, asked["hidden"])
        return Made(model, {"learner": make(model, **{**options, **asked.get("learner", {})})})

    return build


def _dense(stream: Stream, asked: dict[str, Any]) -> Made:
    return Made(mlp(stream, asked["hidden"]), {})


def _small(stream: Stream, asked: dict[str, Any]) -> Made:
    """A dense network of about the cost that gates are asked for."""
    scale = asked.get("budget", 0.35)
    return Made(mlp(stream, [max(4, round(scale * width)) for width in asked["hidden"]]), {})


def _gate(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"], dg.GateConfig(block=asked.get("block")))
    return Made(model, {"budget": dg.Budget(target=asked.get("budget", 0.35))} if "budget" in asked else {})


def _top_k(stream: Stream, asked: dict[str, Any]) -> Made:
    return Made(mlp(stream, asked["hidden"], dg.GateConfig(top_k=0.1)), {})


def _rigl(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"])
    return Made(model, {"sparsifier": RigL(model, asked.get("density", 0.2), every=asked.get("every"))})


def _static(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"])
    return Made(model, {"sparsifier": Static(model, asked.get("density", 0.2))})


def _gate_rigl(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"], dg.GateConfig(block=asked.get("block", 16)))
    every = asked.get("every")
    if every is not None and every <= 0:
        return Made(model, {"sparsifier": Static(model, asked.get("density", 0.2))})
    after = asked.get("keep_after")  # exchanges that a connection has survived when it is kept
    keeper = None if after is None else Consolidation(model, after=after)
    sparsifier = RigL(model, asked.get("density", 0.2), every=every, until=1.0, keeper=keeper)
    return Made(model, {"sparsifier": sparsifier, **({} if keeper is None else {"keeper": keeper})})


def _keep(stream: Stream, asked: dict[str, Any]) -> Made:
    """Blocks of its own for every context; sparse by RigL from a dense start where a density is asked for."""
    tasks, width = len(stream), asked["width"]
    model = mlp(stream, [tasks * width], dg.GateConfig(kind="context", block=width, contexts=tasks))
    keeper = Keeper(model)
    sparsifier = None
    if asked.get("density"):
        sparsifier = RigL(model, asked["density"], initial_density=1.0, every=asked.get("every"), keeper=keeper)
    contexts = Contexts(model, keeper, sparsifier, share=1, reuse=asked.get("reuse", 0))
    return Made(model, {"contexts": contexts, **({} if sparsifier is None else {"sparsifier": sparsifier})})


def _xdg(stream: Stream, asked: dict[str, Any]) -> Made:
    """Context-dependent gating: a fifth of the units, at random, named by our router instead of a task's number."""
    blocks = 20
    hidden = asked["hidden"]
    config = dg.GateConfig(kind="context", block=max(1, hidden[0] // blocks), contexts=len(stream))
    model = mlp(stream, hidden, config)
    return Made(model, {"contexts": Contexts(model, share=max(1, blocks // 5), blocks="random")})


METHODS: dict[str, Callable[[Stream, dict[str, Any]], Made]] = {
    "naive": _dense, "joint": _dense, "dense": _dense, "small": _small, "gate": _gate, "top-k": _top_k,
    "static-sparse": _static, "rigl": _rigl, "gate+rigl": _gate_rigl, "keep": _keep, "xdg": _xdg,
    "ewc": _learner(EWC), "si": _learner(SI), "lwf": _learner(LwF), "er": _learner(Replay),
    "der++": _learner(DarkReplay), "a-gem": _learner(AGEM),
}  # fmt: skip


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
    made = METHODS[asked["method"]](stream, asked)
    retention = follow(
        made.model, followed, **made.parts, epochs=asked["epochs"], batch=asked["batch"], lr=asked["lr"],
        gate_lr_scale=asked.get("gate_lr_scale", 1.0), clock=asked.get("clock", "task"),
        horizon=asked.get("horizon"), online=asked.get("online", False), test_every=asked.get("test_every"),
        device=device, seed=seed, out=folder, checkpoint_seconds=60.0, show=asked.get("show", False),
        label=f"{asked['method']}, seed {seed}",
    )  # fmt: skip
    if joint:
        retention = tested(made.model, stream)
    steps = sum(-(-len(task.train) // asked["batch"]) for task in followed) * asked["epochs"]
    seconds = time.monotonic() - started
    diagonal, last = retention.matrix.diagonal(), retention.matrix[-1]
    contexts: Contexts | None = made.parts.get("contexts")
    learner: Learner | None = made.parts.get("learner")
    kept = 0 if learner is None else learner.bytes
    if contexts is not None:
        kept += sum(4 * net.prototypes.numel() for net in contexts.nets.values())
    measured = dg.measure(made.model, some_test_rows(stream))
    return {
        "quality": {
            "accuracy": retention.acc, "acc": retention.acc, "learned": retention.learned,
            "forgetting": retention.forgetting, "retention": retention.to_dict(),
            **accuracies(answers(made.model), stream),
            "drop": [0.0] * len(stream) if joint else (diagonal - last).tolist(),
            "overlap": overlaps(made.model, stream) if asked.get("overlap") else None,
            "open_overlap": open_overlaps(made.model, stream) if asked.get("open_overlap") else None,
            "contexts": None if contexts is None else contexts.opened,
        },
        "free": None if contexts is None or contexts.keeper is None else contexts.keeper.free,
        "macs": beside_dense(measured.macs, (stream.features, *asked.get("usual", asked["hidden"]), stream.classes)),
        "params": sum(int((p != 0).sum()) for p in made.model.parameters()), "bytes": kept,
        "told": {"scenario": stream.scenario, "known": stream.known},
        "seconds": round(seconds, 1), "steps_a_second": round(steps / seconds, 1),
    }  # fmt: skip


def beside_dense(macs: Mapping[str, float], sizes: Sequence[int]) -> dict[str, float]:
    """MACs of a row beside those of one dense network, the same for all methods that are compared. A method's own body,
    all of it open, may cost many times as much: "body"."""
    dense, executed = float(dense_macs(sizes)), macs["executed"]
    body = macs.get("body", macs.get("dense", executed))
    return {"executed": executed, "gate": macs["gate"], "dense": dense, "relative": executed / dense, "body": body}


def tested(model: nn.Module, stream: Stream) -> Retention:
    """A model that has learned all tasks at once: every row of the matrix is the same."""
    found = Retention.empty(len(stream))
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model):
        for j, task in enumerate(stream):
            right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in task.test.batches(4096))
            found.matrix[j:, j] = right / len(task.test)
    return found


def answers(model: nn.Module) -> Answer:
    """From rows to classes, by a model."""
    device = next(model.parameters()).device

    @torch.no_grad()
    def answer(x: Tensor) -> Tensor:
        with evaluating(model):
            return model(x.to(device)).argmax(1).cpu()

    return answer


def accuracies(answer: Answer, stream: Stream) -> dict[str, Any]:
    """On the test rows of all tasks together, at the end: the fraction of right answers ("pooled"), and its mean over
    classes ("balanced"); and both for each task. The mean over tasks, ACC, counts a row of a small task more."""
    right, rows = torch.zeros(len(stream), stream.classes), torch.zeros(len(stream), stream.classes)
    for number, task in enumerate(stream):
        for x, y in task.test.batches(4096):
            right[number].index_add_(0, y, (answer(x) == y).float())
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
