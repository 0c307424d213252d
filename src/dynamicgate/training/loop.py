"""`Run`, the training loop: epochs, steps, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.budget import Budget
from dynamicgate.data import batches
from dynamicgate.data.contract import Inputs, call, count_samples, move, take_samples
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.training.callbacks import RunInfo
from dynamicgate.training.ending import track_best, validate
from dynamicgate.training.loader_stream import LoaderStream, as_read
from dynamicgate.training.optimizer import set_learning_rate
from dynamicgate.training.progress import Progress
from dynamicgate.training.resuming import save_run
from dynamicgate.training.run_state import RunState
from dynamicgate.training.whole_batch import step_whole_batch


class Batch(NamedTuple):
    """The rows of one optimizer step."""

    parts: list[tuple[Inputs, Tensor]]
    """Micro-batches of this process."""
    rows: list[int]
    """Of all processes in each of them."""
    weight: float
    """What the sum of the losses of all rows is divided by."""


class Run(RunState):
    """The steps of one run of `fit`."""

    def train(self, progress: Progress) -> None:
        """Run all epochs; checkpoints and validation happen between steps."""
        self._start_callbacks()
        while self.step < self.total and not self.history.stopped_early:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            self.model.train()
            for batch in self._batches(epoch, done):
                self._take_step(batch)
                progress.update(self.step / self.total, self._status())
                if self.step % self.steps_per_epoch == 0:
                    break
                self._between_steps()
                if self.history.stopped_early:
                    return
            else:
                raise ValueError(
                    f"the DataLoader gave fewer batches than the {self.steps_per_epoch} that its len() promised"
                )
            self._end_of_epoch(epoch)

    def _batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """The batches of an epoch without the first `done`."""
        options = self.options
        if isinstance(self.data, LoaderStream):
            for inputs, targets in self.data.epoch(options.seed, epoch, done):
                yield self._streamed(inputs, targets)
            return
        for index in islice(batches(len(self.data), options.batch, seed=options.seed, epoch=epoch), done, None):
            yield self._indexed(index)

    def _start_callbacks(self) -> None:
        settings = {
            **asdict(self.options),
            "rows": None if isinstance(self.data, LoaderStream) else len(self.data),
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
        """One optimizer step on the rows in memory at these positions."""
        self._take_step(self._indexed(index))

    def _indexed(self, index: Tensor) -> Batch:
        """A batch of rows in memory, of which every process takes a part."""
        assert not isinstance(self.data, LoaderStream)
        by_rank = index.tensor_split(distributed.world_size())
        count = min(self.options.accumulate, len(by_rank[0]))  # the same on every process: rank 0 has the most rows
        mine = by_rank[distributed.rank()].tensor_split(count)
        y = self.data.y
        parts = [(self.rows(rows, training=True), y[rows.to(y.device)]) for rows in mine]
        of_all = [sum(len(part.tensor_split(count)[k]) for part in by_rank) for k in range(count)]
        return Batch(parts, of_all, self.task.weight(y[index.to(y.device)]))

    def _streamed(self, inputs: Inputs, targets: Tensor) -> Batch:
        """A batch of a DataLoader; every process has its own, of the same number of rows."""
        if len(targets) != count_samples(inputs):
            raise ValueError(f"a batch has {count_samples(inputs)} rows and {len(targets)} targets")
        targets = as_read(self.task, targets).to(self.device)
        count = min(self.options.accumulate, len(targets))
        ends = torch.arange(len(targets)).tensor_split(count)
        slices = [slice(int(rows[0]), int(rows[-1]) + 1) for rows in ends]
        parts = [(move(take_samples(inputs, part), self.device), targets[part]) for part in slices]
        size = distributed.world_size()
        mean_weight = distributed.average(self.task.weight(targets), device=self.device)[0]
        return Batch(parts, [len(rows) * size for rows in ends], mean_weight * size)

    def _take_step(self, batch: Batch) -> None:
        options, now = self.options, self.step / self.total
        if self.budget is not None:
            self.budget.apply_(self.model, now)
        set_learning_rate(self.optimizer, options, self.step, self.total)
        normalizer = max(batch.weight, 1e-9) / distributed.world_size()  # DDP averages gradients, we want their sum
        total_loss = total_penalty = torch.zeros((), device=self.device)
        whole: Usage | None = None
        if self.budget is not None and len(batch.parts) > 1:
            inputs = [x for x, _ in batch.parts]
            whole = step_whole_batch(self.budget, self.model, inputs, now, device=self.device, bf16=options.bf16)
        used: Usage | None = None
        for position, (x, y) in enumerate(batch.parts):
            with distributed.without_sync(self.parallel, skip=position + 1 < len(batch.parts)):
                loss, penalty, used = self._forward(x, y, now if whole is None else None)
                loss = loss / normalizer
                penalty = penalty * (batch.rows[position] / sum(batch.rows))
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

    def _forward(self, x: Inputs, y: Tensor, now: float | None) -> tuple[Tensor, Tensor, Usage | None]:
        """Loss and penalty of one micro-batch. With a `now` it is the whole batch, and the budget takes its step."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
            if not self.gated:
                return self.task_loss(call(self.parallel, x), y, x), torch.zeros((), device=self.device), None
            with usage(self.model) as used:
                outputs = call(self.parallel, x)
            if self.staged:
                loss = self.task_loss.of_stages(self.stage_loss, used, y, x)
            else:
                loss = self.task_loss(outputs, y, x)
        if self.budget is None:
            return loss, torch.zeros((), device=self.device), used
        return loss, self.budget.penalty(used) if now is None else self.budget.step(used, now), used

    def _end_of_epoch(self, epoch: int) -> None:
        found = validate(self)
        if found is not None:
            self.log({"valid": self.units.scaled(found)}, None)
            track_best(self, epoch, found)
        self._between_steps(finished=self.step >= self.total or self.history.stopped_early)

    def _status(self) -> str:
        text = f"epoch {-(-self.step // self.steps_per_epoch)}/{self.options.epochs}  loss {self.last_loss:.3f}"
        if isinstance(self.budget, Budget) and self.budget.relative is not None:
            text += f"  MACs {self.budget.relative * self.units.scale:.3f}"
        if self.history.best is not None:
            name, fraction = self.valid_task.best
            best = self.history.best[name]
            text += f"  best {best:.2%}" if fraction else f"  best {name} {best:.4g}"
        return text
