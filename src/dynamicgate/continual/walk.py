"""`Walk`: the loop of `follow`, and its state. Every checkpoint can be continued to the same result."""

from __future__ import annotations

import json
import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget
from dynamicgate.continual.asking import Questions, rows_on
from dynamicgate.continual.optimizers import NewOptimizer, set_rate
from dynamicgate.continual.retention import NAN, Retention
from dynamicgate.continual.streams import Stream, Task
from dynamicgate.continual.walk_file import Parts, part_settings, read_walk, stream_settings, write_walk
from dynamicgate.data import batches
from dynamicgate.files import write_text
from dynamicgate.gating.recording import is_gated, usage
from dynamicgate.modules import evaluating
from dynamicgate.sparsity import Keeper
from dynamicgate.training.interrupt import Interrupts
from dynamicgate.training.log import append_row, read_log, rewrite_log
from dynamicgate.training.progress import Progress

KEEP_ROWS = 10_000


class Walk:
    """One run of `follow`."""

    def __init__(
        self,
        parts: Parts,
        stream: Stream,
        options: dict[str, Any],
        new_optimizer: NewOptimizer,
        device: torch.device,
        out: Path | None,
        seconds: float,
    ) -> None:
        """At the first step of the first task; `resume` continues an earlier run."""
        self.parts, self.stream, self.options, self.device, self.out = parts, stream, options, device, out
        self.checkpoint_seconds = seconds
        self.retention = Retention.empty(len(stream), scenario=stream.scenario)
        self.retention.lowest_every = options["test_every"]
        self.task = self.step = self.since_open = 0
        self.right = self.rows = 0
        self.context_of: list[int] = []
        self.seconds, self._started = 0.0, time.monotonic()
        self._saved_at = self._started
        self.interrupts = Interrupts()
        self._new_optimizer = new_optimizer
        self.optimizer = new_optimizer()
        self._about: dict[str, Any] | None = None
        self._asked = part_settings(parts)  # now: a sparsifier chooses its period when training begins
        self.questions = Questions(parts.model, stream, parts.contexts, device)
        self.gated = is_gated(parts.model)
        self.told = stream.known != "nothing"

    def go(self, progress: Progress) -> None:
        """All tasks that are left."""
        if self.retention.untrained is None:
            found = [self.accuracy(j) for j in range(len(self.stream))]
            self.retention.untrained = torch.tensor(found, dtype=torch.float64)
        while self.task < len(self.stream):
            task = self.stream.tasks[self.task]
            x, y = rows_on(self.device, task.train)
            steps_an_epoch = math.ceil(len(y) / self.options["batch"])
            total = steps_an_epoch * self.options["epochs"]
            if self.step == 0:
                self._begin(task, x, total)
            if isinstance(self.parts.budget, Budget):  # also in the middle of a task, after a kill
                self.parts.budget.bind(count_macs(self.parts.model, x[:2]), self.parts.sparsifier)
            self.parts.model.train()
            while self.step < total:
                epoch, done = divmod(self.step, steps_an_epoch)
                order = batches(
                    len(y), self.options["batch"], seed=self.options["seed"], epoch=1000 * self.task + epoch
                )
                for index in islice(order, done, None):
                    index = index.to(self.device)
                    self._optimize(x[index], y[index], total)
                    at = (self.task + self.step / total) / len(self.stream)
                    progress.update(at, f"task {self.task + 1} of {len(self.stream)}  {self._status()}")
                    if self.step < total:
                        self._checkpoint_or_stop()
            self._end(task, x, y)
            self._checkpoint_or_stop(due=True)

    def _begin(self, task: Task, x: Tensor, total: int) -> None:
        parts = self.parts
        if self.told:
            self.since_open = 0
            parts.learner.begin(task)
            if parts.contexts is not None:
                self.context_of.append(parts.contexts.open_(x[:1000]))
            elif parts.sparsifier is not None and isinstance(parts.keeper, Keeper) and self.task:
                parts.sparsifier.restart_()
            if self.options["new_optimizer"]:
                self.optimizer = self._new_optimizer()
        if parts.sparsifier is not None and self.options["clock"] != "constant":
            parts.sparsifier.check_length(self._length(total))
        if parts.budget is not None and (self.told or not self.task):  # else it would know where a task begins
            parts.budget.reset()

    def _length(self, total: int) -> int:
        """The steps over which the clock runs."""
        if self.options["horizon"] is not None:
            return int(self.options["horizon"])
        return total * (len(self.stream) if self.options["clock"] == "stream" else 1)

    def _now(self, total: int) -> float:
        """How far the clock has run, from 0 to 1."""
        if self.options["clock"] == "constant":
            return 0.0
        if self.options["horizon"] is not None:
            return min(self.since_open / self.options["horizon"], 0.98)  # then it goes on slowly
        done = self.step / total
        return (self.task + done) / len(self.stream) if self.options["clock"] == "stream" else done

    def _budget_now(self, now: float) -> float:
        """How far a budget has come down. With a constant clock it has the steps of the horizon, and then stays."""
        if self.options["clock"] == "constant" and self.options["horizon"] is not None:
            return min(1.0, self.since_open / float(self.options["horizon"]))
        return now

    def _optimize(self, x: Tensor, y: Tensor, total: int) -> None:
        parts, contexts = self.parts, self.parts.contexts
        if contexts is not None and not self.told:
            before = contexts.opened
            contexts.notice_(x)
            if contexts.opened > before:
                self.since_open = 0
                self.optimizer = self._new_optimizer()
        now = self._now(total)
        budget_now = self._budget_now(now)
        if parts.budget is not None:
            parts.budget.apply_(parts.model, budget_now)
            if parts.keeper is not None:
                parts.keeper.restore_()  # kept gates answer in training as they do in testing
        set_rate(self.optimizer, self.options["lr"], 0.5 * (1.0 + math.cos(math.pi * now)))
        if self.options["online"]:
            with torch.no_grad(), evaluating(parts.model):
                self.right += int((parts.model(x).argmax(1) == y).sum())
                self.rows += len(y)
        self.optimizer.zero_grad()
        if self.gated:
            with usage(parts.model) as used:
                loss = parts.learner.loss(x, y)
            penalty = loss.new_zeros(()) if parts.budget is None else parts.budget.step(used, budget_now)
            if parts.sparsifier is not None:
                parts.sparsifier.watch(used, penalty)
            (loss + penalty).backward()
        else:
            loss = parts.learner.loss(x, y)
            loss.backward()
        parts.learner.after_backward()
        if parts.sparsifier is not None:
            parts.sparsifier.step(self.optimizer, now)
        if parts.recycler is not None:
            parts.recycler.step(self.optimizer)
        if parts.keeper is not None:
            parts.keeper.step(self.optimizer)
        self.optimizer.step()
        parts.learner.after_step()
        if parts.keeper is not None:
            parts.keeper.restore_()
        self.step += 1
        self.since_open += 1
        every = self.options["test_every"]
        if every is not None and self.step % every == 0 and self.task:
            self._note_lowest(self.task)
        if self.step % max(1, total // 20) == 0:
            self._log({"loss": float(loss.detach())})

    def _end(self, task: Task, x: Tensor, y: Tensor) -> None:
        parts = self.parts
        if self.told:
            if parts.contexts is not None:
                parts.contexts.close_(x)
            elif isinstance(parts.keeper, Keeper):
                with torch.no_grad(), evaluating(parts.model), usage(parts.model) as used:
                    parts.model(x[:KEEP_ROWS])
                parts.keeper.keep_(used)
            parts.learner.finish(task)
        elif parts.contexts is not None and self.task + 1 == len(self.stream):
            parts.contexts.close_()
        asked = [self.accuracy(j) for j in range(self._asked_after(self.task))]
        self.retention.matrix[self.task, : len(asked)] = torch.tensor(asked, dtype=torch.float64)
        if self.options["test_every"] is not None:
            self._note_lowest(self.task)
        if self.options["online"]:
            self.retention.online.append(self.right / max(1, self.rows))
            self.right = self.rows = 0
        self._log({"tested": self.retention.matrix[self.task, : self.task + 1].tolist()})
        self.task, self.step = self.task + 1, 0
        if self.out is not None:
            write_text(self.out / "stream.json", json.dumps(self.retention.to_dict()))

    def _asked_after(self, task: int) -> int:
        """How many tasks are asked about after one of them: all so far, and the next one for forward transfer. Not in
        the scenario "class", in which nobody can answer with a class that was not seen yet."""
        if self.options["test_later"]:
            return len(self.stream)
        return min(len(self.stream), task + (1 if self.stream.scenario == "class" else 2))

    def _note_lowest(self, last: int) -> None:
        """Remember the lowest accuracy of each task that was learned before."""
        if self.retention.lowest is None:
            self.retention.lowest = torch.full((len(self.stream),), NAN, dtype=torch.float64)
        for j in range(last):
            now, before = self.accuracy(j), float(self.retention.lowest[j])
            self.retention.lowest[j] = now if math.isnan(before) else min(now, before)

    def accuracy(self, number: int) -> float:
        """On the test rows of a task, now."""
        return self.questions.accuracy(number, self.context_of)

    def _status(self) -> str:
        diagonal = self.retention.matrix.diagonal()[: self.task]
        return f"learned {float(diagonal.mean()):.2%}" if len(diagonal) else ""

    def _log(self, row: dict[str, Any]) -> None:
        if self.out is None:
            return
        found: dict[str, Any] = {"task": self.task, "step": self.step, **row}
        if self.parts.keeper is not None:
            found["free"] = self.parts.keeper.free
        if self.parts.contexts is not None:
            found["contexts"] = self.parts.contexts.opened
        append_row(self.out / "log.jsonl", found)

    def _checkpoint_or_stop(self, *, due: bool = False) -> None:
        if self.out is None:
            return
        if due or self.interrupts.requested or time.monotonic() - self._saved_at >= self.checkpoint_seconds:
            self.save()
        if self.interrupts.requested:
            raise KeyboardInterrupt

    def save(self) -> None:
        """Write everything that is needed to go on."""
        assert self.out is not None
        self._saved_at = time.monotonic()
        position = {
            "task": self.task, "step": self.step, "since_open": self.since_open, "right": self.right,
            "rows": self.rows, "context_of": self.context_of, "retention": self.retention.to_dict(),
            "seconds": self.seconds + self._saved_at - self._started,
        }  # fmt: skip
        write_walk(self.out / "last.safetensors", self.parts, self.optimizer, position, self._settings(), self._asked)

    def resume(self) -> None:
        """Go on from last.safetensors, if there is one."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        path, log = self.out / "last.safetensors", self.out / "log.jsonl"
        if not path.exists():
            rewrite_log(log, [])
            return
        position = read_walk(path, self.parts, self.optimizer, self._settings(), self._asked)
        self.task, self.step, self.since_open = position["task"], position["step"], position["since_open"]
        self.right, self.rows, self.context_of = position["right"], position["rows"], position["context_of"]
        self.seconds = position["seconds"]
        self.retention = Retention.from_dict(position["retention"])
        rows = [row for row in read_log(log) if (row["task"], row["step"]) <= (self.task, self.step)]
        rewrite_log(log, rows)

    def _settings(self) -> dict[str, Any]:
        if self._about is None:  # once: it reads rows of every task
            self._about = stream_settings(self.stream)
        options = {name: value for name, value in self.options.items() if name != "references" or value}
        return {**options, **self._about, "learner": type(self.parts.learner).__name__}
