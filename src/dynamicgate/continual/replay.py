"""Learners that keep rows of the past: replay, dark replay, and gradients that may not hurt what is kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.continual.kept_column import KeptColumn
from dynamicgate.continual.learners import Learner


class Memory:
    """A fair sample of all rows seen so far (reservoir): every row has the same chance to be in it, and nobody needs to
    know when a task ends. Data of at most 256 different values, such as images and labels, take one byte a value."""

    def __init__(self, size: int, seed: int = 0) -> None:
        """Room for `size` rows."""
        if size < 1:
            raise ValueError(f"a memory has room for one row or more, received {size}")
        self.size, self.seen = size, 0
        self._draw = torch.Generator().manual_seed(seed)
        self.columns: tuple[KeptColumn, ...] = ()

    def __len__(self) -> int:
        return min(self.seen, self.size)

    @torch.no_grad()
    def add(self, *columns: Tensor) -> None:
        """Rows with all that is kept of them, such as inputs, labels and scores."""
        if not self.columns:
            self.columns = tuple(KeptColumn(self.size, column) for column in columns)
        count = len(columns[0])
        seen = torch.arange(self.seen + 1, self.seen + count + 1, dtype=torch.float64)
        drawn = (torch.rand(count, generator=self._draw, dtype=torch.float64) * seen).long()
        places = torch.where(seen <= self.size, seen.long() - 1, drawn)  # the first rows fill it in order
        kept_rows = dict(zip(places.tolist(), range(count), strict=True))  # of two rows for a place the later stays
        chosen = {place: row for place, row in kept_rows.items() if place < self.size}
        if chosen:
            at, rows = (torch.tensor(list(part)) for part in (chosen.keys(), chosen.values()))
            for kept, column in zip(self.columns, columns, strict=True):
                kept.write_(at, column[rows.to(column.device)])
        self.seen += count

    def draw(self, count: int) -> tuple[Tensor, ...]:
        """Rows at random, with return."""
        if not len(self):
            raise ValueError("the memory is empty: add rows first")
        rows = torch.randint(len(self), (count,), generator=self._draw)
        return tuple(column[rows] for column in self.columns)


class Replay(Learner):
    """Experience replay: with every batch as many kept rows are learned again."""

    def __init__(self, model: nn.Module, *, rows: int = 200, seed: int = 0) -> None:
        """rows: that are kept."""
        super().__init__(model)
        self.rows, self.seed = rows, seed
        self.memory = Memory(rows, seed)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean over new and kept rows."""
        joined = (x, y)
        if len(self.memory):
            old_x, old_y = self.memory.draw(len(x))[:2]
            joined = (torch.cat([x, old_x.to(x)]), torch.cat([y, old_y.to(y)]))
        loss = F.cross_entropy(self.model(joined[0]), joined[1])
        self.memory.add(x.detach(), y)
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        """The kept rows."""
        kept = {
            f"memory.{number}{name}": value
            for number, column in enumerate(self.memory.columns)
            for name, value in column.state_dict().items()
        }
        state = {"memory.seen": torch.tensor(self.memory.seen), "memory.draw": self.memory._draw.get_state()}
        return {**kept, **state}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the kept rows."""
        if "memory.seen" not in state:
            raise ValueError(f"expected the state of {type(self).__name__}, received {sorted(state)}")
        columns = sorted((n for n in state if n.startswith("memory.") and n[7:].isdigit()), key=lambda n: int(n[7:]))
        self.memory.columns = tuple(KeptColumn.of(state[name], state.get(f"{name}.table")) for name in columns)
        self.memory.seen = int(state["memory.seen"])
        self.memory._draw.set_state(state["memory.draw"])


class DarkReplay(Replay):
    """Dark experience replay, DER++ (Buzzega 2020): kept rows come with the scores they had when they were seen, and
    the model keeps to those as well as to their labels."""

    def __init__(
        self, model: nn.Module, *, rows: int = 200, scores: float = 0.5, labels: float = 0.5, seed: int = 0
    ) -> None:
        """scores, labels: weights of keeping to the old scores and of the labels of kept rows."""
        super().__init__(model, rows=rows, seed=seed)
        self.scores, self.labels = scores, labels

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """New rows, and two draws of kept ones: one for scores, one for labels."""
        answered = self.model(x)
        loss = F.cross_entropy(answered, y)
        if len(self.memory):
            old_x, _, old_scores = (column.to(x.device) for column in self.memory.draw(len(x)))
            loss = loss + self.scores * F.mse_loss(self.model(old_x), old_scores)
            old_x, old_y, _ = (column.to(x.device) for column in self.memory.draw(len(x)))
            loss = loss + self.labels * F.cross_entropy(self.model(old_x), old_y)
        self.memory.add(x.detach(), y, answered.detach())
        return loss


class AGEM(Replay):
    """Averaged gradient episodic memory (Chaudhry 2019): where a step would raise the loss on kept rows, the part of
    the gradient that does so is taken out. Rows of the task that is being learned do not judge."""

    needs_boundaries = True

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of the new rows alone; kept ones only judge its gradient."""
        loss = F.cross_entropy(self.model(x), y)
        self._judge = self.memory.draw(len(x))[:2] if self.tasks and len(self.memory) else None
        self.memory.add(x.detach(), y)
        return loss

    def after_backward(self) -> None:
        """Project the gradient where it points against that of the kept rows."""
        if self._judge is None:
            return
        named = [p for _, p in self._trained() if p.grad is not None]
        old_x, old_y = self._judge
        device = named[0].device
        judged = F.cross_entropy(self.model(old_x.to(device)), old_y.to(device))
        found = torch.autograd.grad(judged, named, allow_unused=True)
        old = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(named, found, strict=True)]
        new = [p.grad for p in named if p.grad is not None]
        product = torch.stack([(ours * grad).sum() for ours, grad in zip(new, old, strict=True)]).sum()
        if float(product) < 0.0:
            share = product / torch.stack([grad.square().sum() for grad in old]).sum()
            for ours, grad in zip(new, old, strict=True):
                ours -= share * grad
