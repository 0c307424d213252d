"""Train one GPT: windows of text at random places, a budget, resumable to the bit, all executed MACs added up."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.budget import Budget, GateBudget, calibrate_
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.lab.language.costs import Costs, TrainingCost
from dynamicgate.lab.language.equal_layers import EqualLayersBudget
from dynamicgate.lab.language.ffn_methods import FFNSettings, Prepared, prepare
from dynamicgate.lab.language.gpt import GPTConfig
from dynamicgate.lab.language.load import load_penalty
from dynamicgate.lab.language.relu_router import ReluRouterBudget
from dynamicgate.lab.language.resumable import ResumableRun, Show, autocast
from dynamicgate.lab.language.text import Text, draw_windows, fixed_windows, on_device
from dynamicgate.training.captured_step import EAGER_STEPS, CapturedStep, clip_and_step
from dynamicgate.training.checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state

WARMUP, LOWEST = 0.05, 0.1  # the learning rate: fraction of training in which it rises, and where it ends
CALIBRATION = 8  # batches
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # of a model, tokens and those that follow


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how fast. batch: windows a step. capture: steps run as CUDA graphs where they can. compiled: a GPU
    runs model and loss by torch.compile, which takes about a minute first."""

    steps: int = 1500
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    checkpoint_seconds: float = 120.0
    capture: bool = True
    compiled: bool = False

    def learning_rate(self, step: int) -> float:
        """Rises, then falls along a cosine."""
        warmup = max(1, round(WARMUP * self.steps))
        if step < warmup:
            return self.lr * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return self.lr * (LOWEST + (1.0 - LOWEST) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy; the model runs in bfloat16 on a GPU."""
    with autocast(ids.device):
        scores = model(ids)
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


class LanguageRun(ResumableRun):
    """One model in training."""

    def __init__(
        self, ffn: FFNSettings, sizes: GPTConfig, training: Training, text: Text, *, device: torch.device,
        folder: Path, drawn_on: torch.device | None = None,
    ) -> None:  # fmt: skip
        """Model, optimizer and the places of the windows, all from the seed. `folder` gets the checkpoint. drawn_on: as
        in `prepare`."""
        super().__init__(training.steps, training.checkpoint_seconds, device, folder)
        torch.manual_seed(training.seed)
        self.ffn, self.training, self.text = ffn, training, text
        self.settings = {"ffn": asdict(ffn), "sizes": sizes.to_dict(), "training": asdict(training)}
        self.prepared: Prepared = prepare(ffn, sizes, device, training.seed, drawn_on)
        self.model = self.prepared.model
        if self.prepared.sparsifier is not None:
            self.prepared.sparsifier.check_length(training.steps)
        self.costs = Costs(self.prepared)
        self.spent = TrainingCost(self.costs, exact=ffn.learns_from_closed_blocks)
        self.optimizer = make_optimizer(self.model, training, device)
        self.places = torch.Generator().manual_seed(training.seed)
        self.tokens = on_device(text.tokens["train"], device)
        compiled = training.compiled and device.type == "cuda"
        self._loss: Loss = torch.compile(loss_of, dynamic=False) if compiled else loss_of
        self._captured: CapturedStep | None = None
        self._eager_steps = 0

    def run_by(self, way: Callable[[Loss], Loss], *, capture: bool) -> LanguageRun:
        """This run with its weights and its optimizer, but by another way to work out the loss, such as torch.compile,
        or captured."""
        other = copy.copy(self)
        other._loss, other._captured, other._eager_steps = way(loss_of), None, 0
        other.training = replace(self.training, capture=capture)
        return other

    @property
    def relative(self) -> float | None:
        """What a budget saw executed at the last step; None without one."""
        budget = self.prepared.budget
        return budget.relative if isinstance(budget, Budget) else None

    def train(self, show: Show | None = None) -> None:
        """All steps that are left. Ctrl-C saves a checkpoint first; `show` is told the step and the loss."""
        if self.checkpoint.exists():
            self.resume()
        self.model.train()
        self.take_steps(show)
        self.calibrate()

    def optimize(self) -> Tensor:
        """One step; the loss of the task, in nats a token."""
        training, now = self.training, self.step / self.training.steps
        model, budget, _, _ = self.prepared
        if isinstance(budget, GateBudget | EqualLayersBudget):
            budget.apply_(model, now)
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate(self.step)
        ids, targets = draw_windows(self.tokens, training.batch, model.config.context, self.places)
        if self._captured is None and self._can_capture():
            self._captured = CapturedStep(model, self.loss, (ids, targets), self.optimizer, clip=training.clip)
        if self._captured is not None:
            loss, used = self._captured.forward(ids, targets)
            rates = [group["lr"] for group in self.optimizer.param_groups]
            self._captured.backward(self._penalty(used, now), rates=rates)
            loss = loss.clone()  # the next step overwrites it
        else:
            loss, used = self._eager_step(ids, targets, now)
        self.spent.add(used, ids.numel())
        self.step += 1
        return loss.detach()

    def _can_capture(self) -> bool:
        """After some steps, in which kernels were compiled and the optimizer's state made. Masks that change and the
        penalty of ReLU routers need Python."""
        _, budget, sparsifier, _ = self.prepared
        fixed = sparsifier is None and not isinstance(budget, ReluRouterBudget)
        return self.training.capture and self.device.type == "cuda" and fixed and self._eager_steps >= EAGER_STEPS

    def _eager_step(self, ids: Tensor, targets: Tensor, now: float) -> tuple[Tensor, Usage]:
        self._eager_steps += 1
        model, _, sparsifier, _ = self.prepared
        with usage(model) as used:
            loss = self.loss(ids, targets)
        penalty = self._penalty(used, now)
        if sparsifier is not None and len(used):
            sparsifier.watch(used, penalty)
        (loss if penalty is None else loss + penalty).backward()
        if sparsifier is not None:
            sparsifier.step(self.optimizer, now)
        clip_and_step(self.optimizer, self.training.clip)
        self.optimizer.zero_grad()
        return loss, used

    def _penalty(self, used: Usage, now: float) -> Tensor | None:
        budget = self.prepared.budget
        if isinstance(budget, ReluRouterBudget):
            return budget.penalty()
        term = None if budget is None else budget.step(used, now)
        if term is not None and self.ffn.gate_balance and isinstance(budget, EqualLayersBudget):
            term = term + self.ffn.gate_balance * load_penalty(used)
        return term

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of these tokens."""
        return self._loss(self.model, ids, targets)

    def calibrate(self) -> None:
        """Put the gates where hard decisions meet the budget on validation text: a small shift of all thresholds.
        Training text would leave new text too much or too little, where the two differ."""
        budget, context = self.prepared.budget, self.model.config.context
        if not isinstance(budget, Budget | EqualLayersBudget):
            return
        unseen = on_device(self.text.tokens["valid"], self.device)
        windows = [ids for ids, _ in fixed_windows(unseen, 32, context, 32 * CALIBRATION)]
        with autocast(self.device):
            if isinstance(budget, EqualLayersBudget):
                budget.calibrate_(self.model, windows)
            else:
                calibrate_(self.model, windows, macs=budget.target, counter=self.prepared.counter)

    def save(self) -> None:
        """A checkpoint from which `resume` goes on to the same result."""
        sparsifier, budget = self.prepared.sparsifier, self.prepared.budget
        position: dict[str, Any] = {
            "step": self.step, "seconds": self.seconds, "curve": self.curve, "macs": self.spent.total,
            "recent": [float(loss) for loss in self._recent],
            "control": budget.state_dict() if isinstance(budget, ReluRouterBudget | EqualLayersBudget) else None,
        }  # fmt: skip
        save_checkpoint(
            self.checkpoint, self.model, self.optimizer, budget if isinstance(budget, GateBudget) else None,
            None if sparsifier is None else sparsifier.state_dict(), settings=self.settings, position=position,
            rng={**random_state(), "places": self.places.get_state()},
        )  # fmt: skip

    def resume(self) -> None:
        """Continue where `save` was called."""
        budget = self.prepared.budget
        position, rng = load_checkpoint(
            self.checkpoint, self.model, self.optimizer, budget if isinstance(budget, GateBudget) else None,
            self.prepared.sparsifier, settings=self.settings,
        )  # fmt: skip
        if isinstance(budget, ReluRouterBudget | EqualLayersBudget):
            budget.load_state_dict(position["control"])
        set_random_state(rng)
        self.places.set_state(rng["places"])
        self.step, self.seconds, self.curve = position["step"], position["seconds"], position["curve"]
        self.spent.executed = position["macs"]
        self._recent = [torch.tensor(loss, device=self.device) for loss in position["recent"]]


def make_optimizer(model: nn.Module, training: Training, device: torch.device) -> torch.optim.Optimizer:
    """AdamW; matrices decay, everything else does not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.lr, betas=(0.9, 0.95), fused=device.type == "cuda")
