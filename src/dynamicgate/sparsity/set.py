"""SET, sparse evolutionary training: prune the smallest weights, grow random connections."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynamicgate.sparsity.base import LayerOptions
from dynamicgate.sparsity.density import Density
from dynamicgate.sparsity.dynamic import DynamicSparsifier
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.update_schedule import UpdateSchedule


class SET(DynamicSparsifier):
    """Sparse evolutionary training: prune the connections with the smallest weights, grow random ones.

    every: optimizer steps between updates; None is 100, or fewer in a short run.
    until: fraction of training after which the mask stays.
    fraction: fraction of the connections exchanged at the first update; falls to zero along a cosine. None is 0.3, or
        0.1 where a layer starts denser than it ends.
    initial_density: fraction of the connections that exist at first, given like `density` and never less; None is
        `density`. The surplus is pruned between `prune_from` (None is 0.1) and `prune_until` (None is `until`), along
        a cubic that is steep at first. From a dense start (1) the network learns which connections are worth keeping.
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
        initial_density: Density | None = None,
        prune_from: float | None = None,
        prune_until: float | None = None,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        schedule = UpdateSchedule(
            every=every, until=until, fraction=fraction, initial_density=initial_density, prune_from=prune_from,
            prune_until=prune_until,
        )  # fmt: skip
        super().__init__(model, density, schedule, rescale=rescale, seed=seed, **layers)

    def _growth_scores(self, layer: SparseLayer, position: int, rates: dict[str, Tensor]) -> Tensor:
        # The draw depends on seed and update only, so that every process draws the same.
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.updates) * 1_009 + position)
        return torch.rand(layer.mask.shape, generator=generator).to(layer.mask.device)
