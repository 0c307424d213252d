"""What a gate costs in training: the step time of a block-gated network relative to the dense one.

Both networks take turns step by step in one process, on the same batches with the same optimizer; the result is the
median ratio. The time includes forward and backward pass, penalty, controller and optimizer.

    python benchmarks/training_step.py            # writes benchmarks/results/training_step.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.files import environment, write_text

NETWORKS = {"784-256-10": (784, 256, 10), "2000-1000-500-10": (2000, 1000, 500, 10)}


def make_step(
    sizes: tuple[int, ...], gate: dg.GateConfig | None
) -> Callable[[torch.Tensor, torch.Tensor, float], None]:
    """One training step of one network, as `fit` does it."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(sizes, gate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    budget = dg.Budget(target=0.4) if gate else None

    def step(x: torch.Tensor, y: torch.Tensor, progress: float) -> None:
        if budget is None:
            loss = F.cross_entropy(model(x), y)
        else:
            budget.apply_(model, progress)
            with dg.usage(model) as used:
                loss = F.cross_entropy(model(x), y)
            loss = loss + budget.step(used, progress)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def time_ratio(sizes: tuple[int, ...], batch: int, gate: dg.GateConfig, rounds: int) -> dict[str, float]:
    """Median ratio of the gated to the dense step, and its spread."""
    dense, gated = make_step(sizes, None), make_step(sizes, gate)
    generator = torch.Generator().manual_seed(0)
    ratios, dense_ms = [], []
    for index in range(-10, rounds):
        x = torch.randn(batch, sizes[0], generator=generator)
        y = torch.randint(0, sizes[-1], (batch,), generator=generator)
        progress = max(0, index) / rounds
        first, second = (dense, gated) if index % 2 else (gated, dense)  # so that neither always finds the caches warm
        times = {}
        for step in (first, second):
            start = time.perf_counter()
            step(x, y, progress)
            times[step] = time.perf_counter() - start
        if index >= 0:
            ratios.append(times[gated] / times[dense])
            dense_ms.append(times[dense] * 1e3)
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "dense_ms": statistics.median(dense_ms),
    }


def main() -> None:
    """Time both networks and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--block", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training_step.json")
    args = parser.parse_args()
    rows = []
    for name, sizes in NETWORKS.items():
        block = args.block if sizes[1] % args.block == 0 else 16
        found = time_ratio(sizes, args.batch, dg.GateConfig(block=block), args.rounds)
        rows.append({"network": name, "batch": args.batch, "block": block, "rounds": args.rounds, **found})
        print(
            f"{name:>18}  block {block:>3}  {found['ratio']:.3f} of dense  (q1 {found['q1']:.3f}, q3 {found['q3']:.3f})"
        )
    write_text(
        args.out, json.dumps({"meta": environment("python benchmarks/training_step.py"), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
