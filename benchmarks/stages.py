"""Times a model in stages against a plain model that executes as many MACs, both compiled, in one process.

784-1024-10 with random 16x1 masks; the stages have 0.2 and 0.8 of the units, and 15 % of the rows open the second. The
plain model has the mean MACs of the staged one for every row. Each call gets other rows of a stream of 2,000.

    OMP_NUM_THREADS=1 python benchmarks/stages.py
    OMP_NUM_THREADS=1 python benchmarks/stages.py --out benchmarks/results/stages.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.files import environment, write_text
from dynamicgate.gating.stages import stages_of
from dynamicgate.masks import connections, put_mask_

SIZES = (784, 1024, 10)
OPENED = 0.15
ROWS = 2000


def with_mask(model: dg.nn.GatedMLP, density: float, generator: torch.Generator) -> dg.nn.GatedMLP:
    """`model` with a random 16x1 mask of this density on its first layer."""
    layer = first_layer(model)
    drawn = torch.rand(SIZES[1] // 16, SIZES[0], generator=generator) < density
    put_mask_(layer, drawn.repeat_interleave(16, 0), "16x1")
    with torch.no_grad():
        layer.weight.div_(density**0.5)
    return model.eval()


def first_layer(model: dg.nn.GatedMLP) -> nn.Linear:
    """The layer that reads the input."""
    layer = model.layers[0]
    assert isinstance(layer, nn.Linear)
    return layer


@torch.no_grad()
def staged_model(x: Tensor, density: float, generator: torch.Generator) -> tuple[dg.nn.GatedMLP, float]:
    """The model in stages, and its mean MACs for a row of `x`."""
    model = with_mask(dg.nn.GatedMLP(SIZES, dg.GateConfig(kind="stages", stages=(0.2, 0.8))), density, generator)
    gate = stages_of(model)
    assert gate is not None
    with dg.usage(model) as used:
        model(x)
    assert used.stages is not None
    score_B = used.stages.score[:, 0]
    gate.cut[0] = score_B.sort().values[int((1 - OPENED) * len(x)) - 1]
    opened = float((score_B > gate.cut[0]).double().mean())
    first = first_layer(model)
    mask = connections(first)
    assert mask is not None
    macs = [float(mask[region.rows].sum()) for region in gate.regions(0, first.weight.shape)]
    outputs = [SIZES[2] * (b - a) for a, b in zip(gate.bounds[0], gate.bounds[0][1:], strict=False)]
    return model, macs[0] + outputs[0] + opened * (macs[1] + outputs[1])


def medians(calls: dict[str, Callable[[Tensor], Tensor]], xs: list[Tensor], rounds: int) -> dict[str, float]:
    """Median over the rounds of the mean microseconds of a call, all calls in turn. Processor time: other processes on
    the machine disturb it less."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    with torch.inference_mode():
        for _ in range(rounds):
            for name in order:
                start = time.process_time()
                for x in xs:
                    calls[name](x)
                times[name].append((time.process_time() - start) / len(xs) * 1e6)
            order.append(order.pop(0))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print the times and their ratio at batch 1 and 256."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--zeros", type=float, default=0.8, help="fraction of the inputs that are exactly 0")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each compilation")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, help="a JSON file; without, results are only printed")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.rand(ROWS, SIZES[0], generator=generator)
    x[torch.rand(ROWS, SIZES[0], generator=generator) < chosen.zeros] = 0.0
    staged, macs = staged_model(x, chosen.density, generator)
    same = (macs - SIZES[1] * SIZES[2]) / (SIZES[0] * SIZES[1])
    plain = with_mask(dg.nn.GatedMLP(SIZES), same, generator)
    models: dict[str, nn.Module] = {"staged": staged, "plain": plain}
    compiled = {name: dg.compile(m, x, batches=(1, 256), seconds=chosen.seconds) for name, m in models.items()}
    for name, model in compiled.items():
        print(name, model.plan, sep="\n", end="\n\n")
    rows = []
    for batch in (1, 256):
        xs = [part.contiguous() for part in x.split(batch) if len(part) == batch]
        found = medians({name: model.__call__ for name, model in compiled.items()}, xs, chosen.rounds)
        times = ", ".join(f"{name} {us:.2f} us" for name, us in found.items())
        print(f"batch {batch}: {times}, staged / plain {found['staged'] / found['plain']:.3f} at {macs:,.0f} MACs")
        times_us = {f"{name}_us": round(us, 3) for name, us in found.items()}
        rows.append({"batch": batch, "macs": macs, **times_us, "ratio": round(found["staged"] / found["plain"], 4)})
    if chosen.out:
        meta = environment("python benchmarks/stages.py")
        write_text(chosen.out, json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
