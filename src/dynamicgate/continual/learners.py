"""What others do against forgetting, for one training loop: each adds to the loss, changes gradients, or keeps rows.

A loop calls, for each task, `begin`, then for each batch `loss`, `backward()`, `after_backward`, `optimizer.step()`,
`after_step`, and at the end `finish`. `bytes` is what a learner keeps between tasks, beside the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.continual.streams import Task
from dynamicgate.modules import evaluating

FISHER_ROWS = 1000


class Learner:
    """Plain training, and what all others build on: nothing is done against forgetting."""

    needs_boundaries = False
    """Whether it must be told when a task ends."""

    def __init__(self, model: nn.Module) -> None:
        """For one model, from its first task on."""
        self.model = model
        self.tasks = 0

    @property
    def bytes(self) -> int:
        """What is kept between tasks, beside the model."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())

    @property
    def settings(self) -> dict[str, int | float | str]:
        """What a run that continues this one must share."""
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        return {name: value for name, value in plain.items() if name != "tasks" and not name.startswith("_")}

    def to(self, device: torch.device) -> None:
        """Move what is kept to where the model is; `follow` does it when it has moved the model."""

    def begin(self, task: Task) -> None:
        """A task is about to be learned."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of a batch."""
        return F.cross_entropy(self.model(x), y)

    def after_backward(self) -> None:
        """Gradients are there, the step is not taken yet."""

    def after_step(self) -> None:
        """The optimizer has moved the weights."""

    def finish(self, task: Task) -> None:
        """A task was learned."""
        self.tasks += 1

    def state_dict(self) -> dict[str, Tensor]:
        """What is kept, for safetensors."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with what `state_dict` gave."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"expected the state of {type(self).__name__}, received {sorted(state)}")

    def task_state(self) -> dict[str, Tensor]:
        """What is needed in the middle of a task as well, to go on after an interruption."""
        return {}

    def load_task_state(self, state: dict[str, Tensor]) -> None:
        """Go on with what `task_state` gave."""

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)


class EWC(Learner):
    """Elastic weight consolidation, online (Kirkpatrick 2017, Schwarz 2018): weights are held to where they were, each
    by how much the loss of past tasks depends on it (diagonal of the Fisher information, decayed from task to task)."""

    needs_boundaries = True
    kept: tuple[str, ...] = ("importance", "anchor")
    """Attributes with a tensor for every weight."""

    def __init__(self, model: nn.Module, *, strength: float = 100.0, decay: float = 1.0) -> None:
        """strength: of the penalty. decay: of the importance of earlier tasks with every new one."""
        super().__init__(model)
        self.strength, self.decay = strength, decay
        self.importance = {name: torch.zeros_like(p) for name, p in self._trained()}
        self.anchor = {name: p.detach().clone() for name, p in self._trained()}

    def to(self, device: torch.device) -> None:
        """Move what is held of every weight."""
        for kind in self.kept:
            setattr(self, kind, {name: tensor.to(device) for name, tensor in getattr(self, kind).items()})

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """With the penalty, from the second task on."""
        return super().loss(x, y) + (self.penalty() if self.tasks else 0.0)

    def penalty(self) -> Tensor:
        """strength / 2 times the importance times the squared distance, summed over all weights."""
        terms = [(self.importance[name] * (p - self.anchor[name]).square()).sum() for name, p in self._trained()]
        return 0.5 * self.strength * torch.stack(terms).sum()

    def finish(self, task: Task) -> None:
        """Add the importance of this task, row by row, with labels drawn from the model's own answers."""
        super().finish(task)
        found = {name: torch.zeros_like(p) for name, p in self._trained()}
        rows = torch.arange(min(FISHER_ROWS, len(task.train)))
        draw = torch.Generator().manual_seed(self.tasks)
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            for row in task.train.rows(rows).to(device):
                scores = self.model(row[None])
                label = torch.multinomial(scores.detach().float().softmax(1).cpu(), 1, generator=draw)[0].to(device)
                grads = torch.autograd.grad(
                    F.cross_entropy(scores, label), [p for _, p in self._trained()], allow_unused=True
                )
                for name, grad in zip(found, grads, strict=True):
                    if grad is not None:
                        found[name] += grad.square() / len(rows)
        for name, p in self._trained():
            self.importance[name] = self.decay * self.importance[name] + found[name]
            self.anchor[name] = p.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """Importance and anchor of every weight."""
        return {f"{kind}.{name}": t for kind in ("importance", "anchor") for name, t in getattr(self, kind).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with what `state_dict` gave."""
        super().load_state_dict(state)
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            getattr(self, kind)[name] = tensor.to(self.anchor[name].device)


class SI(EWC):
    """Synaptic intelligence (Zenke 2017): the importance of a weight is how much of the fall of the loss its own moves
    account for, relative to how far it has moved."""

    kept = ("importance", "anchor", "_path", "_start")

    def __init__(self, model: nn.Module, *, strength: float = 1.0, damping: float = 0.1) -> None:
        """strength: of the penalty. damping: keeps weights that have hardly moved from getting an infinite one."""
        super().__init__(model, strength=2.0 * strength)  # the penalty has no half in it
        self.damping = damping
        self._path = {name: torch.zeros_like(p) for name, p in self._trained()}
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        self._start = {name: p.detach().clone() for name, p in self._trained()}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """With the penalty. The path counts the fall of the task's own loss, so its gradient is taken apart."""
        task = F.cross_entropy(self.model(x), y)
        named = list(self._trained())
        grads = torch.autograd.grad(task, [p for _, p in named], retain_graph=True, allow_unused=True)
        self._before = {
            name: (p.detach().clone(), torch.zeros_like(p) if grad is None else grad)
            for (name, p), grad in zip(named, grads, strict=True)
        }
        return task + (self.penalty() if self.tasks else 0.0)

    def after_step(self) -> None:
        """Add what this step gained by each weight."""
        for name, p in self._trained():
            before, grad = self._before[name]
            self._path[name] -= grad * (p.detach() - before)

    def finish(self, task: Task) -> None:
        """From the path to importance."""
        Learner.finish(self, task)
        for name, p in self._trained():
            moved = p.detach() - self._start[name]
            self.importance[name] += (self._path[name] / (moved.square() + self.damping)).clamp_min(0.0)
            self.anchor[name] = p.detach().clone()
            self._start[name] = p.detach().clone()
            self._path[name] = torch.zeros_like(p)

    def task_state(self) -> dict[str, Tensor]:
        """The path so far, and where it began."""
        return {f"{kind}.{name}": t for kind in ("_path", "_start") for name, t in getattr(self, kind).items()}

    def load_task_state(self, state: dict[str, Tensor]) -> None:
        """Go on with what `task_state` gave."""
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            getattr(self, kind)[name] = tensor.to(self.anchor[name].device)


class LwF(Learner):
    """Learning without forgetting (Li and Hoiem 2016): on new rows the model keeps to what it answered before the task,
    softened by a temperature."""

    needs_boundaries = True

    def __init__(self, model: nn.Module, *, strength: float = 1.0, temperature: float = 2.0) -> None:
        """strength: of keeping to old answers."""
        super().__init__(model)
        self.strength, self.temperature = strength, temperature
        self._old: nn.Module | None = None

    def begin(self, task: Task) -> None:
        """Remember the model as it is."""
        self._old = copy.deepcopy(self.model).eval().requires_grad_(False) if self.tasks else None

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """With the distance to the old answers, from the second task on."""
        scores = self.model(x)
        loss = F.cross_entropy(scores, y)
        if self._old is None:
            return loss
        t = self.temperature
        old = F.log_softmax(self._old(x) / t, dim=1)
        apart = F.kl_div(F.log_softmax(scores / t, dim=1), old, log_target=True, reduction="batchmean")
        return loss + self.strength * t * t * apart

    def task_state(self) -> dict[str, Tensor]:
        """The model as it was before the task."""
        return {} if self._old is None else dict(self._old.state_dict())

    def load_task_state(self, state: dict[str, Tensor]) -> None:
        """Go on with what `task_state` gave."""
        if state:
            self._old = copy.deepcopy(self.model).eval().requires_grad_(False)
            self._old.load_state_dict(state)
