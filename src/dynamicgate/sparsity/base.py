"""`Sparsifier`: what all of them share. Exact masks, updates between optimizer steps, logging, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.gating.integrations import structure_changed
from dynamicgate.gating.recording import Usage
from dynamicgate.masks import UNSTRUCTURED, connections, put_mask_
from dynamicgate.sparsity import mask_agreement, optimizer_state
from dynamicgate.sparsity.activity import Endpoints, OpenRates
from dynamicgate.sparsity.consolidation import AnyKeeper
from dynamicgate.sparsity.density import (
    Density,
    Distribution,
    choose_layers,
    initial_densities,
    region_densities,
    tied_to,
)
from dynamicgate.sparsity.free_places import check_keeper, restart_layer_, weight_name
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.patterns import Pattern
from dynamicgate.sparsity.recycling import Recycler
from dynamicgate.sparsity.regions import (
    check_stages_came_first,
    check_tiles,
    layer_regions,
    shape_of,
    sparse_regions,
    whole,
)
from dynamicgate.sparsity.sharded import apply_mask_, finite, set_at_

DEFAULT_PERIOD, MIN_UPDATES = 100, 10


class LayerOptions(TypedDict, total=False):
    """The arguments that say which layers become sparse and how, the same for all sparsifiers; see `Static`."""

    distribution: Distribution
    pattern: str
    include: Sequence[str]
    exclude: Sequence[str]
    keeper: AnyKeeper | None
    recycler: Recycler | None


class Sparsifier:
    """Decides which connections exist (sec 3.7, Algorithms 2 and 3). Call `step` between backward and the optimizer::

        sparsifier = RigL(model, density=0.1)
        loss.backward()
        sparsifier.step(optimizer, progress)
        optimizer.step()

    `step` sets the gradients of missing connections to zero. When a mask changes, it also clears the optimizer state
    of the connections that were pruned or grown. An optimizer that updates each entry on its own (SGD, Adam, AdamW,
    ...) then leaves missing ones at exactly zero. With gradient scaling call `scaler.unscale_(optimizer)` first; clip
    gradients afterwards. With gates see `watch`.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None,
        until: float,
        initial_density: Density | None = None,
        seed: int = 0,
        distribution: Distribution = "uniform",
        pattern: str = UNSTRUCTURED,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        keeper: AnyKeeper | None = None,
        recycler: Recycler | None = None,
    ) -> None:
        """The subclasses describe the arguments."""
        if every is not None and every < 1:
            raise ValueError(f"every is a number of optimizer steps, 1 or more, received {every}")
        if not 0.0 < until <= 1.0:
            raise ValueError(f"until is a fraction of training: expected 0 < until <= 1, received {until}")
        self.every, self.until, self.seed, self.pattern = every, until, seed, pattern
        self._model, self.keeper, self.recycler = model, keeper, recycler
        self.open_rates = OpenRates(model)
        self._chosen, self.left_out = choose_layers(model, density, include, exclude)
        places = layer_regions(model)
        shapes = {name: [shape_of(region) for region in places[name]] for name in self._chosen}
        final = region_densities(shapes, density, distribution)
        initial = initial_densities(final, initial_density)
        self._regions = {name: sparse_regions(places[name], final[name], initial[name]) for name in self._chosen}
        if keeper is not None:
            check_keeper(keeper, model, self._regions)
        self._places = {model.get_submodule(name): regions for name, regions in places.items()}
        self.layers: list[SparseLayer] = []
        self.steps = self.updates = self.since_update = 0
        self._first_progress: tuple[int, float] | None = None
        self._length_is_known = self._has_newly_grown = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._stats_cache: tuple[int, dict[str, dict[str, float]], str] | None = None

    def _add_layers(self, pattern: Pattern, masks: Iterator[Tensor]) -> None:
        check_tiles(self._chosen, self._regions, pattern)
        for (name, linear), mask in zip(self._chosen.items(), masks, strict=True):
            tied = tied_to(linear, self._model)
            for one in (linear, *tied):
                put_mask_(one, mask, pattern.name)
            endpoints = Endpoints(name, self.open_rates.gates)
            explored = linear.mask.clone()  # type: ignore[operator]
            self.layers.append(SparseLayer(name, linear, pattern, self._regions[name], endpoints, explored, tied))
            if self.keeper is not None:  # what waits to be allotted may have lost connections
                self.keeper.forget_(weight_name(name))
        structure_changed(self._model)

    @property
    def settings(self) -> dict[str, Any]:
        """What a run that continues this one must share."""
        layers = {layer.name: layer.density for layer in self.layers}
        kind = {"kind": type(self).__name__, "every": self.every, "until": self.until, "seed": self.seed}
        staged = {layer.name: [r.density for r in layer.regions] for layer in self.layers if len(layer.regions) > 1}
        return {**kind, "pattern": self.pattern, "layers": layers} | ({"stages": staged} if staged else {})

    def pending(self, linear: nn.Linear) -> float:
        """How many connections of a layer are still to be pruned before training ends; 0 for other layers."""
        return sum(self.pending_by_stage(linear))

    def pending_by_stage(self, linear: nn.Linear) -> list[float]:
        """`pending` for each stage of a layer; one number for a layer without stages."""
        layer = self._layer_of(linear)
        if layer is None:
            return [0.0 for _ in self._places.get(linear) or whole(linear)]
        return [max(0.0, layer.count_in(region) - region.wanted) for region in layer.regions]

    def final_by_stage(self, linear: nn.Linear) -> list[float]:
        """How many connections each stage of a layer has when training ends; one number for a layer without stages.
        Layers that are not this sparsifier's keep those they have."""
        layer = self._layer_of(linear)
        if layer is not None:
            return [region.wanted for region in layer.regions]
        mask = connections(linear)
        places = self._places.get(linear) or whole(linear)
        return [float(shape_of(at).numel() if mask is None else mask[at.rows, at.columns].sum()) for at in places]

    def _layer_of(self, linear: nn.Linear) -> SparseLayer | None:
        return next((layer for layer in self.layers if layer.linear is linear), None)

    def check_length(self, total: int) -> None:
        """Choose `every` if it is None; raise an error if a run of `total` steps would end before the first update."""
        self._choose_period(total)
        assert self.every is not None
        if self.until * total < self.every:
            raise ValueError(
                f"a run of about {total:.0f} steps that updates its masks every {self.every} steps until "
                f"{self.until:.0%} of training would never update them: lower `every`, raise `until` or train longer; "
                "if a fixed random mask is what you want, use Static"
            )

    def _choose_period(self, total: int) -> None:
        if self.every is None:
            self.every = max(1, min(DEFAULT_PERIOD, int(self.until * total / MIN_UPDATES)))

    def watch(self, used: Usage, penalty: Tensor | None = None) -> None:
        """With gates: pass their recorded decisions between the forward and the backward pass of every micro-batch, so
        that rarely open units get new connections too. Growth follows the task loss alone: the part of the gradient
        that comes from a usage `penalty` is left out of the scores."""
        self.open_rates.add(used)

    def step(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        """Once per optimizer step, between backward and `optimizer.step()`."""
        if optimizer is not self._optimizer:
            self._bind_optimizer(optimizer)
        if not self._length_is_known:
            self._infer_length(progress)
        self.steps += 1
        self.since_update += 1
        self._accumulate_gradients(progress)
        if self._due(progress) and optimizer_state.will_step(optimizer):  # not if gradient scaling will skip it
            self._update(optimizer, progress)
        elif self._has_newly_grown:
            self._start_newly_grown(optimizer)
        for layer in self.layers:
            grad = layer.weight.grad
            if grad is not None:
                apply_mask_(grad, layer.mask)
                if layer.newly_grown is not None:
                    set_at_(grad, layer.newly_grown, 0.0)  # their first optimizer step is the next one
        if self.recycler is not None:
            self.recycler.step(optimizer)

    @torch.no_grad()
    def _update(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        self._check_masked_weights(optimizer)
        self._update_masks(optimizer, progress)
        mask_agreement.check_agreement(self._masks())
        self.updates += 1
        self.since_update = 0
        self._has_newly_grown = True

    @torch.no_grad()
    def restart_(self) -> None:
        """Begin with a new context: connections and weights that may change are drawn anew, as in a new model, and the
        schedule of a new run begins. Needs `keeper`, which says which may change. Call it with a new optimizer."""
        if self.keeper is None:
            raise ValueError("everything may change: pass keeper= to the sparsifier, or make a new one")
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.keeper.contexts)
        for layer in self.layers:
            restart_layer_(layer, self.keeper, generator)
        self._restart_schedule()

    def _restart_schedule(self) -> None:
        self.steps = self.since_update = 0
        self._first_progress, self._optimizer, self._stats_cache = None, None, None
        self._length_is_known = self._has_newly_grown = False

    def _accumulate_gradients(self, progress: float) -> None:
        """Called with the dense gradient, before it is masked."""

    def _due(self, progress: float) -> bool:
        return self.every is not None and self.since_update >= self.every and progress < self.until

    def _update_masks(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        raise NotImplementedError

    def _replace(
        self, layer: SparseLayer, mask: Tensor, optimizer: torch.optim.Optimizer, *, reset: Tensor | None = None
    ) -> None:
        """Give a layer a new mask. Connections that are grown, pruned or in `reset` lose their optimizer state."""
        changed = (mask ^ layer.mask).flatten().nonzero().flatten()
        now = mask.reshape(-1)
        grown = changed[now[changed]]
        layer.churn = len(grown) / max(1, int(mask.count_nonzero()))
        layer.mask.copy_(mask)
        for linear in layer.tied:
            linear.mask.copy_(mask)  # type: ignore[operator]
        layer.explored.view(-1)[grown] = True
        set_at_(layer.weight, changed, 0.0)
        if reset is not None:
            changed = torch.cat([changed, reset.flatten().nonzero().flatten()]).unique()
            grown = changed[now[changed]]
        optimizer_state.clear_(optimizer, layer.weight, changed)
        layer.newly_grown = grown

    def _start_newly_grown(self, optimizer: torch.optim.Optimizer) -> None:
        self._has_newly_grown = False
        for layer in self.layers:
            grad = layer.weight.grad
            if layer.newly_grown is None or grad is None or not finite(grad):
                self._has_newly_grown |= layer.newly_grown is not None  # gradient scaling will skip this step
                continue
            optimizer_state.init_second_moment_(optimizer, layer.weight, layer.newly_grown, layer.count)
            layer.newly_grown = None

    def _bind_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """At the first step with an optimizer: clear its state for weights without a connection."""
        for layer in self.layers:
            if not optimizer_state.trains(optimizer, layer.weight):
                raise ValueError(f"the optimizer does not train {layer.name!r}, a layer of this sparsifier")
            check_stages_came_first(layer.name, layer.linear, layer.regions)
            optimizer_state.clear_(optimizer, layer.weight, (~layer.mask).flatten().nonzero().flatten())
            layer.explored = layer.explored.to(layer.mask.device)  # the model may have moved since
        self._optimizer = optimizer

    def _infer_length(self, progress: float) -> None:
        """Call `check_length` as soon as two values of `progress` show how long the run will be."""
        if self._first_progress is None:
            self._first_progress = (self.steps, progress)
        elif progress > self._first_progress[1]:
            steps, start = self._first_progress
            self.check_length(round((self.steps - steps) / (progress - start)))
            self._length_is_known = True

    def _check_masked_weights(self, optimizer: torch.optim.Optimizer) -> None:
        for layer in self.layers:
            weight = layer.whole_weight
            masked = weight.clone()
            apply_mask_(masked, layer.mask)
            if not torch.equal(masked, weight) and finite(weight):
                raise RuntimeError(
                    f"weights of {layer.name!r} that have no connection are not zero: either they were changed by hand "
                    f"or {type(optimizer).__name__} mixes entries of a weight. Use an optimizer that updates each "
                    "entry on its own (SGD, Adam, AdamW, RMSprop, ...)"
                )

    def stats(self) -> dict[str, dict[str, float]]:
        """For a log, by layer: density, explored (the fraction of connections that ever existed, known as the ITOP
        rate) and churn (the fraction of connections that the last update grew)."""
        return self._cached_stats()[0]

    def fingerprint(self) -> str:
        """A short text that changes if any connection changes."""
        return self._cached_stats()[1]

    def _cached_stats(self) -> tuple[dict[str, dict[str, float]], str]:
        """Computed once per update: logs are written far more often, and masks may be large."""
        if self._stats_cache is None or self._stats_cache[0] != self.updates:
            stats = {
                layer.name: {
                    "density": layer.count / layer.mask.numel(),
                    "explored": float(layer.explored.float().mean()),
                    "churn": layer.churn,
                }
                for layer in self.layers
            }
            self._stats_cache = (self.updates, stats, f"{mask_agreement.fingerprint(self._masks()):014x}")
        return self._stats_cache[1:]

    def _masks(self) -> dict[str, Tensor]:
        return {layer.name: layer.mask for layer in self.layers}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; the masks are buffers of the model. Every process must call it."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "updates": self.updates,
            "since_update": self.since_update,
            "first_progress": self._first_progress,
            "churn": {layer.name: layer.churn for layer in self.layers},
        }
        state |= {f"explored.{layer.name}": layer.explored for layer in self.layers}
        state |= {
            f"newly_grown.{layer.name}": layer.newly_grown for layer in self.layers if layer.newly_grown is not None
        }
        return state | {f"open_rates.{name}": value for name, value in self.open_rates.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`, on any number of processes."""
        self.steps, self.updates, self.since_update = state["steps"], state["updates"], state["since_update"]
        self._first_progress = tuple(state["first_progress"]) if state["first_progress"] else None
        self._stats_cache = None
        for layer in self.layers:
            layer.churn = state["churn"][layer.name]
            layer.explored.copy_(state[f"explored.{layer.name}"])
            newly_grown = state.get(f"newly_grown.{layer.name}")
            layer.newly_grown = None if newly_grown is None else newly_grown.to(layer.mask.device)
        self._has_newly_grown = any(layer.newly_grown is not None for layer in self.layers)
        prefix = "open_rates."
        rates = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        self.open_rates.load_state_dict(rates, first=distributed.rank() == 0)

    def __str__(self) -> str:
        lines = [f"{type(self).__name__}: {sum(layer.count for layer in self.layers):,} connections"]
        lines += [f"  {layer}" for layer in self.layers]
        lines += [f"  {name}  dense: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)
