"""What others do to go on learning for long: weights are held small, or near where they began, or shaken.

ReDo and continual backprop are `dynamicgate.sparsity.Recycler`; layer norm is a choice of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.continual.learners import Learner


class L2(Learner):
    """The squared size of all weights is a part of the loss."""

    def __init__(self, model: nn.Module, *, strength: float = 1e-4) -> None:
        """strength: of the penalty."""
        super().__init__(model)
        self.strength = strength

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """With the penalty."""
        terms = [self._apart(name, p).square().sum() for name, p in self._trained()]
        return F.cross_entropy(self.model(x), y) + self.strength * torch.stack(terms).sum()

    def _apart(self, name: str, parameter: Tensor) -> Tensor:
        return parameter


class L2Init(L2):
    """The squared distance of all weights from where they began is a part of the loss (Kumar 2023)."""

    def __init__(self, model: nn.Module, *, strength: float = 1e-3) -> None:
        """strength: of the penalty."""
        super().__init__(model, strength=strength)
        self.initial = {name: p.detach().clone() for name, p in self._trained()}

    def _apart(self, name: str, parameter: Tensor) -> Tensor:
        if self.initial[name].device != parameter.device:
            self.initial[name] = self.initial[name].to(parameter.device)
        return parameter - self.initial[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Where weights began."""
        return {f"initial.{name}": tensor for name, tensor in self.initial.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with what `state_dict` gave."""
        super().load_state_dict(state)
        self.initial = {name.removeprefix("initial."): tensor for name, tensor in state.items()}


class ShrinkAndPerturb(Learner):
    """After every step weights shrink a little and are shaken (Ash and Adams 2020)."""

    def __init__(self, model: nn.Module, *, shrink: float = 1e-5, noise: float = 1e-4, seed: int = 0) -> None:
        """shrink: the fraction that weights lose in a step. noise: its standard deviation."""
        super().__init__(model)
        self.shrink, self.noise = shrink, noise
        self._draw = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def after_step(self) -> None:
        """Shrink, and shake."""
        for _, p in self._trained():
            p.mul_(1.0 - self.shrink).add_(self.noise * torch.randn(p.shape, generator=self._draw).to(p))

    def task_state(self) -> dict[str, Tensor]:
        """Where the random numbers are."""
        return {"draw": self._draw.get_state()}

    def load_task_state(self, state: dict[str, Tensor]) -> None:
        """Go on with what `task_state` gave."""
        self._draw.set_state(state["draw"])
