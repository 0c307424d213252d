"""Many small networks side by side, trained at once: one product for a layer of all of them.

A GPU takes about as long for a step of one small network as for a step of a hundred. Shapes in names: K networks, B
rows, I inputs and O outputs of a layer, N units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adamw import adamw

from dynamicgate.sparsity.free_places import highest
from dynamicgate.sparsity.update_schedule import UpdateSchedule

BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Recipe:
    """What training does beside the loss. smoothing: of labels. drop, drop_inputs: fractions that are left out."""

    smoothing: float = 0.0
    drop: float = 0.0
    drop_inputs: float = 0.0


PLAIN = Recipe()


@dataclass(eq=False)
class Stack:
    """K networks of equal shape: weights [K, I, O] and biases [K, O] of each layer, masks, parameters of gates where
    there are some, and the state of Adam."""

    weights: list[Tensor]
    biases: list[Tensor]
    masks: list[Tensor | None]
    gates: list[Tensor] = field(default_factory=list)
    moments: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)

    @staticmethod
    def draw(count: int, sizes: Sequence[int], *, seed: int, device: torch.device) -> Stack:
        """Weights as those of `nn.Linear`, drawn on the CPU: the same on every device."""
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, inputs: int) -> Tensor:
            drawn = (2.0 * torch.rand(*shape, generator=generator) - 1.0) / math.sqrt(inputs)
            return drawn.to(device)

        pairs = list(pairwise(sizes))
        weights = [uniform(count, i, o, inputs=i) for i, o in pairs]
        biases = [uniform(count, o, inputs=i) for i, o in pairs]
        return Stack(weights, biases, [None] * len(pairs)).with_moments()

    def with_moments(self) -> Stack:
        """The same, at the first step of Adam."""
        self.steps = [torch.zeros((), device=self.device) for _ in self.parameters]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        return self

    @property
    def parameters(self) -> list[Tensor]:
        """Weights, then biases, then those of gates."""
        return [*self.weights, *self.biases, *self.gates]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.biases[0].device

    def forward(
        self, x_KBI: Tensor, norm_K: Tensor | None = None, hidden: list[Tensor] | None = None, drop: float = 0.0
    ) -> Tensor:
        """Scores [K, B, classes]. norm_K: which networks have a layer norm. hidden: filled with the hidden units.
        drop: the fraction of hidden units that are left out, in training."""
        h = x_KBI
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias[:, None], h, weight)
            if number + 1 < len(self.weights):
                if norm_K is not None:
                    h = torch.where(norm_K[:, None, None], F.layer_norm(h, h.shape[-1:]), h)
                h = F.dropout(h.relu(), drop) if drop else h.relu()
                if hidden is not None:
                    hidden.append(h.detach())
        return h

    def gradients(self, x_KBI: Tensor, y_KB: Tensor, recipe: Recipe = PLAIN) -> tuple[list[Tensor], Tensor]:
        """The gradient of each network's own loss, and the losses."""
        for p in self.parameters:
            p.requires_grad_(True)
        x_KBI = F.dropout(x_KBI, recipe.drop_inputs) if recipe.drop_inputs else x_KBI
        scores = self.forward(x_KBI, drop=recipe.drop)
        found = F.cross_entropy(
            scores.flatten(0, 1), y_KB.flatten(), reduction="none", label_smoothing=recipe.smoothing
        )
        losses_K = found.view_as(y_KB).mean(1)
        grads = torch.autograd.grad(losses_K.sum(), self.parameters)
        for p in self.parameters:
            p.requires_grad_(False)
        return list(grads), losses_K.detach()

    @torch.no_grad()
    def adam_(self, grads: Sequence[Tensor], lr: Tensor | float, decay: float = 0.0) -> None:
        """One step of AdamW, with a learning rate for all (a number, or a tensor of one that a CUDA graph reads) or for
        each network; missing connections stay 0."""
        masks = [*self.masks, *[None] * (len(grads) - len(self.masks))]
        grads = [grad if mask is None else grad * mask for grad, mask in zip(grads, masks, strict=True)]
        if isinstance(lr, float) or not lr.ndim:
            self._fused_adam_(grads, lr, decay)
            return
        torch._foreach_add_(self.steps, 1)
        first, second = (1.0 - beta ** self.steps[0] for beta in BETAS)
        for number, (p, grad, (m, v)) in enumerate(zip(self.parameters, grads, self.moments, strict=True)):
            m.lerp_(grad, 1.0 - BETAS[0])
            v.lerp_(grad.square(), 1.0 - BETAS[1])
            rate = lr.view(-1, *[1] * (p.ndim - 1))
            if decay and number < len(self.weights):
                p.mul_(1.0 - rate * decay)
            p.sub_(rate * (m / first) / ((v / second).sqrt() + EPS))

    def _fused_adam_(self, grads: Sequence[Tensor], lr: Tensor | float, decay: float) -> None:
        """One pass over memory, which is what a step of a hundred networks waits for; biases do not decay."""
        cut = len(self.weights)
        for part, own in ((slice(0, cut), decay), (slice(cut, None), 0.0)):
            firsts, seconds = ([pair[i] for pair in self.moments[part]] for i in (0, 1))
            adamw(self.parameters[part], list(grads[part]), firsts, seconds, [], self.steps[part], fused=True,
                  amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=lr, weight_decay=own, eps=EPS,
                  maximize=False)  # fmt: skip

    @torch.no_grad()
    def sparsify_(self, layer: int, density: float, *, seed: int, which_K: Tensor | None = None) -> None:
        """A random mask on a layer, of all networks or of some; the others are dense."""
        weight = self.weights[layer]
        draw = torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.device)
        count = round(density * draw[0].numel())
        chosen = highest(draw.flatten(1), torch.full((len(draw),), count, device=weight.device)).view_as(weight)
        if which_K is not None:
            chosen |= ~which_K[:, None, None]
        self.masks[layer] = chosen
        weight.mul_(chosen)

    @torch.no_grad()
    def exchange_(
        self, layer: int, grow: Tensor, fraction: float, density: float | None, which_K: Tensor | None = None
    ) -> None:
        """Prune the smallest weights and grow where `grow` is largest, as SET and RigL do, in each network."""
        weight = self.weights[layer]
        mask = self.masks[layer]
        active = torch.ones_like(weight, dtype=torch.bool) if mask is None else mask
        flat, places = active.flatten(1), active[0].numel()
        count_K = flat.sum(1)
        left_K = count_K if density is None else count_K.clamp(max=max(1, round(density * places)))
        k_K = torch.minimum((fraction * left_K).round().long(), places - count_K)
        if which_K is not None:
            k_K, left_K = k_K * which_K, torch.where(which_K, left_K, count_K)
        size = weight.abs().flatten(1)
        pruned = highest((-size).masked_fill(~flat, -math.inf), k_K + count_K - left_K)
        grown = highest(grow.flatten(1).masked_fill(flat, -math.inf), k_K)
        now = ((flat & ~pruned) | grown).view_as(active)
        changed = now ^ active
        if mask is None:
            self.masks[layer] = now
        else:
            mask.copy_(now)  # in place: a CUDA graph reads it
        weight.masked_fill_(changed, 0.0)
        for moment in self.moments[layer]:
            moment.masked_fill_(changed, 0.0)

    @property
    def nonzero(self) -> Tensor:
        """Connections and biases of each network."""
        total = sum(bias[0].numel() for bias in self.biases)
        counts = torch.full((len(self.biases[0]),), total, device=self.device)
        for weight, mask in zip(self.weights, self.masks, strict=True):
            counts += weight[0].numel() if mask is None else mask.flatten(1).sum(1)
        return counts

    def some(self, at: Tensor) -> Stack:
        """Some of the networks, without the state of Adam."""
        masks = [None if mask is None else mask[at] for mask in self.masks]
        return Stack([w[at] for w in self.weights], [b[at] for b in self.biases], masks)


FROM_DENSE = UpdateSchedule(
    every=100, until=0.75, fraction=None, initial_density=1.0, prune_from=None, prune_until=None
)


def cosine(lr: float, now: float) -> float:
    """The learning rate when this fraction of training is done."""
    return lr * 0.5 * (1.0 + math.cos(math.pi * now))
