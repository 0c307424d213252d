"""Train a gated, sparse Llama on one process or several: torchrun two_processes.py OUT.

Every process takes its part of each batch. What must agree is written to OUT/<kind>: losses, executed MACs, masks,
weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

import dynamicgate as dg
from dynamicgate import distributed, hf
from dynamicgate.sparsity import RigL
from tests.hf.test_trainer import ROWS, arguments, collate, sentences
from tests.hf.tiny import PAD, gated, tiny_llama, tokens

STEPS, SEQUENCES, LENGTH = 8, 6, 8
WEIGHTS = "weights.safetensors"


def batch_of(step: int) -> dict[str, Tensor]:
    """Rows of different lengths, so that processes hold different numbers of tokens."""
    ids = tokens(SEQUENCES, LENGTH, seed=step) % 8 + 3
    mask = (torch.arange(LENGTH) < (3 + torch.arange(SEQUENCES))[:, None]).long()
    ids = ids.masked_fill(mask == 0, PAD)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def train(out: Path, kind: str) -> None:
    """One run: "plain", "ddp", "fsdp" or "accelerate"."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True) if kind == "accelerate" else None
    # float64: in float32 sums in another order may choose another connection of two that are equally good
    base = gated(tiny_llama()).train().double()
    counter = dg.count_macs(base, batch_of(0))
    budget = dg.Budget(target=0.6, warmup=0.0, counter=counter)
    sparsifier = RigL(base, density=0.6, every=2, until=0.9, include=["*mlp*_proj"])
    budget.sparsifier = sparsifier
    model: nn.Module = base
    if kind == "ddp":
        model = DistributedDataParallel(base)
    elif kind == "fsdp":
        for layer in base.model.layers:
            fully_shard(layer)
        fully_shard(base)
    optimizer: Any = torch.optim.AdamW(base.parameters(), lr=3e-3, weight_decay=0.01)
    if accelerator is not None:
        model, optimizer = accelerator.prepare(base, optimizer)
    rows = []
    for step in range(STEPS):
        now, batch = step / STEPS, batch_of(step)
        items = int((batch["labels"][:, 1:] != -100).sum()) / distributed.world_size()  # gradients are averaged
        part = {name: value.tensor_split(distributed.world_size())[distributed.rank()] for name, value in batch.items()}
        budget.apply_(model, now)
        with dg.usage(model) as used:
            loss = model(**part, num_items_in_batch=items).loss
        penalty = budget.step(used, now)
        sparsifier.watch(used)
        if accelerator is None:
            (loss + penalty).backward()
        else:
            accelerator.backward(loss + penalty)
        sparsifier.step(getattr(optimizer, "optimizer", optimizer), now)
        optimizer.step()
        optimizer.zero_grad()
        mean, cost = distributed.average(float(loss.detach()), float(penalty.detach()), device=torch.device("cpu"))
        rows.append({"loss": mean, "penalty": cost, "executed": budget.relative, "masks": sparsifier.fingerprint()})
    weights = {name: whole(value).detach().clone().contiguous() for name, value in base.state_dict().items()}
    if distributed.rank() == 0:
        (out / kind).mkdir(parents=True)
        (out / kind / "log.json").write_text(json.dumps(rows))
        save_file(weights, out / kind / WEIGHTS)


def train_with_trainer(out: Path, *, processes: int) -> None:
    """The same numbers of rows in each step, dealt to the processes."""
    model = gated(tiny_llama()).double()
    callback = hf.GateCallback(dg.Budget(target=0.75, warmup=0.0), calibrate=0)
    args = arguments(out / "trainer", per_device_train_batch_size=4 // processes, max_steps=6, logging_steps=1)
    run = Trainer(model, args, train_dataset=sentences(ROWS), data_collator=collate, callbacks=[callback])  # type: ignore[arg-type]
    run.train()
    if distributed.rank() == 0:
        rows = [row for row in run.state.log_history if "executed_macs" in row]
        (out / "trainer" / "log.json").write_text(json.dumps(rows))
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, out / "trainer" / WEIGHTS)


if __name__ == "__main__":
    distributed.start(torch.device("cpu"))
    for each in ("ddp", "fsdp", "accelerate"):
        train(Path(sys.argv[1]), each)
    train_with_trainer(Path(sys.argv[1]), processes=2)
    distributed.stop()
