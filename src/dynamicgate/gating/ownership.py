"""Which context owns each unit of a gate, and who else uses it: buffers beside the gate, saved with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

FREE = -1
NO_UNIT = -1
OWNER = "owner"
BORROWED = "borrowed"


def put_owner_(gate: nn.Module, width: int, device: torch.device) -> None:
    """Give a gate of `width` units the buffer, with every unit free, if it has none yet."""
    if not hasattr(gate, OWNER):
        gate.register_buffer(OWNER, torch.full((width,), FREE, dtype=torch.int16, device=device))


def put_owners_as_in_(gate: Any, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Give a gate the buffers that it has in a checkpoint, in their shapes; the values are loaded later. `prefix` is
    its name there, with a dot at the end."""
    if f"{prefix}{OWNER}" in tensors:
        put_owner_(gate, gate.site.width, gate.tau.device)
    pairs = tensors.get(f"{prefix}{BORROWED}")
    if pairs is not None and (pairs.ndim != 2 or pairs.shape[1] != 2 or _outside(pairs[:, 1], gate.site.width)):
        raise ValueError(
            f"{prefix}{BORROWED} has pairs of a context and one of {gate.site.width} units, received a tensor of shape "
            f"{list(pairs.shape)} with other numbers"
        )
    _put_borrowed_(gate, None if pairs is None else pairs.clone(), gate.tau.device)


def _outside(unit: Tensor, width: int) -> bool:
    return len(unit) > 0 and not unit.is_meta and not NO_UNIT <= int(unit.min()) <= int(unit.max()) < width


def owner_of(gate: Any) -> Tensor:
    """The number of the context that owns each unit, or FREE."""
    owner: Tensor = gate.owner
    return owner


def borrowed_of(gate: Any) -> Tensor:
    """Pairs of a context and a unit that it uses and another one owns, one a row; of a context that opened no unit at
    all, one with NO_UNIT. Empty where contexts share nothing, and then no buffer either: most models have none."""
    found: Tensor | None = getattr(gate, BORROWED, None)
    return torch.zeros((0, 2), dtype=torch.int32, device=gate.tau.device) if found is None else found


def is_kept(gate: Any) -> bool:
    """Whether some context owns a unit of this gate, or was kept with none."""
    return hasattr(gate, OWNER) and (bool((owner_of(gate) != FREE).any()) or len(borrowed_of(gate)) > 0)


@torch.no_grad()
def own_(gate: Any, context: int, used_N: Tensor) -> None:
    """A context uses these units: free ones are its own from now on, those of others it borrows."""
    owner_N = owner_of(gate)
    used_N = used_N.to(owner_N.device)
    owner_N[used_N & (owner_N == FREE)] = context
    others = (used_N & (owner_N != context)).nonzero().flatten().int()
    if len(others):
        new = torch.stack([torch.full_like(others, context), others], dim=1)
        _put_borrowed_(gate, torch.cat([borrowed_of(gate), new]).unique(dim=0), owner_N.device)


@torch.no_grad()
def note_(gate: Any, context: int) -> None:
    """A context that opened no unit: what is part of every answer is part of its answers too."""
    pair = torch.tensor([[context, NO_UNIT]], dtype=torch.int32, device=gate.tau.device)
    _put_borrowed_(gate, torch.cat([borrowed_of(gate), pair]), gate.tau.device)


@torch.no_grad()
def disown_(gate: Any, context: int) -> None:
    """A context is gone: its units are free, but for those that others have borrowed. The oldest of them owns them."""
    owner_N, lent = owner_of(gate), borrowed_of(gate)
    owner_N[owner_N == context] = FREE
    lent = lent[lent[:, 0] != context]
    noted, lent = lent[lent[:, 1] == NO_UNIT], lent[lent[:, 1] != NO_UNIT]
    number, unit = lent.unbind(1)
    none = torch.iinfo(torch.int32).max
    heir_N = torch.full(owner_N.shape, none, dtype=torch.int32, device=owner_N.device)
    heir_N.scatter_reduce_(0, unit.long(), number, "amin")
    owner_N.copy_(torch.where((owner_N == FREE) & (heir_N != none), heir_N.to(owner_N.dtype), owner_N))
    _put_borrowed_(gate, torch.cat([noted, lent[owner_N[unit.long()] != number]]), owner_N.device)


def _put_borrowed_(gate: Any, pairs: Tensor | None, device: torch.device) -> None:
    if hasattr(gate, BORROWED):
        delattr(gate, BORROWED)
    if pairs is not None and len(pairs):
        gate.register_buffer(BORROWED, pairs.to(device, torch.int32))
