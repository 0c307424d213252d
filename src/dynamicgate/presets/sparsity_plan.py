"""What `sparsify_` put on a model, for what trains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynamicgate.budget import Budget
from dynamicgate.sparsity import RigL
from dynamicgate.training.stage_loss import StageLoss


class SparsityPlan(Mapping[str, Any]):
    """What `sparsify_` put on a model, as the arguments that `fit` needs: ``dg.fit(model, data, **plan)``, or a Trainer
    of Hugging Face: ``dg.hf.GateCallback(**plan)``.

    budget: controls the gates; None where there are none. sparsifier: prunes and regrows connections; None where all
        are kept. stage_loss: trains the stages; None where there are none. notes: why there are gates or none, and what
        the benchmarked recipe also does, but which cannot be done to an existing model.
    """

    def __init__(
        self, budget: Budget | None, sparsifier: RigL | None, notes: Sequence[str], stage_loss: StageLoss | None = None
    ) -> None:
        """Made by `sparsify_`."""
        self.budget, self.sparsifier, self.stage_loss, self.notes = budget, sparsifier, stage_loss, list(notes)

    def __getitem__(self, name: str) -> Any:
        if name not in ("budget", "sparsifier", "stage_loss"):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        stages = () if self.stage_loss is None else ("stage_loss",)  # not everything that trains knows stages
        return iter(("budget", "sparsifier", *stages))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __str__(self) -> str:
        what = "gates" if self.stage_loss is None else "stages"
        gates = "no gates" if self.budget is None else f"{what} held to {self.budget.target:g} of the dense MACs"
        pruned = [] if self.sparsifier is None else [str(self.sparsifier)]
        return "\n".join([gates, *pruned, *(f"note: {note}" for note in self.notes)])
