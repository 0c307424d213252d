"""`Run`, the training loop: steps, epochs, early stopping, checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.accounting.metrics import evaluate
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget, GateBudget
from dynamicgate.data import Arrays, batches
from dynamicgate.gating.recording import Usage, is_gated, usage
from dynamicgate.gating.stages import stages_of
from dynamicgate.io.model_file import load, save
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state
from dynamicgate.training.dense_units import DenseUnits
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.fingerprint import fingerprint, hash_data, stage_settings
from dynamicgate.training.interrupt import Interrupts
from dynamicgate.training.log import History, append_row, read_log, rewrite_log, site_stats, stage_stats
from dynamicgate.training.optimizer import adamw
from dynamicgate.training.options import FitOptions
from dynamicgate.training.progress import Progress
from dynamicgate.training.stage_loss import StageLoss
from dynamicgate.training.task_loss import TaskLoss
from dynamicgate.training.whole_batch import step_whole_batch

LOG_LINES = 200
CALIBRATION_ROWS = 2000


class Run:
    """The state of one run of `fit`."""

    def __init__(
        self,
        *,
        model: nn.Module,
        train: Arrays,
        options: FitOptions,
        device: torch.device,
        valid: Arrays | None = None,
        budget: GateBudget | None = None,
        sparsifier: Sparsifier | None = None,
        class_weights: Tensor | None = None,
        out: Path | None = None,
        teacher: Teacher | None = None,
        stage_loss: StageLoss | None = None,
        checkpoint_seconds: float = 15.0,
        dense_macs: float | None = None,
    ) -> None:
        """A run at step 0; `resume` continues an earlier one."""
        self.model, self.budget, self.sparsifier, self.options = model, budget, sparsifier, options
        self.device, self.out, self.teacher = device, out, teacher
        self.data, self.y = train.to(device), train.y.to(device)
        self.valid = valid
        self.class_weights = class_weights.to(device) if class_weights is not None else None
        self.gated = is_gated(model)
        self.staged = stages_of(model) is not None
        if stage_loss is not None and not self.staged:
            raise ValueError(
                "stage_loss is for a model with stages: call gate_(model, GateConfig(kind='stages')) first"
            )
        self.stage_loss = stage_loss or StageLoss()
        self.task_loss = TaskLoss(self.class_weights, options.label_smoothing, teacher)
        self.counter = count_macs(model, self._inputs(torch.arange(2)))
        self.units = DenseUnits(1.0 if dense_macs is None else self.counter.dense / dense_macs)
        if budget is not None:
            if not self.gated:
                raise ValueError(
                    "a budget steers gates, and this model has none: call dynamicgate.gate_(model, ...) first"
                )
            budget.reset()
            if isinstance(budget, Budget):
                budget.bind(self.counter, sparsifier)
        self.parallel = distributed.parallel(model)
        self.optimizer = adamw(model, options, device)
        self.steps_per_epoch = math.ceil(len(self.y) / options.batch)
        self.total = self.steps_per_epoch * options.epochs
        self.log_every = max(1, self.total // LOG_LINES)
        if sparsifier is not None:
            sparsifier.check_length(self.total)
        self.step = 0
        self.history = History()
        self.epochs_since_best = 0
        self.best_weights: dict[str, Tensor] | None = None
        self.last_loss = math.nan
        self.checkpoint_seconds = checkpoint_seconds
        self.interrupts = Interrupts()
        self._hashes: tuple[str, str | None] | None = None
        self._saved_at = self._started = time.monotonic()

    def train(self, progress: Progress) -> None:
        """Run all epochs; checkpoints and validation happen between steps."""
        while self.step < self.total and not self.history.stopped_early:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            order = batches(len(self.y), self.options.batch, seed=self.options.seed, epoch=epoch)
            self.model.train()
            for index in islice(order, done, None):
                self.optimize(index)
                progress.update(self.step / self.total, self._status())
                if self.step % self.steps_per_epoch:  # otherwise after the validation of this epoch
                    self._checkpoint_or_stop()
            self._end_of_epoch(epoch)

    def _checkpoint_or_stop(self, *, finished: bool = False) -> None:
        """Between two steps: save a checkpoint if it is time for one, and stop if Ctrl-C was pressed."""
        interrupted = self.interrupts.requested
        due = finished or interrupted or time.monotonic() - self._saved_at >= self.checkpoint_seconds
        due, interrupted = distributed.any_of(due, interrupted, device=self.device)
        if due:
            self.save_checkpoint()
        if interrupted:
            raise KeyboardInterrupt

    def optimize(self, index: Tensor) -> None:
        """One optimizer step on one global batch."""
        options, now = self.options, self.step / self.total
        if self.budget is not None:
            self.budget.apply_(self.model, now)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * options.learning_rate(self.step, self.total)
        by_rank = index.tensor_split(distributed.world_size())
        count = min(options.accumulate, len(by_rank[0]))  # the same on every process: rank 0 has the most rows
        micro_batches = by_rank[distributed.rank()].tensor_split(count)
        normalizer = self._weight_of(index) / distributed.world_size()  # DDP averages gradients, we want their sum
        total_loss = total_penalty = torch.zeros((), device=self.device)
        inputs = [self._inputs(rows, training=True) for rows in micro_batches]
        whole: Usage | None = None
        if self.budget is not None and count > 1:
            whole = step_whole_batch(self.budget, self.model, inputs, now, device=self.device, bf16=options.bf16)
        used: Usage | None = None
        for position, (rows, x) in enumerate(zip(micro_batches, inputs, strict=True)):
            with distributed.without_sync(self.parallel, skip=position + 1 < len(micro_batches)):
                loss, penalty, used = self._forward(x, rows, now if whole is None else None)
                loss = loss / normalizer
                rows_of_all = sum(len(part.tensor_split(count)[position]) for part in by_rank)
                penalty = penalty * (rows_of_all / len(index))
                if self.sparsifier is not None and used is not None:
                    self.sparsifier.watch(used, penalty)
                (loss + penalty).backward()
            total_loss, total_penalty = total_loss + loss.detach(), total_penalty + penalty.detach()
        totals = torch.stack([total_loss, total_penalty]).tolist()  # both at once: each transfer from a GPU waits
        loss_now, penalty_now = distributed.average(*totals, device=self.device)
        if not math.isfinite(loss_now + penalty_now):
            raise ValueError(
                f"the loss became {loss_now + penalty_now} at step {self.step}: lower the learning rate or set clip=1.0"
            )
        if self.sparsifier is not None:
            self.sparsifier.step(self.optimizer, now)
        if options.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.last_loss = loss_now
        if self.step % self.log_every == 0 or self.step == self.total:
            self._log({"loss": loss_now, "penalty": penalty_now}, used if whole is None else whole)

    def _forward(self, x: Tensor, rows: Tensor, now: float | None) -> tuple[Tensor, Tensor, Usage | None]:
        """Loss and penalty of one micro-batch. With a `now` it is the whole batch, and the budget takes its step."""
        y = self.y[rows.to(self.device)]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
            if not self.gated:
                return self.task_loss(self.parallel(x), y, x), torch.zeros((), device=self.device), None
            with usage(self.model) as used:
                scores = self.parallel(x)
            if self.staged:
                loss = self.task_loss.of_stages(self.stage_loss, used, y, x)
            else:
                loss = self.task_loss(scores, y, x)
        if self.budget is None:
            return loss, torch.zeros((), device=self.device), used
        return loss, self.budget.penalty(used) if now is None else self.budget.step(used, now), used

    def _inputs(self, index: Tensor, *, training: bool = False) -> Tensor:
        on_device = isinstance(self.data.x, Tensor)
        return self.data.rows(index.to(self.device) if on_device else index, training=training).to(self.device)

    def _weight_of(self, index: Tensor) -> float:
        if self.class_weights is None:
            return float(len(index))
        return float(self.class_weights[self.y[index.to(self.device)]].sum())

    def _end_of_epoch(self, epoch: int) -> None:
        if self.valid is not None:
            self._track_best(epoch, evaluate(self.model, self.valid, self.counter))
        self._checkpoint_or_stop(finished=self.step >= self.total or self.history.stopped_early)

    def _track_best(self, epoch: int, found: dict[str, float]) -> None:
        """Remember the best epoch and decide on early stopping. An epoch that exceeds the budget cannot be best."""
        self._log({"valid": self.units.scaled(found)}, None)
        budget, best = self.budget, self.history.best
        if isinstance(budget, Budget) and found["relative"] > budget.target + 0.01:
            return
        if best is None or found["accuracy"] > best["accuracy"]:
            self.history.best = {"epoch": epoch, **self.units.scaled(found)}
            self.epochs_since_best = 0
            if self.out is not None and distributed.rank() == 0:
                save(self.model, self.out / "best.safetensors")
            self.best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        else:
            self.epochs_since_best += 1
        patience = self.options.patience
        self.history.stopped_early = patience is not None and self.epochs_since_best >= patience

    def finish(self) -> None:
        """Restore the best epoch if `patience` is set, calibrate the gates to the budget, and validate."""
        if self.options.patience is not None and self.history.best is not None:
            self._restore_best()
        if isinstance(self.budget, Budget):
            self._calibrate(self.budget)
        if self.valid is not None:
            self.history.final = self.units.scaled(evaluate(self.model, self.valid, self.counter))
        self.history.steps = self.step
        self.history.seconds += time.monotonic() - self._started
        self.model.eval()

    def _calibrate(self, budget: Budget) -> None:
        """Calibrate on validation rows; where there are few, which would be noisy, on training rows as well. Not with
        stages: a network is surer of rows it has learned, so that fewer of them open a stage."""
        parts = [self.valid] if self.valid is not None else []
        if not parts or (not self.staged and len(parts[0]) < CALIBRATION_ROWS):
            parts.append(self.data)
        batches = (x.to(self.device) for part in parts for x, _ in part.batches(2048))
        unseen = None if self.valid is None else islice((x for x, _ in self.valid.batches(2048)), 10)
        achieved, target = budget.calibrate_(self.model, islice(batches, 10), unseen=unseen), budget.target
        if abs(achieved - target) > 0.01:
            warnings.warn(
                f"the budget was missed: asked for {target * self.units.scale:.3f} of the dense MACs, executes "
                f"{achieved * self.units.scale:.3f}. All gates move at once: train longer, or use smaller blocks",
                stacklevel=4,
            )

    def _restore_best(self) -> None:
        weights = self.best_weights
        if weights is None and self.out is not None:  # the best epoch was before an interruption
            weights = load(self.out / "best.safetensors", into=self.model).state_dict()
        if weights is not None:
            self.model.load_state_dict(weights)

    def _status(self) -> str:
        text = f"epoch {-(-self.step // self.steps_per_epoch)}/{self.options.epochs}  loss {self.last_loss:.3f}"
        if isinstance(self.budget, Budget) and self.budget.relative is not None:
            text += f"  MACs {self.budget.relative * self.units.scale:.3f}"
        if self.history.best is not None:
            text += f"  best {self.history.best['accuracy']:.2%}"
        return text

    def _log(self, row: dict[str, Any], used: Usage | None) -> None:
        found: dict[str, Any] = {
            "step": self.step,
            "epoch": (self.step - 1) // self.steps_per_epoch,
            "progress": self.step / self.total,
            "loss": None,
            "penalty": None,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self.units.of_budget(self.budget),
            "lambda": self.budget.lambda_ if self.budget else None,
            "valid": None,
            "sites": site_stats(self.model, used) if used is not None else {},
            "stages": stage_stats(used),
            "sparsity": self.sparsifier.stats() if self.sparsifier else None,
            "masks": self.sparsifier.fingerprint() if self.sparsifier else None,
            **row,
        }
        self.history.log.append(found)
        if self.out is not None and distributed.rank() == 0:
            append_row(self.out / "log.jsonl", found)

    def _fingerprint(self) -> dict[str, Any]:
        if self._hashes is None:  # only once, because it reads every row
            self._hashes = hash_data(self.data), None if self.valid is None else hash_data(self.valid)
        found = fingerprint(
            model=self.model,
            data_hash=self._hashes[0],
            valid_hash=self._hashes[1],
            budget=self.budget,
            sparsifier=self.sparsifier,
            options=self.options,
            class_weights=self.class_weights,
        )
        if self.staged:
            found["stages"] = {**stage_settings(self.model), **self.stage_loss.settings}
        return found if self.teacher is None else {**found, "teacher": self.teacher.fingerprint()}

    def save_checkpoint(self) -> None:
        """Save everything needed to continue from this step."""
        if self.out is None:
            return
        rng = distributed.gather_named(random_state())
        # On every process, because it sums counts over them.
        sparsifier = self.sparsifier.state_dict() if self.sparsifier is not None else None
        self._saved_at = time.monotonic()
        if distributed.rank() != 0:
            return
        position = {
            "step": self.step,
            "seconds": self.history.seconds + self._saved_at - self._started,
            "best": self.history.best,
            "epochs_since_best": self.epochs_since_best,
            "stopped_early": self.history.stopped_early,
        }
        save_checkpoint(
            self.out / "last.safetensors",
            self.model,
            self.optimizer,
            self.budget,
            sparsifier,
            settings=self._fingerprint(),
            position=position,
            rng=rng,
        )

    def resume(self) -> None:
        """Continue from last.safetensors if there is one."""
        if self.out is None:
            return
        settings = self._fingerprint()  # first: what cannot be resumed later is refused before it trains
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "last.safetensors"
        log = self.out / "log.jsonl"
        if not path.exists():
            if distributed.rank() == 0:
                rewrite_log(log, [])
            return
        position, rng = load_checkpoint(
            path, self.model, self.optimizer, self.budget, self.sparsifier, settings=settings
        )
        self.step, self.history.seconds = position["step"], position["seconds"]
        self.history.best, self.epochs_since_best = position["best"], position["epochs_since_best"]
        self.history.stopped_early = position["stopped_early"]
        prefix = f"{distributed.rank()}."
        state = {k.removeprefix(prefix): v for k, v in rng.items() if k.startswith(prefix)}
        if state:
            set_random_state(state)
        else:  # a process that did not exist when the checkpoint was made
            torch.manual_seed(self.options.seed + distributed.rank() + 1_000_003 * self.step)
        self.history.log = [row for row in read_log(log) if row["step"] <= self.step]
        if distributed.rank() == 0:
            rewrite_log(log, self.history.log)
