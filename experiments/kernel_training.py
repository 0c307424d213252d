"""Does training with the GPU kernels give the same losses as without? A character-level Transformer with gated FFNs.

    python -m experiments.kernel_training           # minutes on an H200; writes results/kernel-training.json
    python -m experiments.kernel_training --quick   # seconds on any machine; writes nothing

The same network is trained in three modes from the same seeds on the same batches: dense with closed blocks multiplied
by zero ("never"), and with the kernels with the dense and with the sparse gate gradient. The text is the source of
Python's standard library, files in the order of their names; its hash is in the results, because it depends on the
version of Python. Losses are in nats per character; the last is on held-out text, hard gates as deployed. Steps are
timed afterwards, the three trained models in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.files import environment, write_results

HERE = Path(__file__).resolve().parent
MODES = {
    "never": {"kernels": "never"},
    "exact": {"kernels": "always", "gate_gradient": "dense"},
    "sparse": {"kernels": "always", "gate_gradient": "sparse"},
}
CHARACTERS, BLOCK, OPEN = 128, 64, 0.25
SIZES = {"features": 1024, "layers": 4, "heads": 16, "context": 512, "batch": 32, "steps": 160}
QUICK = {"features": 64, "layers": 2, "heads": 2, "context": 32, "batch": 4, "steps": 20}


def read_text(most: int = 4 << 20) -> tuple[Tensor, str]:
    """The characters of the standard library as numbers, and the hash of its bytes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    data = b"".join(file.read_bytes() for file in files)[:most]
    numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8).long().clamp(max=CHARACTERS - 1)
    return numbers, hashlib.sha256(data).hexdigest()


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual path around it."""

    def __init__(self, features: int, heads: int, **mode: Any) -> None:
        """`mode`: options of the feed-forward layer."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.mix = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.ffn = dg.nn.FFN(features, 4 * features, activation="gelu", **mode)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Causal attention: a character sees those before it."""
        qkv = self.qkv(self.norm1(x_BTD)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        y_BHTE = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.mix(y_BHTE.transpose(1, 2).flatten(2))
        return x_BTD + self.ffn(self.norm2(x_BTD))


class Transformer(nn.Module):
    """Characters to scores of the next one."""

    def __init__(self, sizes: dict[str, int], **mode: Any) -> None:
        """`mode`: options of the feed-forward layers."""
        super().__init__()
        features = sizes["features"]
        self.embed = nn.Embedding(CHARACTERS, features)
        self.position = nn.Parameter(torch.randn(sizes["context"], features) * 0.02)
        self.blocks = nn.Sequential(*(Block(features, sizes["heads"], **mode) for _ in range(sizes["layers"])))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, CHARACTERS)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Scores of the next character at each position."""
        return self.head(self.norm(self.blocks(self.embed(ids_BT) + self.position[: ids_BT.shape[1]])))


class Run:
    """One model in training."""

    def __init__(self, mode: str, seed: int, sizes: dict[str, int], data: Tensor) -> None:
        """Model, gates, budget, optimizer, and the order of the batches, all from `seed`."""
        torch.manual_seed(seed)
        self.sizes, self.data = sizes, data
        self.device = data.device
        self.model = Transformer(sizes, **MODES[mode]).to(self.device)
        dg.gate_(self.model, dg.GateConfig(block=BLOCK, net="linear"), where="blocks.*.ffn.down")
        counter = dg.count_macs(self.model, data[: 8 * sizes["context"]].reshape(8, -1))
        self.budget = dg.Budget(target=round(counter.relative_at(OPEN), 4), counter=counter)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, weight_decay=0.01)
        self.generator = torch.Generator().manual_seed(seed)
        self.split = int(0.95 * len(data))

    def batch(self, start: int, end: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Windows of the text between two positions, and the same shifted by one character."""
        context = self.sizes["context"]
        first = torch.randint(start, end - context - 1, (self.sizes["batch"],), generator=generator)
        index = (first[:, None] + torch.arange(context + 1)).to(self.device)
        return self.data[index[:, :-1]], self.data[index[:, 1:]]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross entropy, in bfloat16 where there is a GPU."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return F.cross_entropy(self.model(x).float().flatten(0, 1), y.flatten())

    def step(self, progress: float) -> Tensor:
        """One step of training; the task's part of the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = 6e-4 * min(1.0, 20 * progress + 0.01) * 0.5 * (1 + math.cos(math.pi * progress))
        self.budget.apply_(self.model, progress)
        x, y = self.batch(0, self.split, self.generator)
        with dg.usage(self.model) as used:
            loss = self.loss(x, y)
        (loss + self.budget.step(used, progress)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def held_out(self) -> tuple[float, float]:
        """Loss on held-out text, the same windows for every run, and the fraction of open blocks."""
        self.model.eval()
        generator = torch.Generator().manual_seed(0)
        windows = [self.batch(self.split, len(self.data), generator) for _ in range(8)]
        with dg.usage(self.model) as used:
            losses = [float(self.loss(x, y)) for x, y in windows]
            rate = statistics.mean(float(g) for g in used.mean_open().values())
        self.model.train()
        return statistics.mean(losses), rate

    def train(self) -> dict[str, Any]:
        """All steps; mean losses of tenths of the run, and the final ones."""
        losses = [self.step(step / self.sizes["steps"]) for step in range(self.sizes["steps"])]
        tenth = max(1, len(losses) // 10)
        curve = [float(torch.stack(losses[i : i + tenth]).mean()) for i in range(0, len(losses), tenth)]
        final, rate = self.held_out()
        return {"curve": curve, "final": final, "open": rate}


def step_times(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Median seconds of a step in each mode, the models in turn, at the end of training."""
    recorded: dict[str, list[float]] = {mode: [] for mode in runs}
    for number in range(rounds + 2):
        for mode, run in runs.items():
            _wait(run.device)
            start = time.perf_counter()
            run.step(0.999)
            _wait(run.device)
            recorded[mode] += [time.perf_counter() - start] if number >= 2 else []
    return {mode: statistics.median(times) for mode, times in recorded.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Train in every mode from every seed, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--commit", help="commit of this source, where git cannot tell it")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kernel-training.json")
    args = parser.parse_args()
    sizes = {**(QUICK if args.quick else SIZES), **({"steps": args.steps} if args.steps else {})}
    data, digest = read_text(100_000 if args.quick else 4 << 20)
    data = data.to("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        runs = {mode: Run(mode, seed, sizes, data) for mode in MODES}
        for mode, run in runs.items():
            rows.append({"kernels": mode, "seed": seed, **run.train()})
            print(f"seed {seed}  {mode:<7} final {rows[-1]['final']:.4f}  open {rows[-1]['open']:.3f}", flush=True)
    summary = []
    for mode, seconds in step_times(runs, 3 if args.quick else 20).items():
        finals = [row["final"] for row in rows if row["kernels"] == mode]
        spread = statistics.stdev(finals) if len(finals) > 1 else 0.0
        summary.append({"kernels": mode, "final": statistics.mean(finals), "std": spread, "step_ms": 1e3 * seconds})
        print(summary[-1])
    if not args.quick:
        meta = environment("python -m experiments.kernel_training")
        meta |= {"commit": args.commit or meta["commit"], "sizes": sizes, "block": BLOCK, "open": OPEN}
        meta |= {"text_sha256": digest, "characters": len(data), "summary": summary}
        write_results(args.out, meta, rows)


if __name__ == "__main__":
    main()
