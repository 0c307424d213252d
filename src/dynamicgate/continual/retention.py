"""What a model retains of a stream: the accuracy matrix, and everything that is read off it.

Papers and libraries differ in these definitions without saying so. Here R[i, j] is the accuracy on task j after
learning task i, counted from 0, and T the number of tasks; every property says what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NAN = float("nan")
SHOWN = {"acc": "ACC", "learned": "learned", "forgetting": "forgetting", "bwt": "BWT", "fwt": "FWT"}
SHOWN_IF_MEASURED = {
    "intransigence": "intransigence",
    "stability_gap": "stability gap",
    "plasticity": "plasticity",
    "ageing": "ageing",
}


@dataclass(eq=False)
class Retention:
    """The accuracy matrix of a stream, and what was measured beside it. Accuracies are fractions, NaN where none was
    measured.

    untrained: accuracy on each task before anything was learned, for `fwt`.
    joint: accuracy on task k of a model trained on tasks 0 to k together, for `intransigence`.
    online: for each task the fraction of its training rows that were answered right before the step on them.
    fresh: the same for a new network on each task alone, for `plasticity`.
    lowest: for each task the lowest accuracy that was measured on it after it was learned, also within later tasks.
    lowest_every: after how many steps within later tasks that was measured; drops in between are not seen.
    scenario: of the stream, where it is known; in "class" there is no forward transfer.
    """

    matrix: Tensor
    untrained: Tensor | None = None
    joint: Tensor | None = None
    online: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    lowest: Tensor | None = None
    lowest_every: int | None = None
    scenario: str | None = None

    def __post_init__(self) -> None:
        self.matrix = torch.as_tensor(self.matrix, dtype=torch.float64)
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1] or not len(self.matrix):
            raise ValueError(f"expected a square matrix of one task or more, received shape {list(self.matrix.shape)}")
        for name in ("untrained", "joint", "lowest"):
            given = getattr(self, name)
            if given is not None:
                setattr(self, name, torch.as_tensor(given, dtype=torch.float64))
                if getattr(self, name).shape != (len(self),):
                    raise ValueError(f"{name} has one accuracy for each of {len(self)} tasks, received {list(given)}")

    @staticmethod
    def empty(tasks: int, scenario: str | None = None) -> Retention:
        """To be filled while a stream is followed."""
        return Retention(torch.full((tasks, tasks), NAN), scenario=scenario)

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def learned_tasks(self) -> int:
        """How many tasks were learned so far: rows of the matrix that are filled."""
        return int((~self.matrix.diagonal().isnan()).sum())

    @property
    def acc(self) -> float:
        """Mean accuracy on all tasks after the last one (Lopez-Paz and Ranzato 2017)."""
        return float(self.matrix[-1].mean())

    @property
    def learned(self) -> float:
        """Mean accuracy on each task just after it was learned."""
        return float(self.matrix.diagonal().mean())

    @property
    def bwt(self) -> float:
        """Backward transfer: mean over all tasks but the last of R[T-1, j] - R[j, j]; below 0 is forgetting. The mean
        is over T - 1 tasks; some code divides by T."""
        return float((self.matrix[-1, :-1] - self.matrix.diagonal()[:-1]).mean()) if len(self) > 1 else NAN

    @property
    def fwt(self) -> float:
        """Forward transfer: mean over all tasks but the first of R[j-1, j] - accuracy of the untrained model. NaN where
        the untrained model or later tasks were not measured, and for class-incremental streams, in which nobody can
        answer with a class not seen yet."""
        if self.untrained is None or len(self) < 2 or self.scenario == "class":
            return NAN
        return float((self.matrix.diagonal(offset=1) - self.untrained[1:]).mean())

    @property
    def forgetting(self) -> float:
        """`forgetting_after` all tasks."""
        return self.forgetting_after(len(self) - 1)

    def forgetting_after(self, last: int) -> float:
        """Mean over tasks j before `last` of (highest accuracy on j after any task from j to last - 1) minus R[last, j]
        (Chaudhry et al. 2018, eq. 3). The highest may come later than just after learning, which -bwt overlooks; row
        `last` itself is not among the candidates, so that a task that still improves counts below 0."""
        if not 0 < last < len(self):
            return NAN
        best = torch.stack([self.matrix[task:last, task].max() for task in range(last)])
        return float((best - self.matrix[last, :last]).mean())

    @property
    def intransigence(self) -> float:
        """Mean over tasks k of what joint training reaches on task k minus R[k, k]; NaN without joint training."""
        return NAN if self.joint is None else float((self.joint - self.matrix.diagonal()).mean())

    @property
    def stability_gap(self) -> float:
        """Mean over all tasks but the last of the accuracy just after learning minus the lowest one ever measured
        later, also within later tasks: a drop that is made good by the end is seen here only. NaN if not measured."""
        if self.lowest is None or len(self) < 2:
            return NAN
        return float((self.matrix.diagonal() - self.lowest)[:-1].mean())

    @property
    def plasticity(self) -> list[float]:
        """Online accuracy on each task relative to a new network on the same rows: 1 learns as well as a young one."""
        if len(self.online) > len(self.fresh):  # fresh networks may be ahead: they are trained first
            raise ValueError(
                f"plasticity compares the same tasks: {len(self.online)} were followed and {len(self.fresh)} learned "
                "by a fresh network"
            )
        return [ours / fresh if fresh else NAN for ours, fresh in zip(self.online, self.fresh, strict=False)]

    @property
    def ageing(self) -> float:
        """Mean online accuracy in the last tenth of the tasks minus that in the second tenth; below 0 the model has
        lost plasticity. The first tenth still learns to learn."""
        tenth = len(self.online) // 10
        if tenth < 1:
            return NAN
        early, late = self.online[tenth : 2 * tenth], self.online[-tenth:]
        return sum(late) / tenth - sum(early) / tenth

    def by_age(self, row: int | None = None) -> list[float]:
        """Accuracy after task `row` (the last one) on the task just learned, the one before, and so on."""
        row = len(self) - 1 if row is None else row
        return self.matrix[row, : row + 1].flip(0).tolist()

    def summary(self) -> dict[str, float]:
        """Everything that is one number, by name; NaN where it was not measured. Plasticity is the mean over tasks."""
        relative = self.plasticity if self.online and len(self.fresh) >= len(self.online) else []
        return {
            "acc": self.acc, "learned": self.learned, "forgetting": self.forgetting, "bwt": self.bwt, "fwt": self.fwt,
            "intransigence": self.intransigence, "stability_gap": self.stability_gap,
            "plasticity": sum(relative) / len(relative) if relative else NAN, "ageing": self.ageing,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; NaN is None. The summary is there for readers, `from_dict` works it out again."""

        def plain(values: Sequence[float]) -> list[float | None]:
            return [None if math.isnan(value) else value for value in values]

        given = {name: getattr(self, name) for name in ("untrained", "joint", "lowest")}
        return {
            "matrix": [plain(row) for row in self.matrix.tolist()], "online": plain(self.online),
            "fresh": plain(self.fresh),
            **{name: None if value is None else plain(value.tolist()) for name, value in given.items()},
            "lowest_every": self.lowest_every, "scenario": self.scenario,
            "summary": {name: None if math.isnan(value) else value for name, value in self.summary().items()},
        }  # fmt: skip

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Retention:
        """The inverse of `to_dict`."""

        def read(values: Sequence[float | None]) -> list[float]:
            return [NAN if value is None else value for value in values]

        given = {name: stored[name] for name in ("untrained", "joint", "lowest") if stored[name] is not None}
        return Retention(
            torch.tensor([read(row) for row in stored["matrix"]], dtype=torch.float64),
            **{name: torch.tensor(read(value), dtype=torch.float64) for name, value in given.items()},
            online=read(stored["online"]), fresh=read(stored["fresh"]),
            lowest_every=stored.get("lowest_every"), scenario=stored.get("scenario"),  # absent in older files
        )  # fmt: skip

    def __repr__(self) -> str:
        found = self.summary()
        words = [f"{shown} {_percent(found[name])}" for name, shown in SHOWN.items()]
        words += [f"{shown} {_percent(found[name])}" for name, shown in SHOWN_IF_MEASURED.items()
                  if not math.isnan(found[name])]  # fmt: skip
        return f"Retention({len(self)} tasks: {'  '.join(words)})"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f}"
