"""RigL: prune the smallest weights, grow the connections with the largest gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dynamicgate import distributed
from dynamicgate.gating.recording import Usage
from dynamicgate.sparsity.activity import coactivation_rate
from dynamicgate.sparsity.base import LayerOptions
from dynamicgate.sparsity.density import Density
from dynamicgate.sparsity.dynamic import DynamicSparsifier
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.sharded import finite, is_sharded, whole
from dynamicgate.sparsity.update_schedule import UpdateSchedule


class RigL(DynamicSparsifier):
    """Prune the connections with the smallest weights, grow those with the largest gradient of the task loss.

    gradient_steps: sum the gradients of this many steps before each update: better scores from small batches, at the
        cost of one dense buffer per layer in these steps.
    The other arguments are those of `SET`. With gates the gradient of a connection is divided by how often its two
    units are open together, see `watch`.
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
        initial_density: Density | None = None,
        prune_from: float | None = None,
        prune_until: float | None = None,
        rescale: bool = False,
        seed: int = 0,
        **layers: Unpack[LayerOptions],
    ) -> None:
        """Make the layers of `model` sparse, in place."""
        if gradient_steps < 1 or (every is not None and gradient_steps > max(1, every)):
            raise ValueError(f"expected 1 <= gradient_steps <= every = {every}, received {gradient_steps}")
        schedule = UpdateSchedule(
            every=every, until=until, fraction=fraction, initial_density=initial_density, prune_from=prune_from,
            prune_until=prune_until,
        )  # fmt: skip
        super().__init__(model, density, schedule, rescale=rescale, seed=seed, **layers)
        self.gradient_steps = gradient_steps
        self._gradients: dict[str, Tensor] = {}
        self._penalty_gradients: dict[str, Tensor] = {}
        self._grows = True  # until `until`

    @property
    def settings(self) -> dict[str, object]:
        """What a run that continues this one must share."""
        return {**super().settings, "gradient_steps": self.gradient_steps}

    def watch(self, used: Usage, penalty: Tensor | None = None) -> None:
        """See `Sparsifier.watch`. Where FSDP shards the weights, the part of a penalty cannot be told apart and stays
        in the scores."""
        super().watch(used, penalty)
        collects = self._grows and self._collects(self.since_update + 1)
        if penalty is None or not penalty.requires_grad or not collects:
            return
        weights = [layer.weight for layer in self.layers]
        if any(map(is_sharded, weights)):
            return
        parts = torch.autograd.grad(penalty, weights, retain_graph=True, allow_unused=True)
        for layer, part in zip(self.layers, parts, strict=True):
            if part is not None:
                self._penalty_gradients[layer.name] = self._penalty_gradients.get(layer.name, 0.0) + part.float()

    def _collects(self, since_update: int) -> bool:
        """Whether this step is one of the last `gradient_steps` before an update."""
        return self.every is not None and since_update > self.every - self.gradient_steps

    def _accumulate_gradients(self, progress: float) -> None:
        self._grows = progress < self.until
        if not self._grows:
            self._penalty_gradients = {}
        if not self._grows or not self._collects(self.since_update):
            return
        for layer in self.layers:
            grad = layer.weight.grad
            if grad is None or not finite(grad):
                continue
            gradient = whole(grad).float()
            if layer.name in self._penalty_gradients:
                gradient = gradient - distributed.mean_(self._penalty_gradients[layer.name])
            total = self._gradients.get(layer.name)
            # Signed gradients are summed before their magnitude is taken: noise that changes sign cancels.
            self._gradients[layer.name] = gradient.clone() if total is None else total.add_(gradient)
        self._penalty_gradients = {}

    def _growth_scores(self, layer: SparseLayer, position: int, rates: dict[str, Tensor]) -> Tensor:
        size = self._gradients.pop(layer.name, torch.zeros(layer.mask.shape, device=layer.mask.device)).abs()
        rate = coactivation_rate(layer.endpoints, rates, layer.mask.shape)
        return size if rate is None else size / rate.to(size.device)

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
