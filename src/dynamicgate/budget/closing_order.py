"""Which units close first: those that add least to what reads them, as the warm-up saw it.

Gates that start with equal logits all cross the threshold at once, so that chance decides who stays and a budget cannot
be met closely. At the end of the warm-up the logits are moved apart by what the units of a block add: their size times
the norm of the weights that read them. What gates learn from then on can still change the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.unit_order import weight_of
from dynamicgate.linears import in_features, is_linear, unwrapped

SPREAD = 0.1  # standard deviation of the logits of a gate: enough to tell units apart, little beside what it can learn
RECENT = 0.1  # weight of a step in the running mean over the warm-up


@dataclass
class ClosingOrder:
    """The mean squares of the units that gates stand before, and whether gates have been ordered by them."""

    squares: dict[str, Tensor] = field(default_factory=dict)
    done: bool = False
    _handles: dict[str, RemovableHandle] = field(default_factory=dict, repr=False, compare=False)

    def follow_(self, model: nn.Module, gates: Mapping[str, Gate], *, ended: bool) -> None:
        """Look at the units in the training pass to come, until the warm-up has ended; then order the gates, once."""
        if self.done:
            return
        consumers = {site: model.get_submodule(site) for site, gate in gates.items() if _can_order(model, site, gate)}
        if not consumers:
            raise ValueError(
                "order_units=True orders gates on the units of linear layers, and this model has none whose logits are "
                "trained: leave it out"
            )
        self.stop()
        if not ended:  # for one pass only: a training that stops here leaves nothing on the model
            for site, layer in consumers.items():
                self._handles[site] = layer.register_forward_pre_hook(partial(self._see, site), prepend=True)
            return
        if missing := [site for site in consumers if site not in self.squares]:
            raise RuntimeError(
                f"order_units=True orders units by what they do in the warm-up, and no training pass of {missing[0]!r} "
                "was seen in it: put the model in training mode, train for more steps, call apply_ before "
                "torch.compile traces the model, or leave it out"
            )
        for site, consumer in consumers.items():
            _move_apart_(gates[site], self.squares[site].to(gates[site].bias.device), weight_of(unwrapped(consumer)))
        self.squares, self.done = {}, True

    def stop(self) -> None:
        """Look no longer."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}

    @torch.no_grad()
    def _see(self, site: str, consumer: nn.Module, args: tuple[Any, ...]) -> None:
        if not consumer.training:  # such as validation, which a run that is resumed may not repeat
            return
        if site in self._handles:
            self._handles.pop(site).remove()
        now_N = args[0].detach().flatten(0, -2).double().square().mean(0)
        before_N = self.squares.get(site, now_N).to(now_N.device)
        mean_N = torch.where(before_N.isfinite(), torch.lerp(before_N, now_N, RECENT), now_N)
        self.squares[site] = torch.where(now_N.isfinite(), mean_N, before_N)  # a NaN says nothing about the units

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain JSON values."""
        return {"squares": {site: values.tolist() for site, values in self.squares.items()}, "done": self.done}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ClosingOrder:
        """What `state_dict` described."""
        squares = {site: torch.tensor(values, dtype=torch.float64) for site, values in state["squares"].items()}
        return cls(squares, state["done"])


def _can_order(model: nn.Module, site: str, gate: Gate) -> bool:
    """Whether it chooses among the units that a linear layer reads one by one, and learns its logits."""
    layer = unwrapped(model.get_submodule(site))
    plain = gate.config.kind in ("dynamic", "static") and gate.bias.requires_grad and is_linear(layer)
    return plain and in_features(layer) == gate.site.width and weight_of(layer).is_floating_point()


@torch.no_grad()
def _move_apart_(gate: Gate, squares_N: Tensor, weight: Tensor) -> None:
    """Add to the logits of a gate what its blocks are above or below the mean, in units of their spread."""
    added_N = squares_N * weight.double().square().sum(0)
    added_G = torch.stack([block.sum() for block in added_N.split(gate.block_sizes.tolist())]).sqrt()
    spread = added_G.std(correction=0)
    if spread > 0.0:
        gate.bias.add_((SPREAD * (added_G - added_G.mean()) / spread).to(gate.bias))
