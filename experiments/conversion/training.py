"""Distillation from the dense model: the same loop for every arm, resumable to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dynamicgate.budget import Budget
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.lab.language.resumable import ResumableRun, autocast
from dynamicgate.training.captured_step import EAGER_STEPS, CapturedStep
from dynamicgate.training.checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state

WARMUP, LOWEST = 0.05, 0.1  # the learning rates: fraction of training in which they rise, and where they end


class Task(Protocol):
    """What a student learns, and from which inputs."""

    def draw(self, places: torch.Generator) -> Mapping[str, Tensor]:
        """The inputs of one step."""

    def loss(self, student: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """The distance to the dense model."""

    def calibration(self) -> Iterable[Mapping[str, Tensor]]:
        """Validation inputs on which a budget is met exactly after training."""

    @property
    def one_shape(self) -> bool:
        """Whether all inputs have one shape and no padding, so that a GPU can be given whole steps."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how fast. gate_lr: of gate networks and routers. at_once: rows of a batch that run together, where
    memory is short; None: all. capture: let a GPU be given whole steps, where inputs have one shape."""

    steps: int
    lr: float = 1e-4
    gate_lr: float = 1e-3
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    at_once: int | None = None
    capture: bool = True
    checkpoint_seconds: float = 120.0

    def rate(self, step: int) -> float:
        """What learning rates are multiplied by: rises, then falls along a cosine."""
        warmup = max(1, round(WARMUP * self.steps))
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return LOWEST + (1.0 - LOWEST) * 0.5 * (1.0 + math.cos(math.pi * progress))


def rate_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The learning rate of the weights where a student asks for its own."""
    return {name: asked[name] for name in ("lr", "gate_lr") if name in asked}


class DistillationRun(ResumableRun):
    """One student in training."""

    def __init__(
        self, student: nn.Module, budget: Budget | None, task: Task, training: Training, *,
        settings: Mapping[str, Any], device: torch.device, folder: Path,
    ) -> None:  # fmt: skip
        """settings: what else identifies the run. `folder` gets the checkpoint."""
        super().__init__(training.steps, training.checkpoint_seconds, device, folder)
        self.student, self.budget, self.task, self.training = student, budget, task, training
        self.settings = {**settings, "training": asdict(training)}
        self.optimizer = make_optimizer(student, training, device)
        self.places = torch.Generator().manual_seed(training.seed)
        self.tokens = 0
        self._captured: CapturedStep | None = None
        self._eager_steps = 0

    @property
    def relative(self) -> float | None:
        """What a budget saw executed at the last step; None without one."""
        return None if self.budget is None else self.budget.relative

    def train(self) -> None:
        """All steps that are left. Ctrl-C saves a checkpoint first."""
        if self.checkpoint.exists():
            self.resume()
        self.student.train()
        self.take_steps()
        self._captured = None  # its memory
        self.student.eval()
        if self.budget is not None:
            with autocast(self.device):
                self.budget.calibrate_(self.student, self.task.calibration())

    def optimize(self) -> Tensor:
        """One step; the loss without the penalty of a budget."""
        training, now = self.training, self.step / self.training.steps
        if self.budget is not None:
            self.budget.apply_(self.student, now)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * training.rate(self.step)
        inputs = self.task.draw(self.places)
        parts = in_parts(inputs, training.at_once)
        can_capture = training.capture and self.task.one_shape and self.device.type == "cuda" and len(parts) == 1
        if self._captured is None and can_capture and self._eager_steps >= EAGER_STEPS:
            self._captured = self._capture(inputs["input_ids"])
        loss = self._eager_step(parts, now) if self._captured is None else self._captured_step(inputs, now)
        self.tokens += int(
            inputs["attention_mask"].sum() if "attention_mask" in inputs else inputs["input_ids"].numel()
        )
        self.step += 1
        return loss

    def _eager_step(self, parts: Sequence[Mapping[str, Tensor]], now: float) -> Tensor:
        self._eager_steps += 1
        loss = torch.zeros((), device=self.device)
        for number, part in enumerate(parts):
            with usage(self.student) as used:
                own = self.task.loss(self.student, part)
            loss = loss + own.detach() / len(parts)
            if self.budget is not None:
                own = own + (self.budget.penalty(used) if number else self.budget.step(used, now))
            (own / len(parts)).backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), self.training.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _capture(self, ids: Tensor) -> CapturedStep:
        def loss(ids: Tensor) -> Tensor:
            return self.task.loss(self.student, {"input_ids": ids})

        return CapturedStep(self.student, loss, (ids,), self.optimizer, clip=self.training.clip)

    def _captured_step(self, inputs: Mapping[str, Tensor], now: float) -> Tensor:
        assert self._captured is not None
        loss, used = self._captured.forward(inputs["input_ids"])
        penalty = None if self.budget is None else self.budget.step(used, now)
        self._captured.backward(penalty, rates=[group["lr"] for group in self.optimizer.param_groups])
        return loss.clone()  # the next step overwrites it

    def save(self) -> None:
        """A checkpoint from which `resume` goes on to the same result."""
        position = {
            "step": self.step, "seconds": self.seconds, "curve": self.curve, "tokens": self.tokens,
            "recent": [float(loss) for loss in self._recent],
        }  # fmt: skip
        save_checkpoint(
            self.checkpoint, self.student, self.optimizer, self.budget, None, settings=self.settings, position=position,
            rng={**random_state(), "places": self.places.get_state()},
        )  # fmt: skip

    def resume(self) -> None:
        """Continue where `save` was called."""
        position, rng = load_checkpoint(
            self.checkpoint, self.student, self.optimizer, self.budget, None, settings=self.settings
        )
        set_random_state(rng)
        self.places.set_state(rng["places"])
        self.step, self.seconds, self.curve = position["step"], position["seconds"], position["curve"]
        self.tokens = position["tokens"]
        self._recent = [torch.tensor(loss, device=self.device) for loss in position["recent"]]


def in_parts(inputs: Mapping[str, Tensor], rows: int | None) -> list[Mapping[str, Tensor]]:
    """A batch in parts of `rows` rows, which must divide it: each part counts the same."""
    batch = len(inputs["input_ids"])
    if rows is None or rows >= batch:
        return [inputs]
    if batch % rows:
        raise ValueError(f"a batch of {batch} rows has no equal parts of {rows}: expected a divisor")
    return [{name: value[at : at + rows] for name, value in inputs.items()} for at in range(0, batch, rows)]


def make_optimizer(student: nn.Module, training: Training, device: torch.device) -> torch.optim.Optimizer:
    """AdamW; gates learn faster than the weights, which were trained before."""
    gates = [p for gate in named_gates(student).values() for p in gate.parameters()]
    own = {id(p) for p in gates}
    weights = [p for p in student.parameters() if id(p) not in own]
    groups = [{"params": weights, "lr": training.lr, "base_lr": training.lr}]
    if gates:
        groups.append({"params": gates, "lr": training.gate_lr, "base_lr": training.gate_lr})
    options: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": training.weight_decay}
    return torch.optim.AdamW(groups, fused=device.type == "cuda", **options)
