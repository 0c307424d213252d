"""`Run`, the training loop: epochs, steps, checkpoints."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from itertools import islice

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.accounting.metrics import evaluate
from dynamicgate.budget import Budget
from dynamicgate.data import batches
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.training.callbacks import RunInfo
from dynamicgate.training.ending import track_best
from dynamicgate.training.progress import Progress
from dynamicgate.training.resuming import save_run
from dynamicgate.training.run_state import RunState
from dynamicgate.training.whole_batch import step_whole_batch


class Run(RunState):
    """The steps of one run of `fit`."""

    def train(self, progress: Progress) -> None:
        """Run all epochs; checkpoints and validation happen between steps."""
        self._start_callbacks()
        while self.step < self.total and not self.history.stopped_early:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            order = batches(len(self.y), self.options.batch, seed=self.options.seed, epoch=epoch)
            self.model.train()
            for index in islice(order, done, None):
                self.optimize(index)
                progress.update(self.step / self.total, self._status())
                if self.step % self.steps_per_epoch:
                    self._between_steps()
                    if self.history.stopped_early:
                        return
            self._end_of_epoch(epoch)

    def _start_callbacks(self) -> None:
        settings = {
            **asdict(self.options),
            "rows": len(self.y),
            "macs": self.budget.target if isinstance(self.budget, Budget) else None,
        }
        for callback in self.callbacks:
            info = RunInfo(
                model=self.model,
                settings=settings,
                step=self.step,
                steps=self.total,
                steps_per_epoch=self.steps_per_epoch,
                out=self.out,
            )
            callback.on_start(info)

    def _between_steps(self, *, finished: bool = False) -> None:
        """Stop if a callback asked for it, save a checkpoint if it is time for one, and end if Ctrl-C was pressed."""
        stop, interrupted = self.stop_asked, self.interrupts.requested
        due = finished or stop or interrupted or time.monotonic() - self.saved_at >= self.checkpoint_seconds
        due, stop, interrupted = distributed.any_of(due, stop, interrupted, device=self.device)
        self.history.stopped_early = self.history.stopped_early or stop
        if due:
            save_run(self)
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
        inputs = [self.inputs(rows, training=True) for rows in micro_batches]
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
            self.log({"loss": loss_now, "penalty": penalty_now}, used if whole is None else whole)

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

    def _weight_of(self, index: Tensor) -> float:
        if self.class_weights is None:
            return float(len(index))
        return float(self.class_weights[self.y[index.to(self.device)]].sum())

    def _end_of_epoch(self, epoch: int) -> None:
        if self.valid is not None:
            found = evaluate(self.model, self.valid, self.counter)
            self.log({"valid": found}, None)
            track_best(self, epoch, found)
        self._between_steps(finished=self.step >= self.total or self.history.stopped_early)

    def _status(self) -> str:
        text = f"loss {self.last_loss:.3f}"
        if isinstance(self.budget, Budget) and self.budget.relative is not None:
            text += f"  MACs {self.budget.relative:.3f}"
        if self.history.best is not None:
            text += f"  best {self.history.best['accuracy']:.2%}"
        return text
