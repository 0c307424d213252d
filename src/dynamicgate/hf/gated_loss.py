"""What a step of the Trainer adds to the loss of the model: the penalty of a budget, and the distance to a teacher.

The Trainer asks the model for its loss. If it passes `num_items_in_batch`, the model divides by the number of labels of
the whole step and nothing is divided later; otherwise the Trainer divides by the number of micro-batches. The penalty
of a micro-batch is weighted as its loss is: by its fraction of the labels of the step, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.budget import GateBudget
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.hf.distillation import kl_divergence
from dynamicgate.hf.labels import IGNORED, predicted_labels, predictions
from dynamicgate.modules import unwrap
from dynamicgate.sparsity import Sparsifier

ITEMS = "num_items_in_batch"


@dataclass
class Distillation:
    """A model to distill from. weight: its fraction of the loss; the rest is for the labels."""

    teacher: nn.Module
    weight: float
    temperature: float

    def __post_init__(self) -> None:
        if not 0.0 < self.weight <= 1.0:
            raise ValueError(
                "distill_weight is the teacher's fraction of the loss: expected 0 < distill_weight <= 1, received "
                f"{self.weight}"
            )

    def mixed(self, model: nn.Module, loss: Tensor, logits: Tensor, given: Mapping[str, Any]) -> Tensor:
        """The loss of the labels mixed with the distance to the teacher, over the same positions and divided alike."""
        labels = predicted_labels(model, given)
        if labels is None:
            raise ValueError("distillation compares the predictions that have a label: pass labels")
        counted = labels != IGNORED
        inputs = {name: value for name, value in given.items() if name not in ("labels", "shift_labels", ITEMS)}
        with torch.no_grad():
            scores = predictions(model, self.teacher.to(logits.device).eval()(**inputs).logits, given)[counted]
        distance = kl_divergence(predictions(model, logits, given)[counted], scores, temperature=self.temperature)
        items = given.get(ITEMS)
        mean = distance.sum() / (counted.sum().clamp(min=1) if items is None else items)
        return (1.0 - self.weight) * loss + self.weight * mean.to(loss.dtype)


class GatedLoss:
    """Records the forward passes of an optimizer step and adds to their loss, as a forward hook of the model."""

    def __init__(
        self, budget: GateBudget | None, sparsifier: Sparsifier | None, distillation: Distillation | None
    ) -> None:
        """With at least one of them."""
        self.budget, self.sparsifier, self.distillation = budget, sparsifier, distillation
        self.average_tokens = True
        """Whether `num_items_in_batch` counts the labels of all processes, and the loss is multiplied by their
        number: `TrainingArguments.average_tokens_across_devices`."""
        self.penalty = 0.0
        """The penalty of the last whole step."""
        self.open_rates: dict[str, float] = {}
        self._model: nn.Module | None = None
        self._handle: Any = None
        self._progress: float | None = None
        self._device = torch.device("cpu")
        self._recording = ExitStack()
        self._used: Usage | None = None
        self._first = self._added = self._reached = False
        self._penalties: list[tuple[float, float]] = []
        """Of each micro-batch of this step, with its fraction of the step."""

    def attach(self, model: nn.Module) -> None:
        """Add to the loss of this model from now on, alone: a run that was interrupted may have left another one."""
        for hook in list(unwrap(model)._forward_hooks.values()):
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, GatedLoss):
                owner.detach()
        self._model = unwrap(model)
        self._handle = self._model.register_forward_hook(self._after, with_kwargs=True)

    def detach(self) -> None:
        """Leave the model alone again."""
        self._recording.close()
        if self._handle is not None:
            self._handle.remove()
        self._model = self._handle = self._progress = self._used = None

    def begin_step(self, progress: float) -> None:
        """Before the first forward pass of an optimizer step."""
        if self._model is None:  # `attach` of another one has taken it over
            raise RuntimeError(
                "the Trainer has more than one GateCallback, and each would add to the same loss: pass one, with the "
                "budget, the sparsifier and the teacher together"
            )
        if self.budget is not None:
            self.budget.apply_(self._model, progress)
        self._progress, self._first, self._added, self._reached, self._penalties = progress, True, False, False, []
        self._record()

    def end_step(self) -> None:
        """After the last backward pass of an optimizer step; an error if the loss that was minimised is another one."""
        self._recording.close()
        self._progress = self._used = None
        if self._penalties:
            mean = sum(value * part for value, part in self._penalties) / sum(part for _, part in self._penalties)
            (self.penalty,) = distributed.average(mean, device=self._device)
        if not (self._added and self._reached):
            raise RuntimeError(
                "the loss that was minimised is not the one that the model returned, so that the budget and the "
                "teacher had no effect: leave out label_smoothing_factor, compute_loss_func and an own compute_loss "
                "that computes the loss elsewhere"
            )

    def _record(self) -> None:
        self._recording.close()
        assert self._model is not None
        self._used = self._recording.enter_context(usage(self._model))

    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Forward hook of the model, while a step is under way."""
        if self._progress is None or self._used is None or not (model.training and torch.is_grad_enabled()):
            return None
        used, self._used = self._used, None
        self._recording.close()
        given = dict(inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments)
        given = {**given, **given.pop("kwargs", {})}
        given.pop("self", None)
        loss = output.get("loss") if isinstance(output, dict) else output[0]
        if not isinstance(loss, Tensor) or loss.ndim:
            return None  # end_step will say that there was no loss to add to
        if self.distillation is not None:
            loss = self.distillation.mixed(model, loss, output.logits, given)
        self._device = loss.device
        loss = self._with_penalty(loss, used, self._fraction(model, given))
        if loss.requires_grad:
            loss.register_hook(self._see_gradient)
        self._added, self._first = True, False
        self._record()  # for the next micro-batch
        if isinstance(output, dict):
            output["loss"] = loss
            return output
        return (loss, *output[1:])

    def _with_penalty(self, loss: Tensor, used: Usage, fraction: float | None) -> Tensor:
        penalty: Tensor | None = None
        if self.budget is not None:
            assert self._progress is not None
            found = self.budget.step(used, self._progress) if self._first else self.budget.penalty(used)
            part = 1.0 if fraction is None else fraction  # if None, the Trainer divides
            self._penalties.append((float(found.detach()), part))
            # The Trainer multiplies a loss over the labels of all processes by the number of processes.
            penalty = found * (part / distributed.world_size() if self.average_tokens and fraction else part)
        if self.sparsifier is not None and len(used):
            self.sparsifier.watch(used, penalty)
        self.open_rates = {site: float(rate) for site, rate in used.mean_open().items()}
        return loss if penalty is None else loss + penalty

    def _fraction(self, model: nn.Module, given: Mapping[str, Any]) -> float | None:
        """The fraction of the labels of this step that are in this micro-batch, of all processes; None where the
        Trainer divides the loss by the number of micro-batches."""
        items, labels = given.get(ITEMS), predicted_labels(model, given)
        if items is None or labels is None:
            return None
        count = distributed.sum_((labels != IGNORED).sum().float())
        total = torch.as_tensor(items, device=count.device).float()
        return float(count / (total if self.average_tokens else distributed.sum_(total.clone())))

    def _see_gradient(self, _gradient: Tensor) -> None:
        self._reached = True
