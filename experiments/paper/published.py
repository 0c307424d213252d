"""The training loop that all published notebooks share, and the measurement of the models it trains.

A plain loop: constant learning rate, weight decay on everything, schedules that change once an epoch, the last weights.
What `dynamicgate.fit` does better is left out on purpose: recipes "as published" repeat what was done.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.full_width import relative_to
from dynamicgate.accounting.measurement import measure
from dynamicgate.accounting.validation import evaluate
from dynamicgate.data import Arrays, batches
from dynamicgate.distributed import choose_device
from dynamicgate.files import write_text
from dynamicgate.gating.gate import Decision
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import dense_macs
from dynamicgate.lab.methods.samples import SampleStats
from dynamicgate.lab.methods.train_one import SAMPLES_FILE
from dynamicgate.lab.runner import Change, Job, Step
from dynamicgate.masks import connections, put_mask_
from dynamicgate.nn import GatedMLP, Normalize
from experiments.paper.collapses import GateReadings


def nothing(*_: object) -> None:
    """Does nothing."""


@dataclass
class Notebook:
    """A model with everything that its notebook does to it.

    before_epoch: sets what is scheduled, epochs counted from 0. penalty: added to the loss. after_backward: clips
        gradients, updates masks. claimed: relative MACs by the formula of the notebook. best: whether an epoch is the
        best so far by its validation metrics (None: the last one counts). then: a second training that continues the
        first, such as fine-tuning. after: further results. each_epoch: whether the test accuracy after every epoch is
        recorded, which decides nothing.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int
    before_epoch: Callable[[int], None] = nothing
    penalty: Callable[[Usage], Tensor] | None = None
    after_backward: Callable[[], None] = nothing
    after_step: Callable[[], None] = nothing
    class_weights: Tensor | None = None
    claimed: Callable[[dict[str, Any]], float] | None = None
    best: Callable[[dict[str, float]], bool] | None = None
    then: Callable[[], Notebook] | None = None
    after: Callable[[], dict[str, Any]] | None = None
    each_epoch: bool = False
    readings: GateReadings = field(default_factory=GateReadings)

    def step(self, x: Tensor, y: Tensor) -> Usage | None:
        """One step of the optimizer; what the gates did, where there is a penalty on it."""
        used = None
        if self.penalty is None:
            loss = F.cross_entropy(self.model(x), y, self.class_weights)
        else:
            with usage(self.model) as used:
                loss = F.cross_entropy(self.model(x), y, self.class_weights)
            loss = loss + self.penalty(used)
        loss.backward()
        self.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after_step()
        for layer in _linears(self.model):  # "mask kept": what was pruned stays at zero
            mask = connections(layer)
            if mask is not None:
                layer.weight.data.mul_(mask)
        return used


Make = Callable[[dict[str, Any], Splits, torch.device], Notebook]


def train_published(job: Job, splits: Splits, make: Make) -> dict[str, Any]:
    """Run a notebook and measure its model on the test rows."""
    device = choose_device(job.device)
    torch.manual_seed(job.seed)
    start = time.monotonic()
    notebook: Notebook | None = make(job.settings, splits, device)
    assert notebook is not None
    model, steps, final = notebook.model, 0, notebook
    there, accuracies = replace(splits, train=splits.train.to(device)), list[float]()
    while notebook is not None:
        final = notebook
        steps += _epochs(notebook, job, there, accuracies)
        notebook = notebook.then() if notebook.then else None
    model.eval()
    run = measure_notebook(job, splits, model, steps, time.monotonic() - start, final)
    return {**run, "accuracy_by_epoch": accuracies} if accuracies else run


def measure_notebook(
    job: Job, splits: Splits, model: nn.Module, steps: int, seconds: float, notebook: Notebook
) -> dict[str, Any]:
    """A run as `run_one` returns it, with `claimed`: relative MACs as the notebook counts them."""
    stats = SampleStats()
    full = dense_macs((splits.train.features, *job.settings["hidden"], splits.classes))
    found = relative_to(measure(model, splits.test, watch=stats.add), full).to_dict()
    run = {
        "model": job.model,
        "seed": job.seed,
        "data": splits.name,
        **{key: found[key] for key in ("quality", "macs", "proxies", "layers", "params", "samples", "gates", "notes")},
        "seconds": seconds,
        "budget": None,
        "sparsity": None,
        "valid": evaluate(model, splits.valid, MacCounter.for_mlp(model)) if len(splits.valid) else None,
        "steps": steps,
        "collapses": [str(found) for found in notebook.readings.collapses],
        "settings": job.settings,
        "claimed": notebook.claimed(found) if notebook.claimed else found["macs"]["relative"],
        **(notebook.after() if notebook.after else {}),
    }
    write_text(job.folder / SAMPLES_FILE, json.dumps(stats.to_dict(splits)))
    write_text(job.folder / "run.json", json.dumps(run))
    return run


def step_published(job: Job, splits: Splits, make: Make) -> Step:
    """A function that takes the next step of a notebook's training."""
    device = choose_device(job.device)
    torch.manual_seed(job.seed)
    notebook = make(job.settings, splits, device)
    train = splits.train.to(device)
    rows = chain.from_iterable(_rows(job, train, epoch) for epoch in count())
    notebook.before_epoch(0)
    notebook.model.train()

    def step() -> None:
        notebook.step(*next(rows))

    return step


def _epochs(notebook: Notebook, job: Job, splits: Splits, accuracies: list[float]) -> int:
    steps, kept, counter = 0, None, MacCounter.for_mlp(notebook.model)
    of_epoch = math.ceil(len(splits.train) / job.settings["batch"])
    for epoch in range(notebook.epochs):
        notebook.before_epoch(epoch)
        notebook.model.train()
        for at, (x, y) in enumerate(_rows(job, splits.train, epoch)):
            used = notebook.step(x, y)
            if used is not None:
                notebook.readings.add(notebook.model, used, (epoch + at / of_epoch) / notebook.epochs)
            steps += 1
        if notebook.each_epoch:
            accuracies.append(evaluate(notebook.model, splits.test, counter)["accuracy"])
        if notebook.best is not None and notebook.best(evaluate(notebook.model, splits.valid, counter)):
            kept = [parameter.detach().clone() for parameter in notebook.model.parameters()]
    if kept is not None:  # only parameters: tau and theta stay where the last epoch left them, as published
        with torch.no_grad():
            for parameter, value in zip(notebook.model.parameters(), kept, strict=True):
                parameter.copy_(value)
    return steps


def _rows(job: Job, train: Arrays, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    for index in batches(len(train), job.settings["batch"], seed=job.seed, epoch=epoch):
        index = index.to(train.y.device)
        yield train.rows(index, training=True), train.y[index]


def whole_training(splits: Splits) -> Splits:
    """The validation rows are training rows as well: the notebook has no validation."""
    splits = in_memory(splits)
    a, b = splits.train, splits.valid
    assert isinstance(a.x, Tensor)
    assert isinstance(b.x, Tensor)
    train = replace(a, x=torch.cat([a.x, b.x]), y=torch.cat([a.y, b.y]))
    return replace(splits, train=train, valid=replace(b, x=b.x[:0], y=b.y[:0]))


def in_memory(splits: Splits) -> Splits:
    """Every row in one tensor, as stored, so that a GPU can hold them all."""

    def held(part: Arrays) -> Arrays:
        return part if isinstance(part.x, Tensor) else replace(part, x=part.x[torch.arange(len(part))])

    return replace(splits, train=held(splits.train), valid=held(splits.valid), test=held(splits.test))


WHOLE_TRAINING = Change("whole_training", whole_training)
IN_MEMORY = Change("in_memory", in_memory)


def network(
    asked: dict[str, Any], splits: Splits, device: torch.device, dropout: float = 0.0, activation: str = "relu"
) -> GatedMLP:
    """The dense network of a notebook."""
    sizes = (splits.train.features, *asked["hidden"], splits.classes)
    normalize = Normalize(splits.mean, splits.std)
    return GatedMLP(sizes, dropout=dropout, normalize=normalize, activation=activation).to(device)


def optimizer_of(asked: dict[str, Any], model: nn.Module, lr: float | None = None) -> torch.optim.Optimizer:
    """Adam or AdamW with one learning rate and one decay for everything, except for gates with a rate of their own."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[asked["optimizer"]]
    gates = [parameter for gate in named_gates(model).values() for parameter in gate.parameters()]
    mine = {id(parameter) for parameter in gates}
    groups = [{"params": [p for p in model.parameters() if id(p) not in mine], "lr": lr or asked["lr"]}]
    if gates:
        groups.append({"params": gates, "lr": asked.get("gate_lr", lr or asked["lr"])})
    return kind(groups, weight_decay=asked["weight_decay"], fused=True)


def linear_schedule(ends: Sequence[float], first: int, last: int) -> Callable[[int], float]:
    """A value for each epoch: the first end up to epoch `first`, a straight line to the other at `last` and after."""
    start, stop = ends
    return lambda epoch: start + (stop - start) * min(1.0, max(0.0, (epoch - first) / (last - first)))


def set_gates(model: nn.Module, *, tau: float | None = None, theta: float | None = None) -> None:
    """Temperature and threshold of all gates."""
    for gate in named_gates(model).values():
        if tau is not None:
            gate.tau.fill_(tau)
        if theta is not None:
            gate.theta.fill_(theta)


def without_task_gradient_(model: nn.Module) -> None:
    """The inverted straight-through estimator: units are multiplied by p, and its gradient is cut off."""
    for gate in named_gates(model).values():
        gate.register_forward_hook(lambda _gate, _args, d: d._replace(scale=d.p.detach()))


def gate_before_relu_(model: nn.Module) -> None:
    """Units are closed before the ReLU: the value is the same, but a closed unit gives its gate no gradient."""
    for gate in named_gates(model).values():
        gate.register_forward_hook(lambda _gate, _args, d: d._replace(scale=_open_only(d)))


def open_at_least_(model: nn.Module, fraction: float) -> None:
    """If less than this fraction of the units is open, those at or above the k-th largest p open: ties open all."""

    def at_least(_gate: nn.Module, _args: object, d: Decision) -> Decision:
        if float(d.open.mean()) >= fraction:
            return d
        k = int(fraction * d.p.shape[-1])
        least = d.p.detach().topk(k, dim=-1).values[..., -1:]
        g_BG = (d.p.detach() >= least).to(d.open)
        return d._replace(open=g_BG, routed=g_BG, scale=g_BG + (d.p - d.p.detach()))

    for gate in named_gates(model).values():
        gate.register_forward_hook(at_least)


def _open_only(d: Decision) -> Tensor:
    return d.open * (1.0 + d.p - d.p.detach())


def prune_at_start_(layer: nn.Linear, fraction: float) -> None:
    """Mask the smallest weights of a layer before training, when they are still random."""
    size = layer.weight.detach().abs()
    put_mask_(layer, size > size.flatten().kthvalue(round(fraction * size.numel())).values)


def prune_together_(model: nn.Module, fraction: float, *, keep_mask: bool) -> None:
    """Zero the smallest weights, compared over all layers; with `keep_mask` they stay zero."""
    layers = list(_linears(model))
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in layers])
    cut = sizes.cpu().kthvalue(round(fraction * len(sizes))).values.to(sizes.device)
    for layer in layers:
        mask = layer.weight.detach().abs() > cut
        put_mask_(layer, mask)
        if not keep_mask:
            del layer.mask


def nonzero_fraction(model: nn.Module) -> float:
    """Fraction of the weights that are not exactly zero."""
    weights = [layer.weight.detach() for layer in _linears(model)]
    return sum(int((w != 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def readers_only(model: nn.Module) -> float:
    """Relative MACs of static gates if a closed unit saves the MACs that read it, but not those that compute it."""
    counter, g = MacCounter.for_mlp(model, readers_only=True), hard_gates(model)
    return float(counter.executed({name: g_G.unsqueeze(0) for name, g_G in g.items()})) / counter.dense


def hard_gates(model: nn.Module) -> dict[str, Tensor]:
    """The decisions of static gates: the same for every input, whatever multiplies the units."""
    unused_input = torch.zeros(1, 1)
    with torch.no_grad():
        return {name: gate(unused_input.to(gate.tau.device)).open[0] for name, gate in named_gates(model).items()}


def logit(p: float) -> float:
    """The logit of a probability, without a temperature, as published."""
    return math.log(p / (1.0 - p))


def _linears(model: nn.Module) -> Iterator[nn.Linear]:
    inside = {id(m) for gate in named_gates(model).values() for m in gate.modules()}
    return (m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in inside)
