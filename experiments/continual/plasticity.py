"""E5 and E6: does a network that learns one permutation after the other grow old? All methods on equal rows, all seeds
at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dynamicgate.distributed import choose_device
from dynamicgate.files import write_atomically
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.streams import scaled
from dynamicgate.lab.runner import Job
from experiments.continual.graphs import captured
from experiments.continual.side import Side

EVERY = 125  # steps between exchanges, and between recyclings
SAVED = 60.0  # seconds between checkpoints
CHECKPOINT = "last.safetensors"


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """All methods and seeds, each seed with its own order of tasks and rows. It goes on where it was stopped."""
    asked, device = job.settings, choose_device(job.device)
    methods, seeds = asked["methods"], asked["seeds"]
    torch.set_float32_matmul_precision("high")
    flat = scaled(splits)
    x, y = flat.train.values.to(device), flat.train.y.to(device)
    side = Side(methods, (x.shape[1], *asked["hidden"], int(y.max()) + 1), asked["lr"], seeds, device,
                asked.get("options"))  # fmt: skip
    batch, rows, every = asked["batch"], min(asked["rows"], len(x)), asked.get("every", EVERY)
    now_x = torch.zeros(len(seeds), batch, x.shape[1], device=device)
    now_y = torch.zeros(len(seeds), batch, dtype=torch.long, device=device)
    step = captured(lambda: side.step(now_x, now_y), side.state)
    done = Done.read(job.folder / CHECKPOINT, side)
    started, saved = time.monotonic() - done.seconds, time.monotonic()
    while done.task < asked["tasks"]:
        torch.manual_seed(1_000_003 * job.seed + done.task)  # of the noise, so that a resumed run draws the same
        chosen_SR, order_SD = drawn(seeds, done.task, len(x), x.shape[1], rows, device)
        side.new_task(done.task)
        side.right.zero_()
        for at in range(0, rows - batch + 1, batch):
            index = chosen_SR[:, at : at + batch]
            found = x[index]
            torch.gather(found, 2, order_SD[:, None].expand_as(found), out=now_x)
            torch.index_select(y, 0, index.flatten(), out=now_y.view(-1))
            step()
            done.steps += 1
            if done.steps % every == 0:
                side.between()
        done.online.append((side.right / (rows // batch * batch)).tolist())
        done.silent = side.silent.tolist()
        done.task += 1
        if time.monotonic() - saved > asked.get("saved", SAVED):
            saved = time.monotonic()
            done.seconds = saved - started
            done.write(job.folder / CHECKPOINT, side)
    return result(job, done, side, time.monotonic() - started)


def drawn(
    seeds: list[int], task: int, rows: int, features: int, count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows of a task and the order of their features, for every seed."""
    chosen, orders = [], []
    for seed in seeds:
        draw = torch.Generator().manual_seed(1_000_003 * seed + task)
        orders.append(torch.randperm(features, generator=draw))
        chosen.append(torch.randperm(rows, generator=draw)[:count])
    return torch.stack(chosen).to(device), torch.stack(orders).to(device)


class Done:
    """How far a run has come."""

    def __init__(self) -> None:
        """At the first task."""
        self.task, self.steps, self.seconds = 0, 0, 0.0
        self.online: list[list[float]] = []
        self.silent: list[float] = []

    def write(self, path: Path, side: Side) -> None:
        """With all that the networks are."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {str(number): value.contiguous() for number, value in enumerate(side.state)}
        about = json.dumps({**vars(self), "updates": side.updates})
        write_atomically(path, lambda temporary: save_file(tensors, temporary, {"done": about}))

    @staticmethod
    def read(path: Path, side: Side) -> Done:
        """As it was written, or at the first task."""
        done = Done()
        if not path.exists():
            return done
        with safe_open(path, "pt") as file, torch.no_grad():
            about = json.loads(file.metadata()["done"])
            for number, value in enumerate(side.state):
                value.copy_(file.get_tensor(str(number)))
        side.updates = about.pop("updates")
        vars(done).update(about)
        return done


def result(job: Job, done: Done, side: Side, seconds: float) -> dict[str, Any]:
    """The curves of every method, one for each seed."""
    each = len(side.seeds)
    places = {m: range(k * each, (k + 1) * each) for k, m in enumerate(side.methods)}
    curves = {m: [[round(row[k], 5) for row in done.online] for k in at] for m, at in places.items()}
    gates = sum(p[0].numel() for p in side.stack.gates)
    connections = (side.stack.nonzero + gates * side.gated).tolist()
    return {
        "model": job.model, "seed": job.seed, "settings": job.settings, "macs": {"relative": 1.0}, "params": 0,
        "quality": {"accuracy": max(curves[side.methods[0]][0]), "online": curves,
                    "silent": {m: [round(done.silent[k], 3) for k in at] for m, at in places.items()}},
        "connections": {m: int(connections[at[0]]) for m, at in places.items()},
        "seconds": round(seconds, 1), "steps_a_second": round(done.steps / seconds, 1),
    }  # fmt: skip
