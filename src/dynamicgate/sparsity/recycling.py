"""Recycle units that have gone silent: draw them anew, so that a network that learns for long goes on learning.

Shapes in names: B rows, N units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dynamicgate.gating.sites import Site, find_sites
from dynamicgate.masks import connections
from dynamicgate.modules import unwrap
from dynamicgate.sparsity.keeper import Keeper
from dynamicgate.sparsity.unit_utility import choose_useless_, corrected, moved_to_bias, update_utility_


class _Activity(NamedTuple):
    """What is known of the units of a site: buffers that are changed in place."""

    size_N: Tensor
    """Sum over rows of |h|, since units were recycled last."""
    rows: Tensor
    mean_N: Tensor
    utility_N: Tensor
    """Running means, of so many batches since a unit was drawn."""
    updates_N: Tensor
    age_N: Tensor
    """Steps since a unit was drawn."""
    due: Tensor
    """How many units are to be replaced, as a fraction that adds up."""


class Recycler:
    """Draws hidden units anew. Call `step(optimizer)` after `backward()`, or give it to a sparsifier as ``recycler=``.

    kind: "silent" replaces, every `every` steps, the units whose mean activity is below `threshold` of the mean of
        their layer (ReDo, Sokar 2023). "useless" replaces, all the time, a fraction `rate` of the units that are older
        than `maturity` steps, those of the least utility first: |outgoing| x |h - mean h| / |incoming| (continual
        backprop, Dohare 2024). What they gave on average moves to the bias of the next layer.
    A new unit has incoming weights as at the start, on the connections that exist, and outgoing weights 0: answers do
    not change. keeper: units that it keeps are never replaced. `remove` takes the hooks off again.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        kind: Literal["silent", "useless"] = "silent",
        every: int = 100,
        threshold: float = 0.1,
        rate: float = 1e-4,
        maturity: int = 100,
        keeper: Keeper | None = None,
        seed: int = 0,
    ) -> None:
        """Watch the hidden units of `model` from now on."""
        if kind not in ("silent", "useless"):
            raise ValueError(f"kind must be 'silent' or 'useless', received {kind!r}")
        if every < 1 or maturity < 0 or not 0.0 < threshold < 1.0 or not 0.0 < rate < 1.0:
            raise ValueError(
                "expected every >= 1, maturity >= 0, 0 < threshold < 1 and 0 < rate < 1, received "
                f"{every}, {maturity}, {threshold} and {rate}"
            )
        self.kind, self.every, self.threshold, self.rate, self.maturity = kind, every, threshold, rate, maturity
        self.model, self.keeper, self.seed = unwrap(model), keeper, seed
        modules = dict(self.model.named_modules())
        self.sites: dict[str, Site] = {
            site.consumer: site
            for site in find_sites(model)
            if not site.is_input
            and all(type(modules[name]) is nn.Linear for name in (*site.producers, site.consumer))
            and len(site.producers) == 1
        }
        if not self.sites:
            raise ValueError("this model has no hidden units between two Linear layers, so that none can be recycled")
        self.activity = {name: _no_activity(site.width) for name, site in self.sites.items()}
        self.steps = self.recycled = 0
        self._hooks: list[RemovableHandle] = [  # a method of its own, so that a copy of both watches the copied model
            modules[name].register_forward_pre_hook(partial(self._watch, name)) for name in self.sites
        ]

    @torch.no_grad()
    def _watch(self, name: str, _layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not self.model.training:
            return
        h: Tensor = args[0]
        h_BN = h.detach().flatten(0, -2).float()
        if self.activity[name].size_N.device != h.device:
            self.activity[name] = _Activity(*(value.to(h.device) for value in self.activity[name]))
        found = self.activity[name]
        if self.kind == "silent":
            found.size_N.add_(h_BN.abs().sum(0))
            found.rows.add_(len(h_BN))
            return
        modules = self.model.get_submodule
        incoming: Any = modules(self.sites[name].producers[0]).weight
        outgoing: Any = modules(name).weight
        sizes = outgoing.detach().abs().mean(0), incoming.detach().abs().mean(1)
        update_utility_(found.mean_N, found.utility_N, found.updates_N, h_BN, *sizes)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> int:
        """Once per optimizer step, after `backward()`; returns how many units were drawn anew."""
        self.steps += 1
        count = 0
        for position, (name, found) in enumerate(self.activity.items()):
            found.age_N.add_(1)
            chosen_N = self._silent(name, found) if self.kind == "silent" else self._useless(name, found)
            if chosen_N is None:
                continue
            if bool(chosen_N.any()):
                self._draw_(name, chosen_N, optimizer, position)
                count += int(chosen_N.sum())
        self.recycled += count
        return count

    def _silent(self, name: str, found: _Activity) -> Tensor | None:
        if self.steps % self.every or not float(found.rows):
            return None
        chosen_N = (found.size_N <= self.threshold * found.size_N.mean()) & self._free(name)
        found.size_N.zero_()
        found.rows.zero_()
        return chosen_N

    def _useless(self, name: str, found: _Activity) -> Tensor:
        eligible_N = (found.age_N > self.maturity) & self._free(name)
        utility_N = corrected(found.utility_N, found.updates_N)
        return choose_useless_(found.due, utility_N, eligible_N, self.rate)

    def _free(self, name: str) -> Tensor:
        """The units that no context owns, and that may learn."""
        age_N = self.activity[name].age_N
        kept = None if self.keeper is None else self.keeper.kept(f"{self.sites[name].producers[0]}.weight")
        return torch.ones_like(age_N, dtype=torch.bool) if kept is None else ~kept.all(1)

    def _draw_(self, name: str, chosen_N: Tensor, optimizer: torch.optim.Optimizer, position: int) -> None:
        writer: Any = self.model.get_submodule(self.sites[name].producers[0])
        reader: Any = self.model.get_submodule(name)
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + self.steps) * 101 + position)
        mask = connections(writer)
        inputs = writer.in_features if mask is None else max(1, int(mask.sum(1).max()))
        drawn = (2.0 * torch.rand(writer.weight.shape, generator=draw) - 1.0) / math.sqrt(inputs)
        drawn = drawn.to(writer.weight) if mask is None else drawn.to(writer.weight) * mask
        found = self.activity[name]
        if self.kind == "useless" and reader.bias is not None:  # what the old units gave on average is not lost
            reader.bias.add_(moved_to_bias(reader.weight.T, corrected(found.mean_N, found.updates_N), chosen_N))
        writer.weight[chosen_N] = drawn[chosen_N]
        reader.weight[:, chosen_N] = 0.0
        places = [(writer.weight, chosen_N[:, None]), (reader.weight, chosen_N[None, :])]
        if writer.bias is not None:
            writer.bias[chosen_N] = 0.0
            places.append((writer.bias, chosen_N))
        for parameter, at in places:
            changed = at.expand(parameter.shape)
            state = [v for v in optimizer.state.get(parameter, {}).values() if isinstance(v, Tensor)]
            for value in [parameter.grad, *(v for v in state if v.shape == parameter.shape)]:
                if value is not None:
                    value.masked_fill_(changed, 0.0)
        for value in (found.mean_N, found.utility_N, found.updates_N, found.age_N):
            value[chosen_N] = 0

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def settings(self) -> dict[str, float | str | None]:
        """What a run that continues this one must share."""
        return {name: getattr(self, name) for name in ("kind", "every", "threshold", "rate", "maturity", "seed")}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        state: dict[str, Any] = {"steps": self.steps, "recycled": self.recycled}
        for name, found in self.activity.items():
            state |= {f"{name}.{field}": value for field, value in found._asdict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with `state_dict`."""
        self.steps, self.recycled = state["steps"], state["recycled"]
        for name, found in self.activity.items():
            device = next(self.model.parameters()).device
            kept = {field: state[f"{name}.{field}"].clone().to(device) for field in found._fields}
            self.activity[name] = _Activity(**kept)


def _no_activity(width: int) -> _Activity:
    size, mean, utility, updates, age = (torch.zeros(width) for _ in range(5))
    rows, due = (torch.zeros((), dtype=torch.float64) for _ in range(2))
    return _Activity(size, rows, mean, utility, updates, age, due)
