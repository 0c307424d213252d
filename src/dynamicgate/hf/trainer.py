"""Gates, budgets and sparsifiers in `transformers.Trainer`.

>>> callback = GateCallback(dg.Budget(target=0.5))
>>> Trainer(model, args, train_dataset=data, callbacks=[callback]).train()

It calls the same functions at the same moments as a loop of your own: `budget.apply_` before the first forward pass of
an optimizer step, `budget.step` or `budget.penalty` after each, `sparsifier.step` before the optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from dynamicgate import distributed
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget import Budget, GateBudget
from dynamicgate.gating.recording import named_gates
from dynamicgate.hf.adapters import keep_in_adapters
from dynamicgate.hf.gated_loss import Distillation, GatedLoss
from dynamicgate.io.tensor_file import read_tensors, write_tensors
from dynamicgate.modules import unwrap
from dynamicgate.sparsity import Sparsifier

SPARSIFIER_FILE = "sparsifier.safetensors"


class GateCallback(TrainerCallback, ExportableState):
    """Holds a model to a budget, updates its masks and distills it, inside a `Trainer`.

    Checkpoints of the Trainer hold everything needed to continue exactly; continue with
    ``trainer.train(resume_from_checkpoint=True)``, with the same callback built anew.
    """

    def __init__(
        self,
        budget: GateBudget | None = None,
        sparsifier: Sparsifier | None = None,
        teacher: nn.Module | None = None,
        *,
        distill_weight: float | None = None,
        temperature: float = 1.0,
        calibrate: int = 8,
    ) -> None:
        """For one run of a Trainer.

        budget: what the gates may use, per token. sparsifier: RigL, SET, Static or Magnitude, made for this model.
        teacher: a model with the same vocabulary to distill from; distill_weight: its fraction of the loss, None is
            0.5; temperature: of both distributions.
        calibrate: training batches on which a closed-loop budget is met exactly after the last step, before it is
            evaluated and saved, and again if `load_best_model_at_end` goes back to an earlier step; 0 leaves the gates
            as they were trained. In a run on several processes they are left too.
        """
        if budget is None and sparsifier is None and teacher is None:
            raise ValueError(
                "GateCallback needs a budget, a sparsifier or a teacher. If the Trainer built it: its state is "
                "restored without restore_callback_states_from_checkpoint=True, leave that out"
            )
        if teacher is None and distill_weight is not None:
            raise ValueError(f"distill_weight={distill_weight} is a teacher's fraction of the loss: pass teacher=")
        weight = 0.5 if distill_weight is None else distill_weight
        distillation = None if teacher is None else Distillation(teacher, weight, temperature)
        self.budget, self.sparsifier, self.calibrate = budget, sparsifier, calibrate
        self.loss = GatedLoss(budget, sparsifier, distillation)
        self._progress: float | None = None
        self._stepped = False

    def metrics(self) -> dict[str, float]:
        """For a log: executed MACs relative to dense, what they should be, the penalty, open rates, density."""
        found: dict[str, float] = {}
        if isinstance(self.budget, Budget) and self.budget.relative is not None:
            found |= {"executed_macs": self.budget.relative, "executed_macs_wanted": self.budget.reference or 1.0}
        if self.budget is not None:
            found |= {"gate_penalty": self.loss.penalty, "gate_lambda": self.budget.lambda_}
        rates = self.loss.open_rates.values()
        if rates:
            found |= {"gates_open": sum(rates) / len(rates), "gates_open_least": min(rates)}
        if self.sparsifier is not None:
            densities = [stats["density"] for stats in self.sparsifier.stats().values()]
            found["density"] = sum(densities) / max(1, len(densities))
        return found

    def state(self) -> dict[str, Any]:
        """What trainer_state.json holds: everything of the budget. Masks are in the model, and the tensors of a
        sparsifier in a file of their own."""
        saved: dict[str, Any] = {"budget": None if self.budget is None else self.budget.state_dict()}
        counter = self.budget.counter if isinstance(self.budget, Budget) else None
        saved["counter"] = None if counter is None else {"rows": counter.rows, "other": counter.other}
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start, or continue where the checkpoint was made."""
        model = kwargs["model"]
        _check_checkpointing(model)
        keep_in_adapters(unwrap(model))
        gates = named_gates(model).values()
        if self.budget is not None and gates and not any(gate.bias.requires_grad for gate in gates):
            warnings.warn(
                "all gates are frozen, so that training cannot meet the budget: adapters freeze them with everything "
                "else, call dynamicgate.hf.train_gates_(model) first",
                stacklevel=2,
            )
        if isinstance(self.budget, Budget) and self.sparsifier is not None:
            self.budget.sparsifier = self.sparsifier
        if self.sparsifier is not None:
            self.sparsifier.check_length(state.max_steps)
        if state.global_step:
            self._restore(args, state, model)
        elif self.budget is not None:
            self.budget.reset()
        self.loss.average_tokens = args.average_tokens_across_devices
        self.loss.attach(model)

    def _restore(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        callbacks: Any = state.stateful_callbacks
        held = callbacks.get(type(self).__name__)
        if not isinstance(held, dict) or "saved" not in held.get("attributes", {}):
            raise ValueError(
                f"the checkpoint of step {state.global_step} was made without a GateCallback: start a new run from its "
                "weights instead of resuming it"
            )
        saved = held["attributes"]["saved"]
        if self.budget is not None:
            self.budget.reset()
            if saved["counter"] is not None and isinstance(self.budget, Budget):
                self.budget.counter = MacCounter(unwrap(model), **saved["counter"])
            self.budget.load_state_dict(saved["budget"])
        if self.sparsifier is not None:
            tensors, header = read_tensors(_folder(args, state) / SPARSIFIER_FILE, kind="sparsifier")
            self.sparsifier.load_state_dict({**header["state"], **tensors})

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first forward pass of an optimizer step."""
        self._progress, self._stepped = state.global_step / state.max_steps, False
        self.loss.begin_step(self._progress)

    def after_backward(self, optimizer: Any) -> None:
        """Between the last backward pass and the optimizer, once per optimizer step."""
        if self._stepped or self._progress is None:
            return
        self._stepped = True
        self.loss.end_step()
        if self.sparsifier is not None:
            self.sparsifier.step(getattr(optimizer, "optimizer", optimizer), self._progress)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where a Trainer without `GatedTrainerMixin` lets masks be updated: after gradients were clipped."""
        self.after_backward(kwargs["optimizer"])

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the metrics to the Trainer's history and progress bar."""
        logs = kwargs.get("logs") or {}
        if "loss" in logs and state.log_history:
            state.log_history[-1].update(self.metrics())
            logs.update(self.metrics())

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the tensors of the sparsifier beside the Trainer's checkpoint."""
        if self.sparsifier is None:
            return
        whole = self.sparsifier.state_dict()  # on every process, because it sums counts over them
        if args.should_save:
            tensors = {name: value for name, value in whole.items() if isinstance(value, Tensor)}
            rest = {name: value for name, value in whole.items() if not isinstance(value, Tensor)}
            write_tensors(_folder(args, state) / SPARSIFIER_FILE, tensors, {"kind": "sparsifier", "state": rest})

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the last step meet the budget exactly, before the model is evaluated and saved for the last time. A run
        that stops earlier may be resumed, and is left as it is."""
        if _finished(state):
            self._calibrate(args.train_batch_size, kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the model. If the Trainer has put weights into it that were not calibrated, meet the budget now."""
        self.loss.detach()
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and not (_finished(state) and Path(best).name == _folder(args, state).name):
            self._calibrate(args.train_batch_size, kwargs)

    def _calibrate(self, size: int, given: Mapping[str, Any]) -> None:
        batches = given.get("train_dataloader")
        alone = distributed.world_size() == 1  # other processes see other batches and would choose other shifts
        if isinstance(self.budget, Budget) and self.calibrate and alone and batches is not None:
            with torch.random.fork_rng():
                self.budget.calibrate_(unwrap(given["model"]), _same_batches(batches, self.calibrate, size))


def _finished(state: TrainerState) -> bool:
    return state.global_step >= state.max_steps


def _same_batches(loader: Any, count: int, size: int) -> list[Any]:
    """`count` batches of rows that lie evenly over the data: the same ones in a run that was resumed, whose loader
    would give others. Data that can only be read in a row give the next ones."""
    rows: Any = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        return list(islice(loader, count))
    total = min(len(rows), count * size)
    chosen = [number * len(rows) // total for number in range(total)]
    return [collate([rows[i] for i in chosen[start : start + size]]) for start in range(0, total, size)]


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    assert args.output_dir is not None
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _check_checkpointing(model: nn.Module) -> None:
    """An error for gradient checkpointing that runs the forward pass without gradients of the decisions."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and getattr(function, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "reentrant gradient checkpointing runs the forward pass without gradients, so that a penalty on gates "
                "has no effect: pass gradient_checkpointing_kwargs={'use_reentrant': False}"
            )


if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class GatedTrainerMixin(_Base):
    """What a callback cannot do; put it in front of any Trainer: ``class Mine(GatedTrainerMixin, SFTTrainer)``.

    The numbers of the gates reach all loggers, and masks are updated before gradients are clipped.
    """

    @property
    def _gates(self) -> GateCallback | None:
        callbacks = self.callback_handler.callbacks
        return next((callback for callback in callbacks if isinstance(callback, GateCallback)), None)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch; after the last one of a step masks are updated."""
        loss = super().training_step(*args, **kwargs)
        # With gradient scaling masks are updated later, where gradients have their own scale again.
        if self._gates is not None and self.accelerator.sync_gradients and self.accelerator.scaler is None:
            self._gates.after_backward(self.optimizer)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the numbers of the gates beside those of the Trainer."""
        if self._gates is not None and "loss" in logs:
            logs = {**logs, **self._gates.metrics()}
        super().log(logs, start_time)


class GatedTrainer(GatedTrainerMixin, Trainer):
    """A `Trainer` with `GatedTrainerMixin`."""
