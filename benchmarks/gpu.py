"""Latency of gated feed-forward layers and of dense ones on a CUDA GPU.

    python benchmarks/gpu.py                            # everything, some minutes on an H200
    python benchmarks/gpu.py --part forward --quick     # only the cases with a target

Every case first compares 256 of its tokens with the float64 reference. Then dense torch, eager and compiled, the gated
layer, and gather + `torch._grouped_mm` take turns. The gate network, its threshold and the index are inside the time. A
speed-up is the median, over rounds, of the time of the faster dense layer divided by that of the gated one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gpu_common
import torch
import triton
from gpu_common import SHAPES, Call, Layer, Shape, against_dense, dense, dense_compiled, graphed, layer, time_in_turns
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.files import environment, write_results
from dynamicgate.ops.ffn import FFNWeights, gated_ffn, reference_ffn
from dynamicgate.ops.ffn.weights import map_weights

RESULT = Path(__file__).parent / "results" / "gpu.json"
BIG, SMALL, SWIGLU = SHAPES
GATHERED = "gather + grouped_mm"
DENSE_GATE_GRADIENT = "ours exact"  # the name in the results
Row = dict[str, Any]


class Case(NamedTuple):
    """One layer that is timed. The field names are those of the results."""

    part: str
    shape: Shape
    tokens: int
    block: int
    share: float
    patterns: int = 0


WITH_TARGET = [
    Case("forward", BIG, 16384, 512, 0.25),
    Case("forward", BIG, 16384, 512, 0.1),
    Case("forward", BIG, 16384, 1024, 0.25),
    Case("forward", BIG, 16384, 128, 0.1),
    Case("forward", BIG, 4096, 512, 0.25),
    Case("forward", BIG, 1024, 512, 0.1),
    Case("forward", BIG, 16384, 128, 0.25, patterns=8),
    Case("forward", BIG, 16384, 128, 0.1, patterns=8),
    Case("backward", BIG, 16384, 512, 0.25),
]


def grid() -> Iterator[Case]:
    """All cases."""
    yield from WITH_TARGET
    for shape, tokens, blocks, fractions in (
        (BIG, (16384,), (64, 128, 256, 512, 1024), (0.05, 0.1, 0.25, 0.5, 0.8)),
        (BIG, (4096, 1024), (128, 512), (0.1, 0.25, 0.5)),
        (BIG, (256, 64), (512,), (0.1, 0.25)),
        (SMALL, (16384, 2048), (128, 512), (0.1, 0.25)),
        (SWIGLU, (16384,), (512, 1024), (0.1, 0.25, 0.5)),
        (SWIGLU, (2048,), (512,), (0.1, 0.25)),
    ):
        yield from (Case("forward", shape, t, b, s) for t in tokens for b in blocks for s in fractions)
    yield from (Case("forward", BIG, 16384, b, s, patterns=8) for b in (64, 512) for s in (0.1, 0.25))
    yield from (Case("backward", BIG, 16384, b, s) for b in (128, 512, 1024) for s in (0.1, 0.25, 0.5))
    yield from (Case("backward", shape, 16384, 512, s) for shape in (SMALL, SWIGLU) for s in (0.1, 0.25))


def forward(case: Case) -> tuple[Layer, dict[str, Call]]:
    """Inference, from tokens to outputs."""
    made = layer(case.shape, case.tokens, case.block, case.share, case.patterns)
    x_TD, up_ND, down_DN, value_ND = made[:4]

    def ours() -> Tensor:
        return gated_ffn(x_TD, made.weights, made.opened(), block=case.block, activation=made.activation)

    calls: dict[str, Call] = {
        "dense": lambda: dense(x_TD, up_ND, down_DN, value_ND),
        "dense compiled": lambda: dense_compiled(x_TD, up_ND, down_DN, value_ND),
        "ours": ours,
    }
    if case in WITH_TARGET:
        calls[GATHERED] = _gathered(made)
    return made, calls


def backward(case: Case) -> tuple[Layer, dict[str, Call]]:
    """Forward and backward, with gradients of tokens, all weights and the gate."""
    made = layer(case.shape, case.tokens, case.block, case.share)
    x_TD, up_ND, down_DN, gate_GD = (t.requires_grad_() for t in (made.x_TD, made.up_ND, made.down_DN, made.gate_GD))
    value_ND = None if made.value_ND is None else made.value_ND.requires_grad_()
    dy_TD = torch.randn_like(x_TD)

    def step(forward: Call) -> None:
        for t in (x_TD, up_ND, down_DN, gate_GD, value_ND):
            if t is not None:
                t.grad = None
        forward().backward(dy_TD)

    def ours(gate_gradient: Literal["sparse", "dense"]) -> Tensor:
        z_TG = F.linear(x_TD, gate_GD)
        p_TG, open_TG = torch.sigmoid(z_TG.float()), (z_TG > made.cut_G).float()
        factor_TG = p_TG * open_TG if gate_gradient == "sparse" else open_TG + p_TG - p_TG.detach()  # scaled, or hard
        return gated_ffn(
            x_TD,
            FFNWeights(up_ND, down_DN, value_ND),
            factor_TG,
            block=case.block,
            activation=made.activation,
            gate_gradient=gate_gradient,
        )

    return made, {
        "dense": lambda: step(lambda: dense(x_TD, up_ND, down_DN, value_ND)),
        "dense compiled": lambda: step(lambda: dense_compiled(x_TD, up_ND, down_DN, value_ND)),
        "ours sparse": lambda: step(lambda: ours("sparse")),
        DENSE_GATE_GRADIENT: lambda: step(lambda: ours("dense")),
    }


def rows_of(case: Case) -> Iterator[Row]:
    """Check and time one case."""
    about = {**case._asdict(), "shape": case.shape.name}
    if case.part == "forward":
        with torch.no_grad():
            made, calls = forward(case)
            about["error"] = _error(made, calls["ours"]())
            several = min(16, max(1, 16384 // case.tokens))
            times = time_in_turns(
                {
                    name: partial(_repeated, call, several) if name == GATHERED else graphed(call, several)
                    for name, call in calls.items()
                }
            )
            times = {name: [ms / several for ms in found] for name, found in times.items()}
    else:
        made, calls = backward(case)
        for call in calls.values():
            call()
        times = time_in_turns(calls, rounds=5)
    about["open"] = round(made.opened().float().mean().item(), 4)
    for name in times:
        row = {**about, "as": name, **against_dense(times, name)}
        if name == DENSE_GATE_GRADIENT:  # of all products, the up projections and the gradient of h stay dense
            products, stay_dense = (9, 3) if case.shape.value else (6, 2)
            row["bound"] = round(products / (stay_dense + (products - stay_dense) * about["open"]), 3)
        yield row


def _repeated(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def _error(made: Layer, y_TD: Tensor) -> float:
    """Relative error of some tokens against the float64 reference; without it there is no number."""
    some = torch.randperm(len(y_TD), device=y_TD.device)[:256]
    x_TD, weights = made.x_TD[some].double(), map_weights(made.weights, Tensor.double)
    right = reference_ffn(x_TD, weights, made.opened()[some], block=made.block, activation=made.activation)
    error = ((y_TD[some] - right).norm() / right.norm()).item()
    if not error < 1e-2:
        raise SystemExit(f"wrong result, no number: relative error {error:.3g}")
    return error


def _gathered(made: Layer) -> Callable[[], Tensor]:
    """With torch alone: rows gathered by block, two grouped products, rows added up. The host waits for the counts."""
    G, block = len(made.cut_G), made.block
    up_GDB = made.up_ND.view(G, block, -1).transpose(1, 2)
    down_GBD = made.down_DN.view(-1, G, block).permute(1, 2, 0).contiguous()

    def call() -> Tensor:
        block_P, token_P = made.opened().T.nonzero(as_tuple=True)
        ends_G = torch.bincount(block_P, minlength=G).cumsum(0).int()
        h_PB = torch.relu(torch._grouped_mm(made.x_TD[token_P], up_GDB, ends_G))
        return torch.zeros_like(made.x_TD).index_add_(0, token_P, torch._grouped_mm(h_PB, down_GBD, ends_G))

    return call


def warm(cases: list[Case]) -> None:
    """Compile what the cases need: Triton and torch cache it on disk."""
    for case in cases:
        _, calls = forward(case) if case.part == "forward" else backward(case)
        with torch.set_grad_enabled(case.part == "backward"):
            for call in calls.values():
                call()
        torch.cuda.empty_cache()


def compile_first(cases: list[Case], processes: int) -> None:
    """Compile in several processes, with one case for each kernel and one for each dense layer that will run."""
    kernels = {(c.part, c.block, c.shape.value, c.tokens >= 8192, c.tokens < 2048): c for c in cases}
    layers = {(c.part, c.shape, c.tokens): c for c in cases}
    different = [c._replace(share=0.05) for c in dict.fromkeys((*kernels.values(), *layers.values()))]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(warm, [[case] for case in different], chunksize=1)


def main() -> None:
    """Time the requested cases, print the results and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="forward,backward", help="some of forward, backward, decode, plan")
    parser.add_argument("--quick", action="store_true", help="only the cases with a target")
    parser.add_argument("--compile-first", type=int, default=0, help="processes that compile all kernels beforehand")
    parser.add_argument("--most-seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--commit", help="commit of this source tree, where it has no history of its own")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    parts = args.part.split(",")
    cases = [c for c in dict.fromkeys(WITH_TARGET if args.quick else grid()) if c.part in parts]
    if args.compile_first:
        compile_first(cases, args.compile_first)
    meta = environment("python benchmarks/gpu.py --part " + args.part)
    meta["commit"] = args.commit or meta["commit"]
    meta["versions"]["triton"] = triton.__version__
    meta |= {"gpu": gpu_common.gpu(), "ceilings": gpu_common.ceilings(), "dtype": "bfloat16", "seed": 0}
    print(meta["gpu"], meta["ceilings"], flush=True)
    rows: list[Row] = []
    started = time.perf_counter()
    for case in cases:
        if time.perf_counter() - started > args.most_seconds:
            write_results(args.out, meta | {"left_out": len(cases) - cases.index(case)}, rows)
            break
        found = list(rows_of(case))
        torch.cuda.empty_cache()
        line = " ".join(f"| {row['as']} {row['speedup']:.2f}x" for row in found)
        print(case.part, case.shape.name, *case[2:], line, flush=True)
        rows += found
        # After every case, so that an interruption loses nothing.
        write_results(args.out, meta | {"gpu after": gpu_common.gpu()}, rows)
    for part in parts:
        if part in ("decode", "plan"):  # each writes its own file
            more = ["--quick"] * args.quick + (["--commit", args.commit] if args.commit else [])
            more += [] if args.out == RESULT else ["--out", str(args.out.with_name(f"gpu_{part}.json"))]
            subprocess.run([sys.executable, str(Path(__file__).parent / f"gpu_{part}.py"), *more], check=True)


if __name__ == "__main__":
    main()
