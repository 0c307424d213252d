"""E5 and E6: does a network that learns one permutation after the other grow old? All methods on equal rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.distributed import choose_device
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.stream_methods import scaled
from dynamicgate.lab.runner import Job
from experiments.continual.stack import Stack

EVERY = 125  # steps between exchanges, and between recyclings
EXCHANGED, SILENT, REPLACED, DECAY = 0.1, 0.1, 1e-4, 0.99
METHODS: dict[str, dict[str, Any]] = {
    "dense": {},
    "fresh": {"fresh": True},
    "l2": {"l2": 1e-4},
    "l2 init": {"l2_init": 1e-3},
    "shrink and perturb": {"shrink": 1e-5, "noise": 1e-4},
    "layer norm": {"norm": True},
    "redo": {"recycle": "silent"},
    "continual backprop": {"recycle": "useless"},
    "static": {"density": 0.5},
    "set": {"density": 0.5, "exchange": "random"},
    "rigl": {"density": 0.5, "exchange": "gradient"},
    "set + recycling": {"density": 0.5, "exchange": "random", "recycle": "silent"},
    "rigl + recycling": {"density": 0.5, "exchange": "gradient", "recycle": "silent"},
}


class Side:
    """The networks of all methods, which learn the same rows in the same order."""

    def __init__(self, methods: list[str], sizes: tuple[int, ...], lr: float, seed: int, device: torch.device) -> None:
        """New networks, all with the same weights."""
        self.methods, self.sizes, self.lr, self.seed, self.device = methods, sizes, lr, seed, device
        self.stack = self._same(seed)
        self.first = [p.clone() for p in self.stack.parameters]
        self.norm = self._which("norm")
        self.l2, self.l2_init = self._value("l2"), self._value("l2_init")
        self.shrink, self.noise = self._value("shrink"), self._value("noise")
        self.fresh, self.sparse = self._which("fresh"), self._which("density")
        self.by = {kind: self._is("exchange", kind) for kind in ("random", "gradient")}
        self.recycles = {kind: self._is("recycle", kind) for kind in ("silent", "useless")}
        for layer in range(len(sizes) - 2):
            self.stack.sparsify_(layer, 0.5, seed=seed + layer, which_K=self.sparse)
        self.hidden_sizes = sizes[1:-1]
        count = len(methods)
        self.activity = [torch.zeros(count, n, device=device) for n in self.hidden_sizes]
        self.mean = [torch.zeros(count, n, device=device) for n in self.hidden_sizes]
        self.utility = [torch.zeros(count, n, device=device) for n in self.hidden_sizes]
        self.right = torch.zeros(count, device=device)
        self.grads = [torch.zeros_like(p) for p in self.stack.parameters]
        self.updates, self.due = 0, 0.0

    def _same(self, seed: int) -> Stack:
        one = Stack.draw(1, self.sizes, seed=seed, device=self.device)
        many = [[p.expand(len(self.methods), *p.shape[1:]).clone() for p in part] for part in (one.weights, one.biases)]
        stack = Stack(many[0], many[1], [None] * len(one.weights))
        stack.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in stack.parameters]
        stack.steps = torch.zeros((), device=self.device)
        return stack

    def _value(self, name: str) -> Tensor:
        return torch.tensor([float(METHODS[m].get(name, 0.0)) for m in self.methods], device=self.device)

    def _which(self, name: str) -> Tensor:
        return torch.tensor([bool(METHODS[m].get(name)) for m in self.methods], device=self.device)

    def _is(self, name: str, value: str) -> Tensor:
        return torch.tensor([METHODS[m].get(name) == value for m in self.methods], device=self.device)

    def step(self, x_BD: Tensor, y_B: Tensor) -> None:
        """Count who answers right, then learn. Nothing here waits for the device, so that a CUDA graph can hold it."""
        stack, count = self.stack, len(self.methods)
        x, y = x_BD.expand(count, *x_BD.shape), y_B.expand(count, len(y_B))
        hidden: list[Tensor] = []
        for p in stack.parameters:
            p.requires_grad_(True)
        scores = stack.forward(x, self.norm, hidden)
        losses = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(count, -1).mean(1)
        grads = torch.autograd.grad(losses.sum(), stack.parameters)
        for p in stack.parameters:
            p.requires_grad_(False)
        with torch.no_grad():
            self.right += (scores.argmax(2) == y).float().sum(1)
            self._watch(hidden)
            for kept, grad, p, first in zip(self.grads, grads, stack.parameters, self.first, strict=True):
                shape = (-1, *[1] * (p.ndim - 1))
                pulled = 2.0 * self.l2.view(shape) * p + 2.0 * self.l2_init.view(shape) * (p - first)
                kept.copy_(grad + pulled)
            stack.adam_(self.grads, self.lr)
            for number, p in enumerate(stack.parameters):
                shape = (-1, *[1] * (p.ndim - 1))
                shaken = self.noise.view(shape) * torch.randn_like(p)
                mask = stack.masks[number] if number < len(stack.weights) else None
                p.mul_(1.0 - self.shrink.view(shape)).add_(shaken if mask is None else shaken * mask)

    def _watch(self, hidden: list[Tensor]) -> None:
        for layer, h in enumerate(hidden):
            self.activity[layer] += h.abs().mean(1)
            apart = (h - self.mean[layer][:, None]).abs().mean(1)
            outgoing = self.stack.weights[layer + 1].abs().sum(2)
            incoming = self.stack.weights[layer].abs().sum(1).clamp(min=1e-12)
            self.utility[layer].lerp_(outgoing * apart / incoming, 1.0 - DECAY)
            self.mean[layer].lerp_(h.mean(1), 1.0 - DECAY)

    @torch.no_grad()
    def between(self) -> None:
        """Every few steps: exchange connections and recycle units, each where its method does so."""
        self.updates += 1
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + self.updates)
        for layer in range(len(self.hidden_sizes)):
            weight = self.stack.weights[layer]
            random = torch.rand(weight.shape, generator=draw).to(self.device)
            dense = self.grads[layer].abs()
            grow = torch.where(self.by["gradient"][:, None, None], dense, random)
            self.stack.exchange_(layer, grow, EXCHANGED, None, self.by["random"] | self.by["gradient"])
        self.due += REPLACED * EVERY * self.hidden_sizes[0]
        replaced, self.due = int(self.due), self.due - int(self.due)
        for layer, n in enumerate(self.hidden_sizes):
            activity = self.activity[layer]
            silent = (activity <= SILENT * activity.mean(1, keepdim=True)) & self.recycles["silent"][:, None]
            useless = torch.zeros_like(silent)
            if replaced:
                worst = self.utility[layer].argsort(dim=1)[:, : min(replaced, n)]
                useless.scatter_(1, worst, True)
            self._recycle(layer, silent | (useless & self.recycles["useless"][:, None]), draw)
            activity.zero_()

    def _recycle(self, layer: int, chosen_KN: Tensor, draw: torch.Generator) -> None:
        stack = self.stack
        weight = stack.weights[layer]
        mask = stack.masks[layer]
        inputs = weight.shape[1] * torch.where(self.sparse, 0.5, 1.0)[:, None, None]
        drawn = (2.0 * torch.rand(weight.shape, generator=draw).to(self.device) - 1.0) / inputs.sqrt()
        drawn = drawn if mask is None else drawn * mask
        layers = len(stack.weights)
        places = [(layer, chosen_KN[:, None, :]), (layer + 1, chosen_KN[:, :, None]), (layers + layer, chosen_KN)]
        weight.copy_(torch.where(chosen_KN[:, None, :], drawn, weight))
        stack.weights[layer + 1].masked_fill_(chosen_KN[:, :, None], 0.0)
        stack.biases[layer].masked_fill_(chosen_KN, 0.0)
        for number, at in places:
            for moment in stack.moments[number]:
                moment.masked_fill_(at, 0.0)
        self.mean[layer].masked_fill_(chosen_KN, 0.0)
        utility = self.utility[layer]  # a new unit is not replaced at once
        utility.copy_(torch.where(chosen_KN, utility.amax(1, keepdim=True), utility))

    @torch.no_grad()
    def new_task(self, task: int) -> None:
        """The networks that are new in every task begin anew."""
        if not bool(self.fresh.any()):
            return
        new = self._same(7919 * (self.seed + 1) + task)
        for p, drawn, moments in zip(self.stack.parameters, new.parameters, self.stack.moments, strict=True):
            at = self.fresh.view(-1, *[1] * (p.ndim - 1))
            p.copy_(torch.where(at, drawn, p))
            for moment in moments:
                moment.masked_fill_(at, 0.0)

    @property
    def silent(self) -> list[float]:
        """The fraction of units of the first layer that are hardly active."""
        mean = self.mean[0]
        return (mean <= 0.01 * mean.mean(1, keepdim=True)).float().mean(1).tolist()


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """All methods on one order of tasks and rows."""
    asked, device = job.settings, choose_device(job.device)
    torch.manual_seed(job.seed)
    methods = asked.get("methods") or list(METHODS)
    flat = scaled(splits)
    x, y = flat.train.values.to(device), flat.train.y.to(device)
    sizes = (x.shape[1], *asked["hidden"], int(y.max()) + 1)
    side = Side(methods, sizes, asked["lr"], job.seed, device)
    batch, rows = asked["batch"], min(asked["rows"], len(x))
    static_x, static_y = x[:batch].clone(), y[:batch].clone()
    step = captured(side, static_x, static_y) if device.type == "cuda" else None
    started, online, silent, steps = time.monotonic(), list[list[float]](), list[list[float]](), 0
    for task in range(asked["tasks"]):
        draw = torch.Generator().manual_seed(1_000_003 * job.seed + task)
        order, chosen = torch.randperm(x.shape[1], generator=draw), torch.randperm(len(x), generator=draw)[:rows]
        task_x, task_y = x[chosen.to(device)][:, order.to(device)], y[chosen.to(device)]
        side.new_task(task)
        side.right.zero_()
        for at in range(0, rows - batch + 1, batch):
            if step is None:
                side.step(task_x[at : at + batch], task_y[at : at + batch])
            else:
                static_x.copy_(task_x[at : at + batch])
                static_y.copy_(task_y[at : at + batch])
                step()
            steps += 1
            if steps % EVERY == 0:
                side.between()
        online.append([round(v / (rows // batch * batch), 5) for v in side.right.tolist()])
        silent.append([round(v, 3) for v in side.silent])
    curves = {m: [row[k] for row in online] for k, m in enumerate(methods)}
    seconds = time.monotonic() - started
    return {
        "model": job.model, "seed": job.seed, "settings": asked, "macs": {"relative": 1.0}, "params": 0,
        "quality": {"accuracy": max(curves[methods[0]]), "online": curves,
                    "silent": {m: silent[-1][k] for k, m in enumerate(methods)}},
        "connections": {m: int(n) for m, n in zip(methods, side.stack.nonzero.tolist(), strict=True)},
        "seconds": round(seconds, 1), "steps_a_second": round(steps / seconds, 1),
    }  # fmt: skip


def captured(side: Side, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The step as one CUDA graph: a step of small networks is mostly the time to start its kernels. The masks and all
    state must be changed in place from now on; `exchange_` gives a new mask, so that the graph reads a copy."""
    masks = [None if mask is None else mask.clone() for mask in side.stack.masks]
    side.stack.masks = list(masks)
    before = [p.clone() for p in side.stack.parameters]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            side.step(x, y)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.step(x, y)
    for p, old in zip(side.stack.parameters, before, strict=True):
        p.copy_(old)
    for value in [*(m for pair in side.stack.moments for m in pair), side.stack.steps, side.right, *side.activity,
                  *side.mean, *side.utility]:  # fmt: skip
        value.zero_()

    def step() -> None:
        for held, now in zip(masks, side.stack.masks, strict=True):
            if held is not None and now is not None and now is not held:
                held.copy_(now)
        side.stack.masks = list(masks)
        graph.replay()

    return step
