"""Sparsifiers that start from a random mask: a fixed one, or weak connections exchanged for random or wanted ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.gating.recording import Usage
from dynamicgate.sparsity.activity import often, touches
from dynamicgate.sparsity.base import LayerOptions, SparseLayer, Sparsifier, finite
from dynamicgate.sparsity.density import Density, falling, initial_densities
from dynamicgate.sparsity.patterns import Pattern, largest, parse_pattern

if TYPE_CHECKING:
    from typing_extensions import Unpack

FRACTION, FRACTION_FROM_DENSE = 0.3, 0.1


class RandomStart(Sparsifier):
    """Layers that begin with a random mask."""

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None = 1,
        until: float = 1.0,
        initial_density: Density = 0.0,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        super().__init__(model, density, every=every, until=until, seed=seed, **layers)
        self.initial_density = initial_densities(self._densities, initial_density)
        pattern = parse_pattern(self.pattern)
        self._add_layers(pattern, self._random_masks(pattern))
        if rescale:
            with torch.no_grad():
                for layer in self.layers:
                    layer.weight.div_(math.sqrt(layer.count / layer.mask.numel()))

    def _random_masks(self, pattern: Pattern) -> Iterator[Tensor]:
        # Drawn on the CPU whatever the device: the same seed is the same mask, on every machine and process.
        generator = torch.Generator().manual_seed(self.seed)
        for name, linear in self._chosen.items():
            yield pattern.random(linear.weight.shape, self.initial_density[name], generator)


class Static(RandomStart):
    """A random mask that never changes: the control that rewiring must beat.

    density: share of the connections that exist, for all layers or as {layer name or glob: share}.
    distribution: how one density is spread over layers: "uniform", or "erk" (denser where a layer is small).
    pattern: "unstructured", "fan-in" (as many inputs for every output), or cells of outputs x inputs like "16x1".
    include, exclude: names or globs of Linear layers; by default all but the output layer and the gate networks.
    rescale: divide the weights by the root of the density, so that a sparse layer starts with outputs as large as those
        of a dense one: for deep and very sparse networks that are not trained yet.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        super().__init__(model, density, rescale=rescale, seed=seed, **layers)

    def _due(self, progress: float) -> bool:
        return False


class SET(RandomStart):
    """Sparse evolutionary training: drop the weakest connections, grow random ones.

    fraction: share of the connections exchanged at the first update; falls to zero along a cosine. None is 0.3, or 0.1
        with an `initial_density`: what was learned dense is worth more than what was drawn.
    every: optimizer steps between updates; None is 100, or fewer in a short run.
    until: fraction of training after which the mask stays.
    initial_density: fraction of the connections that exist at first, given like `density` and never less. The surplus
        is pruned between `prune_from` and `prune_until` (None is `until`), along a cubic that is steep at first. From 1
        on the network learns while dense which connections are worth keeping.
    The other arguments are those of `Static`.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None = 100,
        until: float = 0.75,
        fraction: float | None = None,
        initial_density: Density = 0.0,
        prune_from: float = 0.1,
        prune_until: float | None = None,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        super().__init__(
            model,
            density,
            every=every,
            until=until,
            initial_density=initial_density,
            rescale=rescale,
            seed=seed,
            **layers,
        )
        self.done = self.initial_density == self._densities  # else connections that are too many are still to go
        least = FRACTION if fraction is None else fraction  # that must be able to exchange something
        if fraction is None:
            fraction = FRACTION if self.done else FRACTION_FROM_DENSE
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction is a share of the connections: expected 0 < fraction <= 1, received {fraction}")
        self.fraction, self.prune_from, self.prune_until = (
            fraction,
            prune_from,
            until if prune_until is None else prune_until,
        )
        if not self.done and not 0.0 <= prune_from < self.prune_until <= until:
            raise ValueError(
                "connections go between prune_from and prune_until: expected 0 <= prune_from < prune_until <= until, "
                f"received {prune_from}, {self.prune_until} and {until}"
            )
        for layer in self.layers:
            if layer.count < layer.mask.numel() and not _exchanges(layer, least):
                raise ValueError(
                    f"{layer.name!r} has too few connections ({layer.count}) for a fraction of {least} to exchange "
                    "any: raise the density or the fraction, or use Static"
                )

    @property
    def settings(self) -> dict[str, object]:
        """What a run that continues this one must share."""
        own = {
            "fraction": self.fraction,
            "initial_density": self.initial_density,
            "prune_from": self.prune_from,
            "prune_until": self.prune_until,
        }
        return {**super().settings, **own}

    def _due(self, progress: float) -> bool:
        ends = progress >= self.prune_until and not self.done  # wherever the periods end, what is too many goes now
        return ends or super()._due(progress)

    def _rewire(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        rates = self._rates()
        revived = self.open_rates.note_silence(rates)
        fraction = self.fraction * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress / self.until)))
        for position, layer in enumerate(self.layers):
            keep, grow = layer.weight.abs().float(), self._growth(layer, position, rates)
            silent = touches(layer.ends, self.open_rates.silent, layer.mask.shape)
            if silent is not None:  # nothing would be lost with them, nothing gained by more of them (sec 2.1)
                keep, grow = keep.masked_fill(silent, -1.0), grow.masked_fill(silent, -1.0)
            share = (
                None
                if self.done
                else falling(
                    self.initial_density[layer.name], layer.density, self.prune_from, self.prune_until, progress
                )
            )
            mask = exchange(layer.pattern, layer.mask, keep, grow, fraction, share)
            # A unit that opens again after a silent period goes on without the momentum of the time before it.
            self._replace(layer, mask, optimizer, reset=touches(layer.ends, revived, layer.mask.shape))
        self.done = self.done or progress >= self.prune_until

    def state_dict(self) -> dict[str, object]:
        """See `Sparsifier.state_dict`."""
        return super().state_dict() | {"done": self.done}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """See `Sparsifier.load_state_dict`."""
        super().load_state_dict(state)
        self.done = bool(state.get("done", True))

    def _rates(self) -> dict[str, Tensor]:
        if any(layer.ends.written or layer.ends.read for layer in self.layers) and not float(self.open_rates.rows):
            raise ValueError(
                "this model has gates: call sparsifier.watch(used, penalty) between the forward and the backward pass, "
                "so that rarely open units get their share of new connections"
            )
        return self.open_rates.take()

    def _growth(self, layer: SparseLayer, position: int, rates: dict[str, Tensor]) -> Tensor:
        """How much each missing connection is wanted. The draw depends on seed and update only, not on the process."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.updates) * 1_009 + position)
        return torch.rand(layer.mask.shape, generator=generator).to(layer.mask.device)


class RigL(SET):
    """Drop the connections with the smallest weights, grow those whose gradient of the task loss is largest.

    gradient_steps: average the gradient over this many steps before each update: better scores from small batches, at
        the price of one dense buffer while they are collected.
    The other arguments are those of `SET`. With gates the gradient of a connection is divided by how often its two
    units are open, see `watch`.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None = 100,
        until: float = 0.75,
        fraction: float | None = None,
        gradient_steps: int = 1,
        initial_density: Density = 0.0,
        prune_from: float = 0.1,
        prune_until: float | None = None,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        if gradient_steps < 1 or (every is not None and gradient_steps > max(1, every)):
            raise ValueError(f"gradient_steps are part of a period of {every} steps, received {gradient_steps}")
        super().__init__(
            model, density, every=every, until=until, fraction=fraction, initial_density=initial_density,
            prune_from=prune_from, prune_until=prune_until, rescale=rescale, seed=seed, **layers,
        )  # fmt: skip
        self.gradient_steps = gradient_steps
        self._gradients: dict[str, Tensor] = {}
        self._not_task: dict[str, Tensor] = {}

    @property
    def settings(self) -> dict[str, object]:
        """What a run that continues this one must share."""
        return {**super().settings, "gradient_steps": self.gradient_steps}

    def watch(self, used: Usage, penalty: Tensor | None = None) -> None:
        """See `Sparsifier.watch`."""
        super().watch(used, penalty)
        if penalty is None or not penalty.requires_grad or not self._scores(self.since_update + 1):
            return
        weights = [layer.weight for layer in self.layers]
        parts = torch.autograd.grad(penalty, weights, retain_graph=True, allow_unused=True)
        for layer, part in zip(self.layers, parts, strict=True):
            if part is not None:
                self._not_task[layer.name] = self._not_task.get(layer.name, 0.0) + part.float()

    def _scores(self, since_update: int) -> bool:
        return self.every is not None and since_update > self.every - self.gradient_steps

    def _look(self, progress: float) -> None:
        if not self._scores(self.since_update) or progress >= self.until:
            return
        for layer in self.layers:
            grad = layer.weight.grad
            if grad is None or not finite(grad):
                continue
            gradient = grad.float()
            if layer.name in self._not_task:
                gradient = gradient - distributed.mean_(self._not_task[layer.name])
            before = self._gradients.get(layer.name)
            # Signed gradients are added and only then compared by size: noise that changes sign cancels.
            self._gradients[layer.name] = gradient.clone() if before is None else before.add_(gradient)
        self._not_task = {}

    def _growth(self, layer: SparseLayer, position: int, rates: dict[str, Tensor]) -> Tensor:
        size = self._gradients.pop(layer.name, torch.zeros_like(layer.weight, dtype=torch.float32)).abs()
        share = often(layer.ends, rates, layer.mask.shape)
        return size if share is None else size / share.to(size.device)

    def state_dict(self) -> dict[str, object]:
        """See `Sparsifier.state_dict`."""
        return super().state_dict() | {f"gradient.{name}": value for name, value in self._gradients.items()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """See `Sparsifier.load_state_dict`."""
        super().load_state_dict(state)
        devices = {layer.name: layer.mask.device for layer in self.layers}
        self._gradients = {
            name.removeprefix("gradient."): value.to(devices[name.removeprefix("gradient.")], copy=True)  # type: ignore[attr-defined]
            for name, value in state.items()
            if name.startswith("gradient.")
        }


def exchange(
    pattern: Pattern, mask_OI: Tensor, keep_OI: Tensor, grow_OI: Tensor, fraction: float, share: float | None = None
) -> Tensor:
    """The mask with a `fraction` of its cells, those least worth keeping, exchanged for absent ones most wanted; of all
    possible cells no more than a `share` is left."""
    was = pattern.holds(mask_OI)
    keep, grow = pattern.cells(keep_OI), pattern.cells(grow_OI)
    now = was.clone()
    for part in pattern.groups(mask_OI.shape):
        active = pattern.rivals(was[part])
        count = int(active[0].count_nonzero())
        left = count if share is None else min(count, max(1, round(share * active.shape[1])))
        k = min(round(fraction * left), active.shape[1] - count)
        kept = active.nonzero()[:, 1].reshape(len(active), count)  # every row of rivals has as many
        weakest = kept[largest(-pattern.rivals(keep[part]).gather(1, kept), k + count - left)].reshape(len(active), -1)
        wanted = largest(pattern.rivals(grow[part]).scatter(1, kept, -math.inf), k)
        now[part] = (active.scatter(1, weakest, False) | wanted).reshape(now[part].shape)
    return pattern.entries(now, mask_OI.shape)


def _exchanges(layer: SparseLayer, fraction: float) -> bool:
    cells = layer.pattern.holds(layer.mask)
    groups = (layer.pattern.rivals(cells[part])[0] for part in layer.pattern.groups(layer.mask.shape))
    return any(round(fraction * int(row.sum())) > 0 and not bool(row.all()) for row in groups)
