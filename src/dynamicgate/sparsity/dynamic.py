"""What SET and RigL share: prune the weakest connections during training and regrow others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynamicgate.sparsity.activity import connections_at
from dynamicgate.sparsity.base import LayerOptions
from dynamicgate.sparsity.density import Density
from dynamicgate.sparsity.free_places import free_places, prune_and_regrow_free
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.patterns import Pattern, prune_and_regrow
from dynamicgate.sparsity.regions import SparseRegion, fill
from dynamicgate.sparsity.static import RandomStart
from dynamicgate.sparsity.update_schedule import UpdateSchedule


class DynamicSparsifier(RandomStart):
    """Exchanges connections at every update; subclasses say which missing connections to grow, in `_growth_scores`."""

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        schedule: UpdateSchedule,
        *,
        rescale: bool,
        seed: int,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        super().__init__(
            model,
            density,
            every=schedule.every,
            until=schedule.until,
            initial_density=schedule.initial_density,
            rescale=rescale,
            seed=seed,
            **layers,
        )
        self.schedule = schedule
        regions = [region for layer in self.layers for region in layer.regions]
        self.starts_denser = any(region.initial_density != region.density for region in regions)
        self.pruning_done = not self.starts_denser
        if self.starts_denser:
            schedule.check_pruning()
        # Checked with 0.3 even where a denser start would exchange 0.1: a layer that starts sparse needs that many.
        fraction = schedule.first_fraction(starts_denser=False)
        for layer in self.layers:
            _check_can_exchange(layer, fraction)

    @property
    def settings(self) -> dict[str, object]:
        """What a run that continues this one must share."""
        start, end = self.schedule.pruning
        own = {
            "fraction": self.schedule.first_fraction(starts_denser=self.starts_denser),
            "initial_density": {layer.name: _initial_density(layer) for layer in self.layers},
            "prune_from": start,
            "prune_until": end,
        }
        return {**super().settings, **own}

    def _due(self, progress: float) -> bool:
        # When pruning must end, an update is due wherever the period is.
        pruning_ends = progress >= self.schedule.pruning[1] and not self.pruning_done
        return pruning_ends or super()._due(progress)

    def _update_masks(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        gated = any(layer.endpoints.gated for layer in self.layers)
        rates = self.open_rates.take(needed=gated)
        reopened = self.open_rates.track_dead_units(rates)
        fraction = self.schedule.fraction_at(progress, starts_denser=self.starts_denser)
        for position, layer in enumerate(self.layers):
            keep, grow = layer.whole_weight.abs().float(), self._growth_scores(layer, position, rates)
            dead = connections_at(layer.endpoints, self.open_rates.dead, layer.mask.shape)
            if dead is not None:  # connections of dead units are pruned first and never grown (sec 2.1)
                keep, grow = keep.masked_fill(dead, -1.0), grow.masked_fill(dead, -1.0)
            mask = self._exchanged(layer, keep, grow, fraction, progress)
            # A dead unit that opens again continues without the optimizer state from before it died.
            reset = connections_at(layer.endpoints, reopened, layer.mask.shape)
            self._replace(layer, mask, optimizer, reset=reset)
        self.pruning_done = self.pruning_done or progress >= self.schedule.pruning[1]

    def _exchanged(self, layer: SparseLayer, keep: Tensor, grow: Tensor, fraction: float, progress: float) -> Tensor:
        """The new mask of a layer; connections are exchanged inside each region."""

        free = free_places(layer, self.keeper)

        def exchange(region: SparseRegion) -> Tensor:
            density = None if self.pruning_done else self._density_at(region, progress)
            mask, kept, grown = layer.mask[region.at], keep[region.at], grow[region.at]
            if free is not None:
                return prune_and_regrow_free(layer.pattern, mask, kept, grown, fraction, density, free[region.at])
            return prune_and_regrow(layer.pattern, mask, kept, grown, fraction, density)

        return fill(layer.regions, layer.mask.shape, exchange)

    def _density_at(self, region: SparseRegion, progress: float) -> float:
        return self.schedule.density_at(progress, initial=region.initial_density, final=region.density)

    def _growth_scores(self, layer: SparseLayer, position: int, rates: dict[str, Tensor]) -> Tensor:
        """A score for each missing connection, the highest are grown. `rates`: how often gates were open."""
        raise NotImplementedError

    def _restart_schedule(self) -> None:
        super()._restart_schedule()
        self.pruning_done = not self.starts_denser

    def state_dict(self) -> dict[str, object]:
        """See `Sparsifier.state_dict`."""
        return super().state_dict() | {"pruning_done": self.pruning_done}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """See `Sparsifier.load_state_dict`."""
        super().load_state_dict(state)
        self.pruning_done = bool(state["pruning_done"])


def _initial_density(layer: SparseLayer) -> float | list[float]:
    found = [region.initial_density for region in layer.regions]
    return found if len(found) > 1 else found[0]


def _check_can_exchange(layer: SparseLayer, fraction: float) -> None:
    for region in layer.regions:
        mask, count = layer.mask[region.at], layer.count_in(region)
        if count < mask.numel() and not _can_exchange(layer.pattern, mask, fraction):
            raise ValueError(
                f"{layer.called(region)} has too few connections ({count}) for a fraction of {fraction} to exchange "
                "any: raise the density or the fraction, or use Static"
            )


def _can_exchange(pattern: Pattern, mask_OI: Tensor, fraction: float) -> bool:
    tiles_PQ = pattern.active_tiles(mask_OI)
    groups = (pattern.competing(tiles_PQ[part])[0] for part in pattern.groups(mask_OI.shape))
    return any(round(fraction * int(row.sum())) > 0 and not bool(row.all()) for row in groups)
