"""Ask a model about the test rows of a stream: always in evaluation mode, and told no more than the stream tells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.continual.contexts import Contexts
from dynamicgate.continual.streams import Stream, Task
from dynamicgate.modules import evaluating

TEST_BATCH = 4096


class Questions:
    """The test rows of every task, on the device where they are asked for."""

    def __init__(self, model: nn.Module, stream: Stream, contexts: Contexts | None, device: torch.device) -> None:
        """Nothing is read yet."""
        self.model, self.stream, self.contexts, self.device = model, stream, contexts, device
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def accuracy(self, number: int, context_of: Sequence[int] = ()) -> float:
        """On the test rows of a task, as it is asked: in the scenario "task" among its classes only. context_of: the
        contexts of the tasks learned so far, which are told where the stream tells them."""
        task = self.stream.tasks[number]
        if number not in self._rows:
            # the memory of a few tasks, whatever the length of the stream; a GPU has more of it than time to copy
            if len(self._rows) > (200 if self.device.type == "cuda" else 20):
                self._rows.clear()
            self._rows[number] = rows_on(self.device, task.test)
        x, y = self._rows[number]
        return int((self.answers(x, number, context_of) == y).sum()) / len(y)

    @torch.no_grad()
    def answers(self, x: Tensor, number: int, context_of: Sequence[int] = ()) -> Tensor:
        """The classes of rows of a task, asked for in the same way."""
        tells = self.contexts is not None and self.stream.known == "ids" and number < len(context_of)
        told = nullcontext() if self.contexts is None else self.contexts.told(context_of[number] if tells else None)
        with evaluating(self.model), told:
            found = [self._scores(rows.to(self.device), self.stream.tasks[number]) for rows in x.split(TEST_BATCH)]
        return torch.cat([scores.argmax(1) for scores in found])

    def _scores(self, x: Tensor, task: Task) -> Tensor:
        scores = self.model(x)
        if self.stream.scenario != "task":
            return scores
        others = torch.ones(scores.shape[1], dtype=torch.bool, device=self.device)
        others[list(task.classes)] = False
        return scores.masked_fill(others, -torch.inf)


def rows_on(device: torch.device, data: Any) -> tuple[Tensor, Tensor]:
    """All rows as one tensor: what changes them is done once, and on the device."""
    moved = data.to(device)
    index = torch.arange(len(data), device=device if isinstance(data.x, Tensor) else "cpu")
    return moved.rows(index).to(device), moved.y
