"""Networks that learn the same rows side by side, one for each method and seed, and what keeps them from growing old.

Shapes in names: K networks, that is S seeds of each of M methods, those of a method together; B rows, D features, N
units of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.sparsity.unit_utility import choose_useless_, corrected, moved_to_bias, update_utility_
from experiments.continual.stack import Stack

EXCHANGED = 0.1
DENSITY = 0.5
RANK, OPEN, NUDGE = 8, 0.5, 1e-2  # of gates: rank, the fraction of units they are to open, and how fast they are held
BY_ACTIVITY = {"recycle": "silent", "silent": 0.1}  # ReDo: units below a tenth of the mean activity of their layer
BY_UTILITY = {"recycle": "useless", "rate": 1e-4, "maturity": 100}  # continual backprop, as published
METHODS: dict[str, dict[str, Any]] = {
    "dense": {},
    "fresh": {"fresh": True},
    "l2": {"l2": 1e-4},
    "l2 init": {"l2_init": 1e-3},
    "shrink and perturb": {"shrink": 1e-5, "noise": 1e-4},
    "layer norm": {"norm": True},
    "redo": {**BY_ACTIVITY},
    "continual backprop": {**BY_UTILITY},
    "static": {"density": DENSITY},
    "set": {"density": DENSITY, "exchange": "random"},
    "rigl": {"density": DENSITY, "exchange": "gradient"},
    "gates": {"gates": True},
    "set + recycling": {"density": DENSITY, "exchange": "random", **BY_ACTIVITY},
    "set + continual backprop": {"density": DENSITY, "exchange": "random", **BY_UTILITY},
    "set + recycling + l2": {"density": DENSITY, "exchange": "random", **BY_ACTIVITY, "l2": 1e-4},
    "set + continual backprop + l2": {"density": DENSITY, "exchange": "random", **BY_UTILITY, "l2": 1e-4},
    "rigl + recycling": {"density": DENSITY, "exchange": "gradient", **BY_ACTIVITY},
    "set + recycling + gates": {"density": DENSITY, "exchange": "random", **BY_ACTIVITY, "gates": True},
    "static + l2": {"density": DENSITY, "l2": 1e-4},
    "set + l2": {"density": DENSITY, "exchange": "random", "l2": 1e-4},
    "rigl + l2": {"density": DENSITY, "exchange": "gradient", "l2": 1e-4},
}


class Side:
    """The networks of all methods and seeds. Those of a seed learn the same rows in the same order."""

    def __init__(
        self,
        methods: list[str],
        sizes: tuple[int, ...],
        lr: float,
        seeds: Sequence[int],
        device: torch.device,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """New networks; all methods of a seed begin with the same weights. options: changes of a method, or of the one
        that it is "like"."""
        changed = options or {}
        self.own = {m: {**METHODS[changed.get(m, {}).get("like", m)], **changed.get(m, {})} for m in methods}
        self.methods, self.sizes, self.lr, self.seeds, self.device = methods, sizes, lr, list(seeds), device
        self.names = [name for name in methods for _ in self.seeds]
        self.gated = self._which("gates")
        self.stack = self._same(self.seeds)
        self.first = [p.clone() for p in self.stack.parameters]
        self.norm = self._which("norm")
        fresh = [bool(self.own[name].get("fresh")) for name in methods]
        if any(fresh) and not all(fresh):
            raise ValueError("networks that are new in every task begin Adam anew as well: run 'fresh' on its own")
        self.fresh, self.sparse = any(fresh), self._which("density")
        self.by = {kind: self._is("exchange", kind) for kind in ("random", "gradient")}
        self.recycles = self._is("recycle", "silent")
        self.hidden_sizes, count = sizes[1:-1], len(self.names)
        if bool(self.sparse.any()):
            for layer in range(len(self.hidden_sizes)):
                self.stack.sparsify_(layer, DENSITY, seed=self.seeds[0] + layer, which_K=self.sparse)
        self.replacing = self._together("recycle", "useless")
        self.threshold, self.rate, self.maturity = (self._number(key) for key in ("silent", "rate", "maturity"))
        self.activity, self.mean, self.utility, self.age = (
            [torch.zeros(count, n, device=device) for n in self.hidden_sizes] for _ in range(4)
        )
        self.due = [torch.zeros(count, dtype=torch.float64, device=device) for _ in self.hidden_sizes]
        self.right = torch.zeros(count, device=device)
        self.grads = [torch.zeros_like(p) for p in self.stack.parameters]
        self.updates = 0

    def _same(self, seeds: Sequence[int]) -> Stack:
        each = [Stack.draw(1, self.sizes, seed=seed, device=self.device) for seed in seeds]
        many = [
            [torch.cat(of_seeds * len(self.methods)) for of_seeds in zip(*part, strict=True)]
            for part in ([one.weights for one in each], [one.biases for one in each])
        ]
        gates = self._gates(seeds) if bool(self.gated.any()) else []
        return Stack(many[0], many[1], [None] * len(many[0]), gates).with_moments()

    def _gates(self, seeds: Sequence[int]) -> list[Tensor]:
        """For each hidden layer what a gate reads, what it says of each unit, and its bias; open in the beginning."""
        draw, count = torch.Generator().manual_seed(seeds[0] + 17), len(self.names)
        made = []
        for inputs, units in zip(self.sizes[:-2], self.sizes[1:-1], strict=True):
            read = torch.randn(count, inputs, RANK, generator=draw) / inputs**0.5
            say = 0.1 * torch.randn(count, RANK, units, generator=draw)
            made += [read.to(self.device), say.to(self.device), torch.ones(count, units, device=self.device)]
        return made

    def _which(self, name: str) -> Tensor:
        return torch.tensor([bool(self.own[m].get(name)) for m in self.names], device=self.device)

    def _number(self, name: str) -> Tensor:
        return torch.tensor([float(self.own[m].get(name, 0.0)) for m in self.names], device=self.device)

    def _is(self, name: str, value: str) -> Tensor:
        return torch.tensor([self.own[m].get(name) == value for m in self.names], device=self.device)

    @property
    def state(self) -> list[Tensor]:
        """Everything that a step changes."""
        stack = self.stack
        masks = [mask for mask in stack.masks if mask is not None]
        moments = [moment for pair in stack.moments for moment in pair]
        watched = [*self.activity, *self.mean, *self.utility, *self.age, *self.due]
        return [*stack.parameters, *moments, *stack.steps, *masks, *watched, *self.grads, self.right]

    def forward(self, x_KBD: Tensor, hidden: list[Tensor], open_rates: list[Tensor]) -> Tensor:
        """Scores; hidden units, and how often gates are open, are noted."""
        stack, h = self.stack, x_KBD
        for layer, (weight, bias) in enumerate(zip(stack.weights, stack.biases, strict=True)):
            read, h = h, torch.baddbmm(bias[:, None], h, weight)
            if layer + 1 == len(stack.weights):
                return h
            h = torch.where(self.norm[:, None, None], F.layer_norm(h, h.shape[-1:]), h).relu()
            if stack.gates:
                ways, say, threshold = stack.gates[3 * layer : 3 * layer + 3]
                p = torch.sigmoid(torch.baddbmm(threshold[:, None], read.bmm(ways), say))
                decided = (p > 0.5).float()
                open_rates.append(decided.mean((1, 2)))
                h = h * torch.where(self.gated[:, None, None], decided + p - p.detach(), 1.0)
            hidden.append(h.detach())
        raise AssertionError("a network has an output layer")

    def step(self, x_SBD: Tensor, y_SB: Tensor) -> None:
        """Count who answers right, then learn. Nothing here waits for the device, so that a CUDA graph can hold it."""
        stack, each = self.stack, len(self.methods)
        x, y = (of.expand(each, *of.shape).flatten(0, 1) for of in (x_SBD, y_SB))
        hidden: list[Tensor] = []
        open_rates: list[Tensor] = []
        for p in stack.parameters:
            p.requires_grad_(True)
        scores = self.forward(x, hidden, open_rates)
        losses = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view_as(y).mean(1)
        grads = torch.autograd.grad(losses.sum(), stack.parameters)
        for p in stack.parameters:
            p.requires_grad_(False)
        with torch.no_grad():
            self.right += (scores.argmax(2) == y).float().sum(1)
            self._watch(hidden)
            torch._foreach_copy_(self.grads, list(grads))
            self._pull()
            stack.adam_(self.grads, self.lr)
            self._shake()
            self._replace()
            for layer, rate in enumerate(open_rates):  # a closed loop holds the fraction of open units
                stack.gates[3 * layer + 2].sub_(NUDGE * (rate - OPEN)[:, None])

    def _places(self) -> list[tuple[str, slice]]:
        """Each method with the places of its networks."""
        each = len(self.seeds)
        return [(name, slice(number * each, (number + 1) * each)) for number, name in enumerate(self.methods)]

    def _together(self, name: str, value: str) -> list[slice]:
        """The places of networks with this option, methods that stand beside one another as one."""
        found: list[slice] = []
        for method, k in self._places():
            if self.own[method].get(name) == value:
                joins = bool(found) and found[-1].stop == k.start
                found = [*found[:-1], slice(found[-1].start, k.stop)] if joins else [*found, k]
        return found

    def _pull(self) -> None:
        """Weights held small, or near where they began."""
        for name, k in self._places():
            own = self.own[name]
            at, now = [g[k] for g in self.grads], [p[k] for p in self.stack.parameters]
            if "l2" in own:
                torch._foreach_add_(at, now, alpha=2.0 * own["l2"])
            if "l2_init" in own:
                apart = torch._foreach_sub(now, [p[k] for p in self.first])
                torch._foreach_add_(at, apart, alpha=2.0 * own["l2_init"])

    def _shake(self) -> None:
        """Weights shrunk and perturbed."""
        for name, k in self._places():
            own = self.own[name]
            if "shrink" in own:
                now = [p[k] for p in self.stack.parameters]
                torch._foreach_mul_(now, 1.0 - own["shrink"])
                torch._foreach_add_(now, [torch.randn_like(p) for p in now], alpha=own["noise"])

    def _watch(self, hidden: list[Tensor]) -> None:
        for layer, h in enumerate(hidden):
            self.activity[layer] += h.abs().mean(1)
            sizes = self.stack.weights[layer + 1].abs().mean(2), self.stack.weights[layer].abs().mean(1)
            update_utility_(self.mean[layer], self.utility[layer], self.age[layer], h, *sizes)

    def _replace(self) -> None:
        """Continual backprop: after every step, a fraction of the units that are old enough."""
        for k in self.replacing:
            for layer in range(len(self.hidden_sizes)):
                age, due = self.age[layer][k], self.due[layer][k]
                utility = corrected(self.utility[layer][k], age)
                chosen = choose_useless_(due, utility, age > self.maturity[k, None], self.rate[k])
                mean = corrected(self.mean[layer][k], age)
                self.stack.biases[layer + 1][k].add_(moved_to_bias(self.stack.weights[layer + 1][k], mean, chosen))
                self._draw_anew(layer, k, chosen, torch.rand_like(self.stack.weights[layer][k]))

    @torch.no_grad()
    def between(self) -> None:
        """Between steps, now and then: exchange connections and recycle silent units, each where its method does so."""
        self.updates += 1
        draw = torch.Generator(self.device).manual_seed(self.seeds[0] * 1_000_003 + self.updates)
        exchanges = self.by["random"] | self.by["gradient"]
        for layer in range(len(self.hidden_sizes)):
            weight = self.stack.weights[layer]
            if self.stack.masks[layer] is not None:
                random = torch.rand(weight.shape, generator=draw, device=self.device)
                grow = torch.where(self.by["gradient"][:, None, None], self.grads[layer].abs(), random)
                self.stack.exchange_(layer, grow, EXCHANGED, None, exchanges)
        for layer in range(len(self.hidden_sizes)):
            activity = self.activity[layer]
            silent = activity <= self.threshold[:, None] * activity.mean(1, keepdim=True)
            random = torch.rand(self.stack.weights[layer].shape, generator=draw, device=self.device)
            self._draw_anew(layer, slice(None), silent & self.recycles[:, None], random)
            activity.zero_()

    def _draw_anew(self, layer: int, k: slice, chosen_KN: Tensor, random: Tensor) -> None:
        """Units of some networks: incoming weights as at the start, from numbers in [0, 1), outgoing ones 0."""
        stack = self.stack
        weight, mask = stack.weights[layer][k], stack.masks[layer]
        inputs = weight.shape[1] * torch.where(self.sparse[k], DENSITY, 1.0)[:, None, None]
        drawn = (2.0 * random - 1.0) / inputs.sqrt()
        drawn = drawn if mask is None else drawn * mask[k]
        weight.copy_(torch.where(chosen_KN[:, None, :], drawn, weight))
        layers = len(stack.weights)
        stack.weights[layer + 1][k].masked_fill_(chosen_KN[:, :, None], 0.0)
        stack.biases[layer][k].masked_fill_(chosen_KN, 0.0)
        places = [(layer, chosen_KN[:, None, :]), (layer + 1, chosen_KN[:, :, None]), (layers + layer, chosen_KN)]
        if stack.gates:  # a new unit is open for everything
            stack.gates[3 * layer + 1][k].masked_fill_(chosen_KN[:, None, :], 0.0)
            stack.gates[3 * layer + 2][k].masked_fill_(chosen_KN, 1.0)
            first = 2 * layers + 3 * layer
            places += [(first + 1, chosen_KN[:, None, :]), (first + 2, chosen_KN)]
        for number, at in places:
            for moment in stack.moments[number]:
                moment[k].masked_fill_(at, 0.0)
        for value in (self.mean, self.utility, self.age):
            value[layer][k].masked_fill_(chosen_KN, 0.0)

    @torch.no_grad()
    def new_task(self, task: int) -> None:
        """Where networks are new in every task, they and Adam begin anew."""
        if self.fresh:
            new = self._same([7919 * (seed + 1) + task for seed in self.seeds])
            moments = [moment for pair in self.stack.moments for moment in pair]
            torch._foreach_copy_(self.stack.parameters, new.parameters)
            torch._foreach_zero_([*moments, *self.stack.steps])

    @property
    def silent(self) -> Tensor:
        """The fraction of units of the first layer that are hardly active, for each network."""
        mean = corrected(self.mean[0], self.age[0])
        return (mean <= 0.01 * mean.mean(1, keepdim=True)).float().mean(1)
