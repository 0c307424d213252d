"""Compiled plans on a CUDA GPU are never slower than dense: the chosen way against dense torch, over a grid.

    python benchmarks/gpu_plan.py            # minutes on an H200; writes results/gpu_plan.json
    python benchmarks/gpu_plan.py --quick    # a corner of the grid

`dynamicgate.compile` checks and times a feed-forward layer with a linear block gate, random and independent for every
token. Then the chosen way and the same layer without its gate, in eager torch and under torch.compile, are timed once
more in turn, so that no rival keeps the luck it was chosen by. Times are those of the device, caches cold, gate inside;
"ratio" is that of the faster dense one over that of the chosen way.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import dynamicgate as dg
from dynamicgate.files import environment, write_results
from dynamicgate.inference.gpu.candidates import COMPILED, UNGATED, strategy
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.timing import time_calls

HERE = Path(__file__).resolve().parent
SHAPES = ((1024, 4096), (4096, 16384))
BLOCKS = (64, 256, 1024)
SHARES = (0.05, 0.25, 1.0)
TOKENS = (1, 16, 256, 2048, 16384)
TARGET = 0.97


def layer(features: int, width: int, block: int, share: float) -> dg.nn.FFN:
    """Random weights in bfloat16, a gate whose blocks are open for `share` of the tokens."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        made = dg.nn.FFN(features, width)
    dg.gate_(made, dg.GateConfig(block=block, net="linear"), where="down")
    gate = dg.named_gates(made)["down"]
    with torch.no_grad():
        z = gate.net(torch.randn(4096, features, device="cuda"))
        shift = z.quantile(1 - share, dim=0) if share < 1 else z.min(0).values - 10.0
        gate.bias.sub_(shift)
    return made.to(torch.bfloat16).eval()


def cells(features: int, width: int, block: int, share: float, seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each number of tokens."""
    model = layer(features, width, block, share)
    x = torch.randn(4096, features, device="cuda", dtype=torch.bfloat16)
    fast = dg.compile(model, x, batches=TOKENS, seconds=seconds)
    (body,) = (m for m in fast.modules() if isinstance(m, FeedForward))
    for regime in fast.plan.chains[0]:
        tokens = regime.batch
        xs = [torch.randn(tokens, features, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        names = {"plan": body.strategy_for(tokens), "eager": UNGATED, "compiled": f"{UNGATED}{COMPILED}"}
        with torch.no_grad():
            calls = {key: partial(strategy(name), body) for key, name in names.items()}
            times = time_calls(calls, xs, seconds / len(TOKENS))
        ratio = min(times["eager"], times["compiled"]) / times["plan"]
        row = {"features": features, "width": width, "block": block, "share": share, "tokens": tokens}
        found = {"chosen": regime.chosen, "ratio": ratio, "us": times, "timed": regime.times}
        yield {**row, **found, "checked": fast.plan.to_dict()["verification"]}


def main() -> None:
    """Every cell; the slowest one is what counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--most-seconds", type=float, default=600.0, help="stop with the cells that are there then")
    parser.add_argument("--commit", help="of this source, where it cannot be asked")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu_plan.json")
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000  # each shape and block is compiled, or dense would fall back to eager
    rows: list[dict[str, Any]] = []
    grid = [(*shape, b, s) for b in BLOCKS for shape in SHAPES for s in SHARES]
    grid.sort(key=lambda cell: (cell[3] != 1.0, cell[3]))  # the hardest first: everything open
    meta = environment("python benchmarks/gpu_plan.py")
    meta["commit"] = args.commit or meta["commit"]
    started, left = time.perf_counter(), len(grid)
    for shape in [grid[0], grid[-1]] if args.quick else grid:
        if time.perf_counter() - started > args.most_seconds:
            break
        left -= 1
        for row in cells(*shape, seconds=0.6):
            rows.append(row)
            us = "  ".join(f"{name} {t:8.1f}" for name, t in row["us"].items())
            print(*shape, f"T={row['tokens']:<6}", f"{row['ratio']:6.2f}  {row['chosen']:<18}", us, flush=True)
        worst = min(rows, key=lambda row: row["ratio"])
        if not args.quick:  # what is there survives what comes
            found = {"least_ratio": worst["ratio"], "target": TARGET, "left_out": left}
            write_results(args.out, meta | found, rows)
    print(f"{len(rows)} cells, {left} of {len(grid)} layers left out; the least ratio is {worst['ratio']:.3f}: {worst}")


if __name__ == "__main__":
    main()
