"""Keep what a model has learned, to the bit, while it goes on learning with what is free.

A unit is kept once a context has used it: everything that decides its value stays as it is. Free units may learn, and
may read kept ones. They are closed for the inputs of kept contexts, because gates are kept too, so that old answers
cannot change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.ownership import (
    BORROWED,
    FREE,
    OWNER,
    borrowed_of,
    disown_,
    note_,
    own_,
    owner_of,
    put_owner_,
    put_owners_as_in_,
)
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.masks import connections
from dynamicgate.modules import unwrap

Units = Mapping[str, Tensor]


class _Allotted(NamedTuple):
    """For each site which units may learn, and which of them all may be read."""

    own: Units
    readable: Units


class Keeper:
    """Which units of a gated model belong to which context, and which parameters may no longer change.

    In a training loop::

        loss.backward()
        keeper.step(optimizer)   # kept entries have no gradient and no momentum
        optimizer.step()
        keeper.restore_()        # and are what they were, whatever the optimizer did (weight decay, momentum)

    and at the end of a context ``keeper.keep_(used)``, with the usage of its rows. Call `restore_` also after
    `Budget.apply_` and `calibrate_`, which move gates. With a sparsifier, make it with ``keeper=keeper``: it then
    prunes and grows only where it is free.

    Units of sites without a gate, every other parameter of the model, and buffers that decide answers (tau and theta of
    gates, which a budget sets, and statistics of a batch norm) are kept with the first context: they are part of every
    answer. `free` says how many units are left. Who owns a unit is a buffer of its gate: it is saved with the model,
    and a keeper that is made for a loaded model goes on with it.
    """

    def __init__(self, model: nn.Module) -> None:
        """Keep what the model says that contexts own; nothing at first. An error for a model without gates: nothing
        could be learned beside what is kept."""
        self.model = unwrap(model)
        self.gates = named_gates(model)
        if not self.gates:
            raise ValueError("this model has no gates, so every unit is part of every answer: call gate_(model) first")
        for gate in self.gates.values():
            put_owner_(gate, gate.site.width, gate.tau.device)
        self._allotted: _Allotted | None = None
        self._owned: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._remember()

    @property
    def owner_of(self) -> dict[str, Tensor]:
        """The context that owns each unit, by site; -1 is free."""
        return {site: owner_of(gate) for site, gate in self.gates.items()}

    @property
    def contexts(self) -> int:
        """How many contexts were kept so far, released ones included unless they were the last."""
        return 1 + max(int(numbers.max()) for numbers in self._numbers())

    @property
    def free(self) -> dict[str, float]:
        """The fraction of free units of each site."""
        return {site: float((owner_N == FREE).float().mean()) for site, owner_N in self.owner_of.items()}

    @torch.no_grad()
    def allot_(self, own: Units, readable: Units | None = None) -> None:
        """Only these units, as far as they are free, may learn from now on; all others stay as they are.

        own: for each site one boolean a unit. readable: the units that those of the next layer may read; None: all.
        Without a call all free units may learn. `keep_` and `release_` end it.
        """
        self._check_sites(own)
        self.restore_()
        device = next(iter(self.owner_of.values())).device
        every = {site: torch.ones_like(units_N) for site, units_N in own.items()} if readable is None else readable
        own, every = ({site: units_N.to(device) for site, units_N in part.items()} for part in (own, every))
        self._allotted = _Allotted(own, every)
        self._remember()

    @torch.no_grad()
    def keep_(self, used: Usage | Units, context: int | None = None) -> int:
        """Keep the units that were open for some row; returns the number of the context. Those of earlier contexts are
        kept for both: they stay when the earlier one is released.

        used: from `usage`, or for each site which of its units are to be kept, one boolean each. context: its number;
        None is the next one.
        """
        number = self.contexts if context is None else context
        units = _opened(used, self.gates) if isinstance(used, Usage) else used
        self._check_sites(units)
        self.restore_()
        for site, opened_N in units.items():
            own_(self.gates[site], number, opened_N)
        if not any(bool(opened_N.any()) for opened_N in units.values()):
            note_(next(iter(self.gates.values())), number)
        self._allotted = None
        self._remember()
        return number

    @torch.no_grad()
    def release_(self, context: int) -> None:
        """Free the units of a context: its answers may change from now on, those of others do not. Units that a later
        context uses too are that one's from now on."""
        self.restore_()
        for gate in self.gates.values():
            disown_(gate, context)
        self._allotted = None
        self._remember()

    def release_oldest_(self) -> int:
        """Free the units of the oldest context that is still kept; returns its number."""
        owned = torch.cat([numbers[numbers != FREE] for numbers in self._numbers()])
        if not len(owned):
            raise ValueError("no context is kept, so that there is none to release")
        oldest = int(owned.min())
        self.release_(oldest)
        return oldest

    def kept(self, parameter: str) -> Tensor | None:
        """Which entries of a parameter may not change; None while all may."""
        return self._kept.get(parameter)

    def owned(self, parameter: str) -> Tensor | None:
        """Which entries of a parameter decide the answers of a kept context; None while there is none. What is kept
        but not owned is free, and only waits until it is allotted."""
        return self._owned.get(parameter)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take gradient and momentum from kept entries; call it before `optimizer.step()`."""
        self._follow_device()
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
        self._follow_device()
        parameters = dict(self.model.named_parameters())
        if gone := self._kept.keys() - parameters.keys():
            raise ValueError(
                f"{', '.join(sorted(gone)[:3])} was kept and is no longer part of the model, so that old answers "
                "cannot be given: a gate was folded or a layer replaced. Do that before the first context is kept"
            )
        for name, kept in self._kept.items():
            parameters[name].copy_(torch.where(kept, self._values[name], parameters[name]))
        for name, buffer in _deciding(self.model) if self._buffers else ():
            if name in self._buffers:
                buffer.copy_(self._buffers[name])

    @torch.no_grad()
    def forget_(self, parameter: str) -> None:
        """Take the present values of a parameter where it is nobody's: a sparsifier has removed what waits there."""
        if parameter in self._kept:
            now, owned = self.model.get_parameter(parameter), self._owned.get(parameter)
            value = self._values[parameter]
            self._values[parameter] = now.detach().clone() if owned is None else torch.where(owned, value, now)

    def state_dict(self) -> dict[str, Tensor]:
        """Who owns each unit, and what is allotted; the values are those of the model, which is saved with it."""
        state = dict(self.owner_of)
        lent = {f"{BORROWED}.{site}": borrowed_of(gate) for site, gate in self.gates.items()}
        state |= {name: pairs for name, pairs in lent.items() if len(pairs)}
        for part in () if self._allotted is None else ("own", "readable"):
            state |= {f"{part}.{site}": units for site, units in getattr(self._allotted, part).items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Units) -> None:
        """Keep what `state_dict` says, with the values that the model has now."""
        sites = list(self.owner_of)
        expected = {site: len(owner_N) for site, owner_N in self.owner_of.items()}
        others = ("own.", "readable.", f"{BORROWED}.")
        found = {site: len(state[site]) for site in state if not site.startswith(others)}
        if found != expected:
            raise ValueError(f"this is the state of another model: expected units {expected}, received {found}")
        for site, owner_N in self.owner_of.items():
            owner_N.copy_(state[site])
            lent = {BORROWED: state[name]} if (name := f"{BORROWED}.{site}") in state else {}
            put_owners_as_in_(self.gates[site], "", lent)
        self._allotted = None
        if any(name.startswith("own.") for name in state):
            device = next(iter(self.owner_of.values())).device
            own, readable = ({s: state[f"{part}.{s}"].to(device) for s in sites} for part in ("own", "readable"))
            self._allotted = _Allotted(own, readable)
        self._remember()

    def _check_sites(self, units: Units) -> None:
        if set(units) != set(self.gates):
            raise ValueError(f"expected units of {sorted(self.gates)}, received {sorted(units)}")

    def _numbers(self) -> list[Tensor]:
        """The contexts that own or use something; -1 for what is free."""
        return [
            numbers for gate in self.gates.values()
            for numbers in (owner_of(gate), borrowed_of(gate)[:, 0]) if len(numbers)
        ]  # fmt: skip

    def _follow_device(self) -> None:
        """The model may have moved since. What is kept is moved too, not read anew: it may have been changed."""
        if self._kept:
            name, parameter = next(iter(self.model.named_parameters()))
            if name in self._values and self._values[name].device != parameter.device:
                for part in ("_owned", "_kept", "_values", "_buffers"):
                    setattr(self, part, {key: t.to(parameter.device) for key, t in getattr(self, part).items()})

    def _remember(self) -> None:
        """Work out which entries are kept, and copy their values."""
        owned = {site: owner_N != FREE for site, owner_N in self.owner_of.items()}
        some = any(bool((numbers != FREE).any()) for numbers in self._numbers())
        self._owned = self._entries(owned, shared=True) if some else {}
        if self._allotted is None:
            self._kept = self._owned
        else:
            device = next(iter(owned.values())).device
            own, readable = ({site: u.to(device) for site, u in part.items()} for part in self._allotted)
            self._allotted = _Allotted(own, readable)
            locked = {site: owned_N | ~own[site] for site, owned_N in owned.items()}
            self._kept = self._entries(locked, shared=some, unread={site: ~u for site, u in readable.items()})
        self._values = {name: p.detach().clone() for name, p in self.model.named_parameters()} if self._kept else {}
        self._buffers = {name: buffer.clone() for name, buffer in _deciding(self.model)} if some else {}

    def _entries(self, units: Units, *, shared: bool, unread: Units | None = None) -> dict[str, Tensor]:
        """The entries that decide the value of these units. shared: and all that are part of every answer. unread:
        units that no free unit may read."""
        modules = dict(self.model.named_modules())
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        found = {name: torch.full_like(p, shared, dtype=torch.bool) for name, p in self.model.named_parameters()}
        writers = {producer for site, gate in self.gates.items() for producer in gate.site_at(site).producers}
        readers = {gate.site_at(site).consumer: site for site, gate in self.gates.items()}
        for reader, site in readers.items():
            if reader not in writers:  # only the units it reads are somebody's: an output has no context
                weight = _linear(modules, reader).weight
                found[names[id(weight)]] = units[site].expand(weight.shape).clone()
        for site, gate in self.gates.items():
            for producer in gate.site_at(site).producers:  # a kept unit may not read anything new
                layer = _linear(modules, producer)
                rows = units[site][:, None].expand(layer.weight.shape)
                read = readers.get(producer)
                barred = None if unread is None or read is None else unread[read]
                found[names[id(layer.weight)]] = rows.clone() if barred is None else rows | barred
                if layer.bias is not None:
                    found[names[id(layer.bias)]] = units[site].clone()
        return found


def _deciding(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that are part of every answer. Not which connections exist, which a sparsifier changes where it is
    free, nor who owns what and which contexts are known."""
    for path, module in model.named_modules():
        mask = connections(module)
        for name, buffer in module.named_buffers(path, recurse=False):
            owners = isinstance(module, Gate) and name.rpartition(".")[2] in (OWNER, BORROWED)
            if not (owners or buffer is mask or isinstance(module, ContextNet)):
                yield name, buffer


def _linear(modules: Mapping[str, nn.Module], name: str) -> nn.Linear:
    layer = modules[name]
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"units of nn.Linear layers can be kept, received {type(layer).__name__} at {name!r}")
    return layer


def _opened(used: Usage, gates: Mapping[str, Gate]) -> dict[str, Tensor]:
    """The units of each site that were open for some row."""
    opened = {site: used[site].open.flatten(0, -2).amax(0) > 0 for site in used}
    return {site: gates[site].per_unit(opened_G) for site, opened_G in opened.items()}
