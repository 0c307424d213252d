"""Magnitude pruning during training: remove the smallest weights, or the units with the smallest weights, for good."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynamicgate.gating.sites import Site, find_sites
from dynamicgate.gating.stages import stages_of
from dynamicgate.sparsity import optimizer_state
from dynamicgate.sparsity.base import LayerOptions, Sparsifier
from dynamicgate.sparsity.density import Density, cubic_density
from dynamicgate.sparsity.free_places import free_places, keep_largest_free, owned_places, present
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.patterns import Pattern, largest, parse_pattern
from dynamicgate.sparsity.regions import SparseRegion, fill, sparse_regions, whole

UNITS = "units"


class Magnitude(Sparsifier):
    """Prune the smallest weights, from dense to `density` along a cubic that is steep at first, then keep training.

    prune_from, until: fractions of training between which connections are pruned; prune_from = until prunes once.
    pattern: as for `Static`, or "units": remove whole hidden units with their bias and everything that reads them.
    every: optimizer steps between prunings. The other arguments are those of `Static`.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        prune_from: float = 0.2,
        until: float = 0.75,
        every: int | None = 100,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """All connections of `model` exist at first."""
        if not 0.0 <= prune_from <= until < 1.0:
            raise ValueError(f"expected 0 <= prune_from <= until < 1, received prune_from={prune_from}, until={until}")
        super().__init__(model, density, every=every, until=until, initial_density=1.0, **layers)
        self.prune_from, self.pruning_done = prune_from, False
        self.sites: dict[str, Site] = {}
        if self.pattern == UNITS:
            _refuse_stages(model)
            if self.keeper is not None:
                raise ValueError(f"pattern='{UNITS}' removes whole units, also kept ones: use another with a keeper")
            self.sites = _sites_behind(model, self._chosen)
            for site in self.sites.values():  # the layer that reads pruned units loses their columns
                reader: nn.Linear = model.get_submodule(site.consumer)  # type: ignore[assignment]
                self._chosen.setdefault(site.consumer, reader)
                self._regions.setdefault(site.consumer, sparse_regions(whole(reader), [1.0], [1.0]))
                self.left_out.pop(site.consumer, None)
        pattern = Pattern(UNITS) if self.pattern == UNITS else parse_pattern(self.pattern)
        self._add_layers(pattern, self._full_masks())
        written = {name for site in self.sites.values() for name in site.producers}
        self._writers = [layer for layer in self.layers if layer.name in written and layer.linear.bias is not None]

    @property
    def settings(self) -> dict[str, object]:
        """What a run that continues this one must share."""
        return {**super().settings, "prune_from": self.prune_from}

    def check_length(self, total: int) -> None:
        """Choose `every` if it is None; raise an error if a run of `total` steps ends before the pruning does."""
        self._choose_period(total)
        if (total - 1) / total < self.until:
            raise ValueError(
                f"pruning until {self.until:.0%} of training would not finish in {total} steps: lower `until`"
            )

    def density_at(self, progress: float, final: float) -> float:
        """The density on the way to `final`."""
        return cubic_density(1.0, final, self.prune_from, self.until, progress)

    def _due(self, progress: float) -> bool:
        if self.pruning_done or progress < self.prune_from:
            return False
        return progress >= self.until or (self.every is not None and self.since_update >= self.every)

    def _update_masks(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        if self.sites:
            self._prune_units(optimizer, progress)
        else:
            for layer in self.layers:
                self._replace(layer, self._pruned(layer, progress), optimizer)
        self.pruning_done = progress >= self.until

    def _pruned(self, layer: SparseLayer, progress: float) -> Tensor:
        weight, free = layer.whole_weight, free_places(layer, self.keeper)

        def prune(region: SparseRegion) -> Tensor:
            density = self.density_at(progress, region.density)
            if free is not None:
                mask, size = layer.mask[region.at], weight[region.at]
                return keep_largest_free(layer.pattern, mask, size, density, free[region.at])
            return keep_largest(layer.pattern, layer.mask[region.at], weight[region.at], density)

        return fill(layer.regions, layer.mask.shape, prune)

    def _prune_units(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        by_name = {layer.name: layer for layer in self.layers}
        masks = {layer.name: layer.mask.clone() for layer in self.layers}
        for site in self.sites.values():
            writers, reader = [by_name[name] for name in site.producers], by_name[site.consumer]
            # How much a unit can change the next layer: norm of its incoming times norm of its outgoing weights.
            size = reader.whole_weight.float().norm(dim=0)
            for writer in writers:
                size = size * writer.whole_weight.float().norm(dim=1)
            alive = reader.mask.any(0)
            density = self.density_at(progress, writers[0].density)
            keep = largest(size.masked_fill(~alive, -1.0)[None], max(1, round(density * site.width)))[0] & alive
            masks[reader.name] &= keep[None, :]
            for writer in writers:
                masks[writer.name] &= keep[:, None]
        for layer in self.layers:
            self._replace(layer, masks[layer.name], optimizer)
        for layer in self._writers:  # a pruned unit must not act through its bias
            alive = layer.mask.any(1)
            layer.linear.bias.mul_(alive)
            optimizer_state.clear_(optimizer, layer.linear.bias, (~alive).nonzero().flatten())

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        """See `Sparsifier.step`."""
        super().step(optimizer, progress)
        for layer in self._writers:
            if layer.linear.bias.grad is not None:
                layer.linear.bias.grad.mul_(layer.mask.any(1))

    def _full_masks(self) -> Iterator[Tensor]:
        for name, linear in self._chosen.items():
            full = fill(
                self._regions[name], linear.weight.shape, lambda region: torch.ones(region.shape, dtype=torch.bool)
            )
            owned = owned_places(name, self.keeper)
            yield full if owned is None else ~owned | present(linear)

    def _restart_schedule(self) -> None:
        super()._restart_schedule()
        self.pruning_done = False

    def state_dict(self) -> dict[str, object]:
        """See `Sparsifier.state_dict`."""
        return super().state_dict() | {"pruning_done": self.pruning_done}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """See `Sparsifier.load_state_dict`."""
        super().load_state_dict(state)
        self.pruning_done = bool(state["pruning_done"])


def keep_largest(pattern: Pattern, mask_OI: Tensor, weight_OI: Tensor, density: float) -> Tensor:
    """The mask of the tiles with the largest weights, a fraction `density` of all; what is pruned stays pruned."""
    active_PQ = pattern.active_tiles(mask_OI)
    size_PQ = pattern.tile_sums(weight_OI.abs().float()).masked_fill(~active_PQ, -1.0)
    kept_PQ = active_PQ.clone()
    for part in pattern.groups(mask_OI.shape):
        scores = pattern.competing(size_PQ[part])
        kept_PQ[part] &= largest(scores, max(1, round(density * scores.shape[1]))).reshape(kept_PQ[part].shape)
    return pattern.expand(kept_PQ, mask_OI.shape)


def _refuse_stages(model: nn.Module) -> None:
    if stages_of(model) is not None:
        raise ValueError(
            f"pattern='{UNITS}' removes whole units, which would leave some stages of this model with few or none: use "
            "another pattern, or take the stages off with ungate_(model, 'stages')"
        )


def _sites_behind(model: nn.Module, chosen: dict[str, nn.Linear]) -> dict[str, Site]:
    """The sites of the hidden units that the chosen layers write."""
    sites = {name: site for site in find_sites(model) for name in site.producers if name in chosen}
    missing = [name for name in chosen if name not in sites]
    if missing:
        raise ValueError(
            f"whole units can only be pruned where exactly one layer reads them, which is not so behind {missing}: "
            "exclude these layers"
        )
    return {site.name: site for site in sites.values()}
