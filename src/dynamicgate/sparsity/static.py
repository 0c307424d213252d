"""Static sparse training: a random mask that never changes. Also the random start of SET and RigL."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynamicgate.sparsity.base import LayerOptions, Sparsifier
from dynamicgate.sparsity.density import Density
from dynamicgate.sparsity.free_places import owned_places, present, random_free
from dynamicgate.sparsity.patterns import Pattern, parse_pattern
from dynamicgate.sparsity.regions import fill


class RandomStart(Sparsifier):
    """Starts every layer with a random mask."""

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None = 1,
        until: float = 1.0,
        initial_density: Density | None = None,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        super().__init__(model, density, every=every, until=until, initial_density=initial_density, seed=seed, **layers)
        pattern = parse_pattern(self.pattern)
        self._add_layers(pattern, self._random_masks(pattern))
        if rescale:
            with torch.no_grad():
                for layer in self.layers:
                    for region in layer.regions:
                        found = layer.count_in(region) / region.shape.numel()
                        layer.weight[region.at].div_(math.sqrt(found))

    def _random_masks(self, pattern: Pattern) -> Iterator[Tensor]:
        # Drawn on the CPU whatever the device: the same seed is the same mask, on every machine and process.
        generator = torch.Generator().manual_seed(self.seed)
        for name, linear in self._chosen.items():
            regions = self._regions[name]
            owned = owned_places(name, self.keeper)
            if owned is not None:  # what contexts keep has the connections that it has, and no others
                yield random_free(pattern, present(linear), regions[0].initial_density, ~owned, generator)
            else:
                yield fill(
                    regions,
                    linear.weight.shape,
                    lambda region: pattern.random(region.shape, region.initial_density, generator),
                )


class Static(RandomStart):
    """A random mask that never changes: the control that dynamic sparse training must beat.

    density: fraction of the connections that exist, for all layers or as {layer name or glob: fraction}. In a model
        with stages it holds inside each stage, and a layer may have one for each: {layer: (fraction, fraction, ...)}.
    distribution: how one density is spread over layers: "uniform", or "erk" (small layers are denser).
    pattern: "unstructured", "fan-in" (every output has the same number of inputs), or tiles of outputs x inputs like
        "16x1".
    include, exclude: names or globs of Linear layers; by default all except the output layer and the gate networks.
    rescale: divide the weights by the square root of the density, so that a sparse layer starts with outputs as large
        as those of a dense one: for deep, very sparse networks that are not trained yet.
    seed: of the random mask.
    keeper: prune and grow only where it is free; density is then that of the free places. See `restart_`.
    recycler: draws silent units anew at every step that this sparsifier takes.
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
