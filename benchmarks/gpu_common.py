"""Shared by the GPU benchmarks: gated layers to run, timing in alternating turns, and a description of the GPU.

Calls run from CUDA graphs where they can, dense torch included: this times the GPU, not how fast Python launches work.
"""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.ops.ffn import FFNWeights

Call = Callable[[], Any]


class Shape(NamedTuple):
    """A feed-forward layer: D inputs and outputs, N hidden units."""

    D: int
    N: int
    activation: str = "relu"
    value: bool = False
    """A second up projection multiplies the hidden units: SwiGLU."""

    @property
    def name(self) -> str:
        """As it is written in the tables."""
        return f"{self.D}/{self.N}" + (" SwiGLU" if self.value else "")


SHAPES = (Shape(4096, 16384), Shape(1024, 4096), Shape(4096, 14336, "silu", True))


class Layer(NamedTuple):
    """Tokens, weights as in nn.Linear, and a linear gate that opens the blocks whose logits are above their cuts."""

    x_TD: Tensor
    up_ND: Tensor
    down_DN: Tensor
    value_ND: Tensor | None
    gate_GD: Tensor
    cut_G: Tensor
    block: int
    activation: str

    @property
    def weights(self) -> FFNWeights:
        """The weights as the ops take them."""
        return FFNWeights(self.up_ND, self.down_DN, self.value_ND)

    def logits(self) -> Tensor:
        """The logits of the gate."""
        return F.linear(self.x_TD, self.gate_GD)

    def opened(self) -> Tensor:
        """Which blocks are open for which tokens: the gate network and its threshold."""
        return self.logits() > self.cut_G


def dense(x_TD: Tensor, up_ND: Tensor, down_DN: Tensor, value_ND: Tensor | None) -> Tensor:
    """The same layer without a gate: ReLU, or SwiGLU where there is a value."""
    if value_ND is None:
        return F.linear(torch.relu(F.linear(x_TD, up_ND)), down_DN)
    return F.linear(F.silu(F.linear(x_TD, up_ND)) * F.linear(x_TD, value_ND), down_DN)


torch._dynamo.config.recompile_limit = 1000  # one for each shape, so that none falls back to eager
dense_compiled = torch.compile(dense, dynamic=False)


def layer(shape: Shape, tokens: int, block: int, fraction: float, patterns: int = 0, seed: int = 0) -> Layer:
    """Random bfloat16 weights and tokens. A `fraction` of the blocks is open, for each token independently, or in
    one of `patterns` gate patterns, which tokens have in random order."""
    torch.manual_seed(seed)
    blocks = shape.N // block
    x_TD = torch.randn(tokens, shape.D, device="cuda")
    gate_GD = torch.randn(blocks, shape.D, device="cuda") / shape.D**0.5
    if patterns:
        open_PG = torch.zeros(patterns, blocks, device="cuda")
        for row in open_PG:
            row[torch.randperm(blocks)[: max(1, round(fraction * blocks))]] = 1
        which_T = torch.randint(patterns, (tokens,), device="cuda")
        x_TD[:, :patterns] = 16 * F.one_hot(which_T, patterns)  # they say which pattern, the other inputs are noise
        gate_GD[:, :patterns] = open_PG.T - 0.5
        cut_G = torch.zeros(blocks, device="cuda")
    else:
        cut_G = F.linear(x_TD[:4096].bfloat16(), gate_GD.bfloat16()).float().quantile(1 - fraction, dim=0)
    weights = [torch.randn(shape.N, shape.D, device="cuda") / shape.D**0.5 for _ in range(3 if shape.value else 2)]
    return Layer(
        x_TD.bfloat16(),
        weights[0].bfloat16(),
        (weights[1] * (shape.D / shape.N) ** 0.5).T.contiguous().bfloat16(),
        weights[2].bfloat16() if shape.value else None,
        gate_GD.bfloat16(),
        cut_G.bfloat16(),
        block,
        shape.activation,
    )


def graphed(call: Call, times: int) -> Call:
    """`times` calls as one CUDA graph: between graphs the GPU idles for as long as a small layer takes."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def time_in_turns(calls: dict[str, Call], rounds: int = 7, least_ms: float = 10.0) -> dict[str, list[float]]:
    """Milliseconds of each call in each round. The calls take turns, each for `least_ms` or one call, and their order
    rotates, because the GPU's clock frequency depends on what ran before."""
    repeats = {name: max(1, math.ceil(least_ms / max(_time(call, 2), 1e-3))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            times[name].append(_time(calls[name], repeats[name]))
        order.append(order.pop(0))
    return times


def _time(call: Call, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def kernels_of(call: Call, calls: int = 3, most: int = 24) -> list[list[Any]]:
    """Where the time of a call goes on the GPU: kernels with microseconds and launches of a call, the slowest first.
    The last entry is the sum of all, which is more than the call takes where kernels wait beside others."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    found = [(e.self_device_time_total / calls, e.count / calls, e.key) for e in seen.key_averages()]
    found = sorted(((us, launches, key) for us, launches, key in found if us), reverse=True)
    everything = (sum(us for us, _, _ in found), sum(launches for _, launches, _ in found), "all")
    return [[_ends_of(name), round(us, 1), round(launches, 1)] for us, launches, name in (*found[:most], everything)]


def _ends_of(name: str) -> str:
    """Names of kernels are long, and differ at the end."""
    return name if len(name) <= 120 else f"{name[:60]} ... {name[-60:]}"


def against_dense(times: dict[str, list[float]], name: str) -> dict[str, float]:
    """Of one candidate: milliseconds, and the speed-up over the faster dense one, round by round."""
    dense = min((times[d] for d in times if d.startswith("dense")), key=statistics.median)
    ratios = [d / t for d, t in zip(dense, times[name], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    median = statistics.median
    return {
        "ms": round(median(times[name]), 4),
        "speedup": round(median(ratios), 3),
        "q1": round(low, 3),
        "q3": round(high, 3),
    }


def ceilings() -> dict[str, float]:
    """The limits of this GPU: a large bfloat16 product in TFLOP/s, a large copy in TB/s (read plus written)."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    product, copy = (
        statistics.median(t) for t in time_in_turns({"p": lambda: a @ a, "c": lambda: target.copy_(source)}).values()
    )
    return {"gemm_tflops": round(2 * 8192**3 / product / 1e9, 1), "copy_tbs": round(2 * 2**32 / copy / 1e9, 2)}


def gpu() -> dict[str, Any]:
    """Name, driver and current clock frequencies."""
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(fields.split(","), answer.stdout.splitlines()[0].split(", "), strict=True))
