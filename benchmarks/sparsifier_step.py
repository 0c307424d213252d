"""What sparse training costs in time: steps with RigL relative to dense ones, with an update every 100 steps.

The networks take turns step by step in one process, on the same batches with the same optimizer. A period of 100 steps,
its update included, is compared; the result is the median ratio over periods. The memory held besides weights,
gradients and optimizer state is counted too.

    python benchmarks/sparsifier_step.py     # writes benchmarks/results/sparsifier_step.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.files import environment, write_text

NETWORKS = {
    "784-256-10": ((784, 256, 10), 128),
    "2000-1000-500-10": ((2000, 1000, 500, 10), 256),
}
PERIOD = 100
DENSITY = 0.1


class Trainer:
    """One network and its optimizer."""

    def __init__(self, sizes: tuple[int, ...], kind: str) -> None:
        """`kind` is dense, static-sparse or rigl."""
        torch.manual_seed(0)
        self.model = dg.nn.GatedMLP(sizes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.sparsifier: dg.sparsity.Sparsifier | None = None
        if kind == "static-sparse":
            self.sparsifier = dg.sparsity.Static(self.model, DENSITY)
        elif kind == "rigl":
            self.sparsifier = dg.RigL(self.model, DENSITY, every=PERIOD, until=1.0)
        self.seconds = 0.0

    def step(self, x: torch.Tensor, y: torch.Tensor, progress: float) -> None:
        """One training step, timed."""
        start = time.perf_counter()
        F.cross_entropy(self.model(x), y).backward()
        if self.sparsifier is not None:
            self.sparsifier.step(self.optimizer, progress)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds += time.perf_counter() - start


def measure(sizes: tuple[int, ...], batch: int, periods: int) -> dict[str, Any]:
    """Ratios of a period of each kind to a dense one."""
    trainers = {kind: Trainer(sizes, kind) for kind in ("dense", "static-sparse", "rigl")}
    generator = torch.Generator().manual_seed(0)
    ratios: dict[str, list[float]] = {"static-sparse": [], "rigl": []}
    dense_ms = []
    for period in range(-1, periods):
        for trainer in trainers.values():
            trainer.seconds = 0.0
        for step in range(PERIOD if period >= 0 else 10):
            x = torch.randn(batch, sizes[0], generator=generator)
            y = torch.randint(0, sizes[-1], (batch,), generator=generator)
            order = list(trainers.values())
            for trainer in order[step % 3 :] + order[: step % 3]:  # so that none always finds the caches warm
                trainer.step(x, y, max(0, period) / periods)
        if period >= 0:
            dense_ms.append(trainers["dense"].seconds / PERIOD * 1e3)
            for kind, found in ratios.items():
                found.append(trainers[kind].seconds / trainers["dense"].seconds)
    sparsifier = trainers["rigl"].sparsifier
    assert sparsifier is not None
    assert sparsifier.updates >= periods - 1
    weights = sum(layer.mask.numel() for layer in sparsifier.layers)
    held = [layer.mask for layer in sparsifier.layers]
    held += [value for value in sparsifier.state_dict().values() if isinstance(value, torch.Tensor)]
    return {
        "batch": batch,
        "dense_ms": statistics.median(dense_ms),
        "held_bytes_per_weight": sum(tensor.nbytes for tensor in held) / weights,
        **{
            kind: {"ratio": statistics.median(found), "least": min(found), "most": max(found)}
            for kind, found in ratios.items()
        },
    }


def main() -> None:
    """Time all networks and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--periods", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    networks = {}
    for name, (sizes, batch) in NETWORKS.items():
        networks[name] = measure(sizes, batch, args.periods)
        print(name, json.dumps(networks[name]), flush=True)
    settings = {"period": PERIOD, "density": DENSITY, "periods": args.periods}
    result = {"meta": environment("python benchmarks/sparsifier_step.py"), **settings, "networks": networks}
    write_text(Path(__file__).parent / "results" / "sparsifier_step.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
