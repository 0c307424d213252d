"""Gates, budgets and sparsifiers in Lightning. Needs the extra `lightning`.

>>> callback = GateCallback(dg.Budget(target=0.5))
>>> Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)

It calls the same functions at the same moments as a loop of your own, and `training_step` stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynamicgate.budget import Budget, GateBudget
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.sparsity import Sparsifier

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("GateCallback needs Lightning: pip install 'dynamicgate[lightning]'") from error


class GateCallback(Callback):
    """Holds the gates of a LightningModule to a budget, and updates its masks.

    Checkpoints of Lightning hold what is needed to continue; pass the same callback, built anew, with `ckpt_path`.
    """

    def __init__(
        self,
        budget: GateBudget | None = None,
        sparsifier: Sparsifier | None = None,
        *,
        module: str | None = None,
        calibrate: int = 8,
        inputs: Callable[[Any], Any] | None = None,
    ) -> None:
        """For one run of a Trainer.

        budget: what the gates may use. sparsifier: RigL, SET, Static or Magnitude, made for the same model.
        module: the attribute with the model, whose cost counts; "" is the LightningModule itself, which is then called
            by `self(x)`. None: the only attribute that holds gates, or the LightningModule if its own layers do.
        calibrate: training batches on which a closed-loop budget is met exactly at the end of training; 0 leaves the
            gates as they were trained. In a run on several processes they are left too.
        inputs: from a batch to what the model is called with; None takes the first of a pair.
        """
        if budget is None and sparsifier is None:
            raise ValueError("GateCallback needs a budget or a sparsifier")
        self.budget, self.sparsifier, self.calibrate = budget, sparsifier, calibrate
        self.module, self.inputs = module, inputs or _first
        self._recording = ExitStack()
        self._used: Usage | None = None
        self._progress, self._is_first, self._restored = 0.0, True, False
        self._penalty = 0.0

    def metrics(self) -> dict[str, float]:
        """What is logged: executed MACs relative to dense, the penalty, the density of sparse layers."""
        found: dict[str, float] = {}
        if isinstance(self.budget, Budget) and self.budget.relative is not None:
            found["executed_macs"] = self.budget.relative
        if self.budget is not None:
            found["gate_penalty"] = self._penalty
        if self.sparsifier is not None:
            densities = [stats["density"] for stats in self.sparsifier.stats().values()]
            found["density"] = sum(densities) / max(1, len(densities))
        return found

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start, or continue where the checkpoint was made."""
        if not pl_module.automatic_optimization:
            raise ValueError(
                "GateCallback adds to the loss of training_step: with manual optimization call budget.apply_, usage "
                "and budget.step yourself, as in a loop of your own"
            )
        if self.budget is not None and not named_gates(pl_module):
            raise ValueError("a budget steers gates, and this module has none: call dynamicgate.gate_(net, ...) first")
        if isinstance(self.budget, Budget) and self.sparsifier is not None:
            self.budget.sparsifier = self.sparsifier
        if self.sparsifier is not None:
            self.sparsifier.check_length(int(trainer.estimated_stepping_batches))
        if self.budget is not None and not self._restored:
            self.budget.reset()
        self._restored = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before the forward pass: set the gates for this moment, and record what they decide."""
        model = self._model(pl_module)
        self._is_first = batch_idx % trainer.accumulate_grad_batches == 0
        if self._is_first:
            self._progress = min(1.0, trainer.global_step / trainer.estimated_stepping_batches)
            if self.budget is not None:
                self.budget.apply_(model, self._progress)
        self._used = self._recording.enter_context(usage(model))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """After the forward pass: add the penalty to the loss."""
        used, self._used = self._used, None
        self._recording.close()
        if used is None:
            return
        term: Tensor | None = None
        if self.budget is not None:
            found = self.budget.step(used, self._progress) if self._is_first else self.budget.penalty(used)
            self._penalty = float(found.detach())
            scaler = getattr(trainer.precision_plugin, "scaler", None)  # of float16: the loss has been scaled already
            scale = 1.0 if scaler is None else scaler.get_scale()
            term = (found * (scale / trainer.accumulate_grad_batches)).to(loss.dtype)
        if self.sparsifier is not None and len(used):
            self.sparsifier.watch(used, term)
        if term is not None:
            # In place, because Lightning takes no other tensor; it is Lightning's own copy, the loss divided by the
            # number of micro-batches, so that no backward pass needs its former value.
            loss.add_(term)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """After the last backward pass of a step, before clipping: update the masks."""
        if self.sparsifier is not None:
            self.sparsifier.step(getattr(optimizer, "optimizer", optimizer), self._progress)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log."""
        self._recording.close()  # a training_step that returned None had no backward pass
        self._used = None
        pl_module.log_dict(self.metrics())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Meet the budget exactly."""
        alone = trainer.world_size == 1  # other processes see other batches and would choose other shifts
        if isinstance(self.budget, Budget) and self.calibrate and alone:
            with torch.random.fork_rng():
                self.budget.calibrate_(self._model(pl_module), self._batches(trainer, pl_module))

    def _batches(self, trainer: Trainer, pl_module: LightningModule) -> Iterator[Any]:
        loader: Any = trainer.train_dataloader
        for batch in islice(loader, self.calibrate):
            yield self.inputs(trainer.strategy.batch_to_device(batch, pl_module.device))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop recording."""
        self._recording.close()
        self._used = None

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint: the budget, and the tensors of the sparsifier. Masks are in the model."""
        return {
            "budget": None if self.budget is None else self.budget.state_dict(),
            "sparsifier": None if self.sparsifier is None else self.sparsifier.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        for part, name in ((self.budget, "budget"), (self.sparsifier, "sparsifier")):
            if (part is None) != (state_dict[name] is None):
                raise ValueError(f"the checkpoint was made with{'' if part is None else 'out'} a {name}: pass the same")
        if self.budget is not None:
            self.budget.reset()
            self.budget.load_state_dict(state_dict["budget"])
        if self.sparsifier is not None:
            self.sparsifier.load_state_dict(state_dict["sparsifier"])
        self._restored = True

    def _model(self, pl_module: LightningModule) -> nn.Module:
        if self.module is not None:
            return pl_module.get_submodule(self.module)
        sites = list(named_gates(pl_module))
        attributes = {site.partition(".")[0] for site in sites}
        inside = len(attributes) == 1 and all("." in site for site in sites)
        return pl_module.get_submodule(attributes.pop()) if inside else pl_module


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list | tuple) else batch
