"""Keep what a model has learned, to the bit, while it goes on learning with what is free.

A unit is kept once a context has used it: everything that decides its value stays as it is. Free units may learn, and
may read kept ones. They are closed for the inputs of kept contexts, because gates are kept too, so that old answers
cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.modules import unwrap

FREE = -1


class Keeper:
    """Which units of a gated model belong to which context, and which parameters may no longer change.

    In a training loop::

        loss.backward()
        keeper.step(optimizer)   # kept entries have no gradient and no momentum
        optimizer.step()
        keeper.restore_()        # and are what they were, whatever the optimizer did (weight decay, momentum)

    and at the end of a context ``keeper.keep_(used)``, with the usage of its rows. Call `restore_` also after
    `Budget.calibrate_`, which moves gates.

    Units of sites without a gate, and every other parameter of the model, are kept with the first context: they are
    part of every answer. `free` says how many units are left.
    """

    def __init__(self, model: nn.Module) -> None:
        """Nothing is kept yet. An error for a model without gates: nothing could be learned beside what is kept."""
        self.model = unwrap(model)
        self.gates = named_gates(model)
        if not self.gates:
            raise ValueError("this model has no gates, so every unit is part of every answer: call gate_(model) first")
        self.owner_of = {
            name: torch.full((gate.site.width,), FREE, dtype=torch.int16, device=gate.tau.device)
            for name, gate in self.gates.items()
        }
        self._kept: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}

    @property
    def contexts(self) -> int:
        """How many contexts were kept so far, released ones included."""
        return 1 + max(int(owner_N.max()) for owner_N in self.owner_of.values())

    @property
    def free(self) -> dict[str, float]:
        """The fraction of free units of each site."""
        return {site: float((owner_N == FREE).float().mean()) for site, owner_N in self.owner_of.items()}

    @torch.no_grad()
    def keep_(self, used: Usage | Mapping[str, Tensor]) -> int:
        """Keep the units that were open for some row, as far as they are free; returns the number of the context.

        used: from `usage`, or for each site which of its units are to be kept, one boolean each.
        """
        number = self.contexts
        units = _opened(used, self.gates) if isinstance(used, Usage) else used
        if set(units) != set(self.owner_of):
            raise ValueError(f"expected units of {sorted(self.owner_of)}, received {sorted(units)}")
        self.restore_()
        for site, opened_N in units.items():
            owner_N = self.owner_of[site]
            owner_N[opened_N.to(owner_N.device) & (owner_N == FREE)] = number
        self._remember()
        return number

    @torch.no_grad()
    def release_(self, context: int) -> None:
        """Free the units of a context: its answers may change from now on."""
        for owner_N in self.owner_of.values():
            owner_N[owner_N == context] = FREE
        self._remember()

    def kept(self, parameter: str) -> Tensor | None:
        """Which entries of a parameter may not change; None while nothing is kept."""
        return self._kept.get(parameter)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take gradient and momentum from kept entries; call it before `optimizer.step()`."""
        for name, parameter in self.model.named_parameters():
            kept = self._kept.get(name)
            if kept is None:
                continue
            if parameter.grad is not None:
                parameter.grad.masked_fill_(kept, 0.0)
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.masked_fill_(kept, 0.0)

    @torch.no_grad()
    def restore_(self) -> None:
        """Write kept entries back as they were; call it after `optimizer.step()`."""
        for name, parameter in self.model.named_parameters():
            if name in self._kept:
                parameter.copy_(torch.where(self._kept[name], self._values[name], parameter))

    def state_dict(self) -> dict[str, Tensor]:
        """Who owns each unit; the values are those of the model, which is saved with it."""
        return dict(self.owner_of)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Keep what `state_dict` says, with the values that the model has now."""
        found = {site: len(owner_N) for site, owner_N in state.items()}
        expected = {site: len(owner_N) for site, owner_N in self.owner_of.items()}
        if found != expected:
            raise ValueError(f"this is the state of another model: expected units {expected}, received {found}")
        for site, owner_N in state.items():
            self.owner_of[site].copy_(owner_N)
        self._remember()

    def _remember(self) -> None:
        """Work out which entries are kept, and copy their values."""
        units = {site: owner_N != FREE for site, owner_N in self.owner_of.items()}
        if not any(bool(kept_N.any()) for kept_N in units.values()):
            self._kept, self._values = {}, {}
            return
        modules = dict(self.model.named_modules())
        kept = {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.model.named_parameters()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        writers = {producer for site, gate in self.gates.items() for producer in gate.site_at(site).producers}
        for site, gate in self.gates.items():
            at = gate.site_at(site)
            if at.consumer not in writers:  # only the units it reads are somebody's: an output has no context
                kept[names[id(_linear(modules, at.consumer).weight)]] &= units[site]
        for site, gate in self.gates.items():
            for producer in gate.site_at(site).producers:  # a kept unit may not read anything new
                layer = _linear(modules, producer)
                kept[names[id(layer.weight)]] &= units[site][:, None]
                if layer.bias is not None:
                    kept[names[id(layer.bias)]] &= units[site]
        self._kept = kept
        self._values = {name: p.detach().clone() for name, p in self.model.named_parameters()}


def _linear(modules: Mapping[str, nn.Module], name: str) -> nn.Linear:
    layer = modules[name]
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"units of nn.Linear layers can be kept, received {type(layer).__name__} at {name!r}")
    return layer


def _opened(used: Usage, gates: Mapping[str, Gate]) -> dict[str, Tensor]:
    """The units of each site that were open for some row."""
    opened = {site: used[site].open.flatten(0, -2).amax(0) > 0 for site in used}
    return {site: gates[site].per_unit(opened_G) for site, opened_G in opened.items()}
