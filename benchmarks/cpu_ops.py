"""Latency of the chain op on the CPU relative to eager dense torch: the speed of the kernels without a plan.

Every row first compares its result with the float64 reference, then times both in one process, in turns, and reports
the median of the ratios. The gate is inside the time. Its cuts are quantiles of its logits, so the fraction of open
blocks is `open` on average; at batch 1 the inputs change from call to call, and with them the open blocks. In its turn
each of the two runs all inputs several times, so that it finds its own data in the cache, not that of the other.

    OMP_NUM_THREADS=1 python benchmarks/cpu_ops.py         # one thread: torch.set_num_threads does not limit oneDNN
    python benchmarks/cpu_ops.py --only S3 --open 0.1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.files import environment, write_text
from dynamicgate.ops import GateNet, backend, chain

NETWORKS = {"S1": (784, 256, 10), "S2": (2000, 1000, 500, 10), "S3": (1024, 4096, 1024)}
BATCHES = {"S1": (1, 16, 256), "S2": (1, 256), "S3": (1, 64, 1024)}
BLOCK = 64


def gated_chain(sizes: tuple[int, ...], fraction: float) -> tuple[list[chain.Layer], list[Tensor]]:
    """A chain with random weights and a linear gate on every hidden vector, and its dense weights."""
    torch.manual_seed(0)
    h = torch.randn(2048, sizes[0])
    layers, dense = [], []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight, bias = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs) * 0.1
        dense.append(weight)
        if index == len(sizes) - 2:
            layers.append(chain.Layer(weight, bias))
            break
        w_GD = torch.randn(-(-outputs // BLOCK), inputs) / inputs**0.5
        cut = F.linear(h, w_GD).quantile(1 - fraction, dim=0) if fraction < 1 else torch.full((len(w_GD),), -torch.inf)
        layers.append(chain.Layer(weight, bias, "relu", BLOCK, GateNet((w_GD,), (None,), cut=cut)))
        h = chain.reference_chain(h, layers[-1:])
    return layers, dense


def vector_layer(outputs: int, inputs: int, density: float, layout: str) -> chain.Layer:
    """One layer with a `density` of its weights left, in vectors of 16 outputs or anywhere."""
    torch.manual_seed(0)
    rows = -(-outputs // 16) if layout == "vectors" else outputs
    mask = (torch.rand(rows, inputs) < density).repeat_interleave(outputs // rows, dim=0)
    return chain.Layer(torch.randn(outputs, inputs) * mask, torch.randn(outputs), layout=layout)


def dense_call(layers: list[chain.Layer]) -> Callable[[Tensor], Tensor]:
    """Eager dense torch with the same weights."""
    weights = [(layer.weight, layer.bias) for layer in layers]

    def call(x: Tensor) -> Tensor:
        for weight, bias in weights[:-1]:
            x = torch.relu(F.linear(x, weight, bias))
        return F.linear(x, *weights[-1])

    return call


def compare(layers: list[chain.Layer], batch: int, seconds: float, zeros: float = 0.0) -> dict[str, float]:
    """Check the result, then return the median ratio of the dense time to that of the chain."""
    inputs = layers[0].weight.shape[1]
    xs = [torch.randn(batch, inputs) * (torch.rand(batch, inputs) >= zeros) for _ in range(64 if batch <= 16 else 4)]
    packed, dense = chain.pack(layers), dense_call(layers)
    for x in xs[:4]:
        error = (chain.run(x, packed) - chain.reference_chain(x.double(), layers)).abs().amax(dim=1)
        # A logit at its cut may fall either way in float32: then a whole row differs.
        if (error > 1e-4).float().mean() > 0.01:
            raise SystemExit(f"wrong result, no number: error {error.max():.3g}")
    once = min(_timed(dense, xs) for _ in range(3))
    xs = xs * (4 if once * len(xs) < 0.25 else 1)
    rounds = max(11, min(400, int(seconds / max(once, 1e-7) / len(xs))))
    ratios, micros = [], []
    for _ in range(rounds):
        slow, fast = _timed(dense, xs), _timed(lambda x: chain.run(x, packed), xs)
        ratios.append(slow / fast)
        micros.append(fast * 1e6)
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"speedup": statistics.median(ratios), "q1": low, "q3": high, "us": statistics.median(micros)}


def _timed(call: Callable[[Tensor], Tensor], xs: list[Tensor]) -> float:
    start = time.perf_counter()
    for x in xs:
        call(x)
    return (time.perf_counter() - start) / len(xs)


def cases(fractions: list[float]) -> Iterator[tuple[str, list[chain.Layer], int, float]]:
    """All cases: name, chain, batch, fraction of zeros in the input."""
    for name, sizes in NETWORKS.items():
        for fraction in fractions:
            layers, _ = gated_chain(sizes, fraction)
            for batch in BATCHES[name]:
                yield f"{name} open {fraction}", layers, batch, 0.0
    for layout in ("vectors", "csr"):
        for batch in (1, 16, 64, 1024):
            yield f"{layout} 1024-4096 density 0.05", [vector_layer(4096, 1024, 0.05, layout)], batch, 0.0
    for skip in (False, True):
        layer = chain.Layer(torch.randn(256, 784), torch.randn(256), skip_zeros=skip)
        for batch in (1, 16):
            yield f"784-256, 0.8 of x zero{', skipped' if skip else ''}", [layer], batch, 0.8


def main() -> None:
    """Time the requested cases, print the results and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=float, nargs="+", default=[0.1, 0.4])
    parser.add_argument("--only", default="", help="time only cases with this in their name")
    parser.add_argument("--seconds", type=float, default=2.0, help="of dense time for each case")
    parser.add_argument("--out", type=Path, help="a JSON file; without, results are only printed")
    args = parser.parse_args()
    print(f"{backend()}, {torch.get_num_threads()} threads")
    rows = []
    with torch.inference_mode():
        for name, layers, batch, zeros in cases(args.open):
            if args.only not in name:
                continue
            found = compare(layers, batch, args.seconds, zeros)
            rows.append({"name": name, "batch": batch, **found})
            print(f"{name:>40}  batch {batch:>5}  {found['speedup']:6.2f} x  ({found['q1']:.2f}..{found['q3']:.2f})  "
                  f"{found['us']:9.1f} us", flush=True)  # fmt: skip
    if args.out:
        meta = environment("python benchmarks/cpu_ops.py") | {
            "backend": backend(),
            "threads": torch.get_num_threads(),
        }
        write_text(args.out, json.dumps({"meta": meta, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
