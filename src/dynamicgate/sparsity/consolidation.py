"""Keep connections that have survived a few exchanges: protection by time, where nobody says when a task ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.masks import connections
from dynamicgate.modules import unwrap
from dynamicgate.sparsity.keeper import Keeper


class Consolidation:
    """A connection that a sparsifier has left in place `after` times may no longer change, nor be pruned.

    It takes the place of a keeper in a training loop (`step` before the optimizer's, `restore_` after it) and in
    ``RigL(model, ..., keeper=consolidation)``. Nothing is owned by a context, and new connections may grow anywhere, so
    that old answers can still change: it is a slower clock, not a promise.

    most: the largest fraction of the connections of a layer that may be kept; those that have survived longest are kept
    first. What is left goes on learning.
    """

    def __init__(self, model: nn.Module, *, after: int, most: float = 0.5) -> None:
        """Nothing is kept yet."""
        if after < 1 or not 0.0 < most <= 1.0:
            raise ValueError(f"expected after >= 1 and 0 < most <= 1, received {after} and {most}")
        self.model, self.after, self.most = unwrap(model), after, most
        self.survived: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}  # of masks: comparing them would wait for a GPU at every step

    @property
    def contexts(self) -> int:
        """It knows none."""
        return 0

    @property
    def settings(self) -> dict[str, float]:
        """What a run that continues this one must share."""
        return {"after": self.after, "most": self.most}

    @property
    def free(self) -> dict[str, float]:
        """The fraction of the connections of each sparse layer that may still change."""
        return {
            name: 1.0 - float(self._kept[f"{name}.weight"].sum()) / max(1, int(mask.sum()))
            for name, mask in self._before.items()
        }

    def kept(self, parameter: str) -> Tensor | None:
        """Which entries of a parameter may not change; None while all may."""
        return self._kept.get(parameter)

    def owned(self, parameter: str) -> Tensor | None:
        """As `kept`: nothing waits to be allotted."""
        return self._kept.get(parameter)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice exchanges, and take gradient and momentum from kept entries; call it before `optimizer.step()`."""
        for name, linear, mask in self._sparse():
            if self._versions.get(name) != mask._version:
                self._count(name, linear, mask)
            kept = self._kept[f"{name}.weight"]
            state = [v for v in optimizer.state.get(linear.weight, {}).values() if isinstance(v, Tensor)]
            for value in [linear.weight.grad, *(v for v in state if v.shape == mask.shape)]:
                if value is not None:
                    value.masked_fill_(kept, 0.0)

    def _count(self, name: str, linear: nn.Linear, mask: Tensor) -> None:
        """An exchange has happened: what is still there has survived it."""
        before = self._before.get(name)
        stayed = torch.zeros_like(mask) if before is None else before & mask
        count = self.survived.get(name, torch.zeros(mask.shape, dtype=torch.int16, device=mask.device))
        self.survived[name] = torch.where(stayed, count + 1, 0).to(torch.int16)
        self._before[name], self._versions[name] = mask.clone(), mask._version
        old = self._kept.get(f"{name}.weight", torch.zeros_like(mask))
        room = int(self.most * int(mask.sum())) - int(old.sum())
        ready = (self.survived[name] >= self.after) & ~old
        if int(ready.sum()) > max(0, room):  # the largest first: they decide most
            size = linear.weight.detach().abs().masked_fill(~ready, -1.0).flatten()
            ready = torch.zeros_like(ready).view(-1).index_fill(0, size.topk(max(0, room)).indices, True).view_as(mask)
        self._kept[f"{name}.weight"] = old | ready
        self._values[f"{name}.weight"] = linear.weight.detach().clone()

    @torch.no_grad()
    def restore_(self) -> None:
        """Write kept entries back as they were; call it after `optimizer.step()`."""
        for name, linear, _ in self._sparse():
            kept = self._kept.get(f"{name}.weight")
            if kept is not None:
                linear.weight.copy_(torch.where(kept, self._values[f"{name}.weight"], linear.weight))

    def keep_(self, used: Any, context: int | None = None) -> int:
        """Nothing happens at the end of a task: time alone decides."""
        return 0

    def forget_(self, parameter: str) -> None:
        """Nothing waits here."""

    def state_dict(self) -> dict[str, Tensor]:
        """How long connections have survived, and which are kept; values are those of the model."""
        state = {f"survived.{name}": count for name, count in self.survived.items()}
        return state | {f"kept.{name}": kept for name, kept in self._kept.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with `state_dict`, with the values that the model has now."""
        for name, linear, mask in self._sparse():
            if f"survived.{name}" in state:
                self.survived[name] = state[f"survived.{name}"].to(mask.device)
                self._kept[f"{name}.weight"] = state[f"kept.{name}.weight"].to(mask.device)
                self._values[f"{name}.weight"] = linear.weight.detach().clone()
                self._before[name], self._versions[name] = mask.clone(), mask._version

    def _sparse(self) -> list[tuple[str, nn.Linear, Tensor]]:
        linears = [(name, m) for name, m in self.model.named_modules() if isinstance(m, nn.Linear)]
        return [(name, m, mask) for name, m in linears if (mask := connections(m)) is not None]


AnyKeeper = Keeper | Consolidation
"""What a sparsifier asks which connections may change."""
