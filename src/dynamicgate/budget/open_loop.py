"""The open loop: the paper's penalty with a lambda you choose, whose outcome depends on it (sec 3.3, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dynamicgate.budget.base import GateBudget
from dynamicgate.budget.penalties import PENALTIES
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.recording import Usage
from dynamicgate.schedule import Schedule, as_schedule


@dataclass(kw_only=True)
class OpenLoopBudget(GateBudget):
    """A penalty on gate usage with a weight of your choice; what the model then executes is not controlled.

    form: the penalty, a name in `PENALTIES`. weight: its lambda, a number or a schedule.
    target_rate: the open rate that the forms "hinge", "keep-hinge", "squared-soft" and "squared-hard" aim at; the other
        forms have none. None is 0.5.
    The other arguments are those of `GateBudget`.
    """

    form: str = "linear"
    weight: float | Schedule = 0.0
    target_rate: float | Schedule | None = None
    _rate_now: float = field(default=0.5, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in PENALTIES:
            raise ValueError(f"form must be one of {', '.join(PENALTIES)}, received {self.form!r}")
        if self.target_rate is not None and self.form in WITHOUT_TARGET:
            raise ValueError(f"the penalty {self.form!r} has no target rate, received target_rate={self.target_rate!r}")

    def apply_(self, model: nn.Module, progress: float) -> None:
        """Set tau and theta of the gates for this moment; call it before the forward pass."""
        super().apply_(model, progress)
        if not self._gates:
            raise ValueError(
                "an OpenLoopBudget is a penalty on gates, and this model has stages alone: use Budget(target=...), "
                "which steers their cut"
            )

    def _advance(self, used: Usage, progress: float, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        now = self._rescue.schedule_time(progress)
        self._rate_now = self._target_rate(progress)
        self.lambda_ = as_schedule(self.weight)(now) * self._rescue.relief
        return self._weighted(used, means)

    def _weighted(self, used: Usage, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        rates = dict(zip(used, means.values(*self._opened(used, means)), strict=True))
        form = PENALTIES[self.form]
        terms = [form(used[site], self._gates[site], self._rate_now, means) for site in used]
        return self.lambda_ * torch.stack(terms).sum(), rates

    def _target_rate(self, progress: float) -> float:
        rate = 0.5 if self.target_rate is None else self.target_rate
        return as_schedule(rate)(self._rescue.schedule_time(progress))


WITHOUT_TARGET = ("linear", "cost", "balance")
