"""Latency of one to 16 tokens through a gated feed-forward layer and its gate on a CUDA GPU, and through dense layers.

    python benchmarks/gpu_decode.py                       # a minute on an H200; writes results/gpu_decode.json
    python benchmarks/gpu_decode.py --quick               # only the cases with a target

The tokens' gates are independent of each other, which is the worst case: a block is read if any token opens it. Every
call has its own weights, gate and tokens, together far more than the L2 cache holds, and all calls of a case are one
CUDA graph. The same holds for the dense layers, eager and compiled. The gate network is inside the time. Outputs
are first filled with NaN, so that one that is not written shows, and the first call is compared with float64. "union"
is the fraction of blocks that are read; "of_union" is the speed-up times the union, 1 if time falls as the blocks do;
"of_ideal" compares with reading these weights and the gate at the bandwidth of a large kernel that only reads.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gpu_common
import torch
import triton
from gpu_common import SHAPES, Call, Shape, against_dense, dense, dense_compiled, time_in_turns
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.files import environment, write_results
from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import FFNWeights, decode_ffn

RESULT = Path(__file__).parent / "results" / "gpu_decode.json"
TOKENS, BLOCKS, FRACTIONS = (1, 2, 4, 8, 16), (64, 128, 256, 512), (0.05, 0.1, 0.25, 0.5)
TARGETS = {(1, 0.1): 5.5, (1, 0.25): 3.0, (8, 0.1): 1.4}  # speed-ups by (tokens, fraction open), for 4096/16384
BYTES = 2**31  # of weights in all calls of a case
Row = dict[str, Any]


class Weights(NamedTuple):
    """The weights of C calls."""

    up_CND: Tensor
    down_CON: Tensor
    value_CND: Tensor | None

    def of(self, call: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Those of one call."""
        return self.up_CND[call], self.down_CON[call], None if self.value_CND is None else self.value_CND[call]


def weights(shape: Shape, calls: int | None = None) -> Weights:
    """Random weights in bfloat16."""
    C = calls or -(-BYTES // (2 * shape.D * shape.N * (3 if shape.value else 2)))
    random = torch.Generator("cuda").manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        made = torch.empty(C, *sizes, dtype=torch.bfloat16, device="cuda")
        return made.normal_(std=sizes[-1] ** -0.5, generator=random)

    return Weights(
        normal(shape.N, shape.D), normal(shape.D, shape.N), normal(shape.N, shape.D) if shape.value else None
    )


class Case(NamedTuple):
    """Tokens and gates for every call, and which blocks are open."""

    x_CTD: Tensor
    gates: list[GateNet]
    open_CTG: Tensor


def case(shape: Shape, calls: int, tokens: int, block: int, fraction: float) -> Case:
    """Random tokens, and linear gates whose cut, between two logits, leaves a `fraction` of (token, block) open."""
    random = torch.Generator("cuda").manual_seed(tokens)
    x_CTD = torch.randn(calls, tokens, shape.D, generator=random, device="cuda").bfloat16()
    gate_CGD = torch.randn(calls, shape.N // block, shape.D, generator=random, device="cuda") / shape.D**0.5
    gate_CGD = gate_CGD.bfloat16()
    z_CTG = torch.einsum("ctd,cgd->ctg", x_CTD.double(), gate_CGD.double())
    sorted_CZ = z_CTG.flatten(1).sort(dim=1).values
    place = min(round(sorted_CZ.shape[1] * (1 - fraction)), sorted_CZ.shape[1] - 1)
    cut_C = (sorted_CZ[:, place - 1] + sorted_CZ[:, place]) / 2
    gates = [GateNet((w_GD,), (None,), cut=cut) for w_GD, cut in zip(gate_CGD, cut_C.tolist(), strict=True)]
    return Case(x_CTD, gates, z_CTG > cut_C[:, None, None])


def graphed(calls: list[Call]) -> tuple[Call, list[Tensor]]:
    """All calls as one CUDA graph, and the tensors it writes its results to."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    return graph.replay, results


def dense_graphs(made: Weights, x_CTD: Tensor) -> dict[str, Call]:
    """The layer without a gate. The graphs read `x_CTD` in place: it must live as long as they do."""
    return {
        name: graphed([partial(layer, x_TD, *made.of(c)) for c, x_TD in enumerate(x_CTD)])[0]
        for name, layer in (("dense", dense), ("dense compiled", dense_compiled))
    }


def gated(shape: Shape, made: Weights, given: Case, block: int) -> list[Call]:
    """The gated layer with its gate."""
    calls: list[Call] = []
    for c, gate in enumerate(given.gates):
        layer = FFNWeights(*made.of(c))
        calls.append(partial(decode_ffn, given.x_CTD[c], gate, layer, block=block, activation=shape.activation))
    return calls


def check(shape: Shape, made: Weights, given: Case, block: int, replay: Call, results: list[Tensor]) -> float:
    """Relative error of the first call against float64."""
    for y in results:
        y.fill_(torch.nan)
    replay()
    if any(y.isnan().any() for y in results):
        raise SystemExit("some outputs were not written, no number")
    up_ND, down_ON, value_ND = made.of(0)
    x_TD = given.x_CTD[0].double()
    h_TN = ACTIVATIONS[shape.activation].function(x_TD @ up_ND.double().T)
    if value_ND is not None:
        h_TN = h_TN * (x_TD @ value_ND.double().T)
    right = (h_TN * given.open_CTG[0].repeat_interleave(block, dim=1)) @ down_ON.double().T
    error = ((results[0] - right).norm() / right.norm()).item()
    if not error < 1e-2:
        raise SystemExit(f"wrong result, no number: error {error:.3g}")
    return error


def cases(quick: bool) -> Iterator[tuple[Shape, list[tuple[int, int, float]]]]:
    """(tokens, block, fraction open) for every shape; those with the same dense layer are next to each other."""
    if quick:
        yield SHAPES[0], [(t, b, f) for t, f in TARGETS for b in (64, 256)]
        return
    yield SHAPES[0], [*product((1,), (32,), FRACTIONS), *product(TOKENS, BLOCKS, FRACTIONS)]
    for shape in SHAPES[1:]:
        yield shape, list(product((1, 8), (64, 256), (0.1, 0.25)))


def rows(quick: bool = False) -> list[Row]:
    """Check and time all cases."""
    return list(timed(quick, bandwidth()))


@torch.inference_mode()
def timed(quick: bool, read_tbs: float) -> Iterator[Row]:
    """Case by case."""
    torch._dynamo.config.recompile_limit = 64  # the dense layer is compiled once for each size
    for shape, wanted in cases(quick):
        made = weights(shape)
        calls, x_CTD, dense_calls = len(made.up_CND), torch.empty(0, 0, 0), dict[str, Call]()
        for tokens, block, fraction in wanted:
            given = case(shape, calls, tokens, block, fraction)
            if tokens != x_CTD.shape[1]:
                x_CTD = given.x_CTD
                dense_calls = dense_graphs(made, x_CTD)
            replay, results = graphed(gated(shape, made, given, block))
            error = check(shape, made, given, block, replay, results)
            times = time_in_turns({**dense_calls, "ours": replay}, rounds=5, least_ms=1.5)
            us = {f"{name} us": round(statistics.median(t) * 1e3 / calls, 2) for name, t in times.items()}
            union = given.open_CTG.any(1).double().mean().item()
            read = sum(w[0].nbytes for w in made if w is not None) * union + given.gates[0].weights[0].nbytes
            against = against_dense(times, "ours")
            yield {
                "part": "decode",
                "shape": shape.name,
                "tokens": tokens,
                "block": block,
                "share": fraction,
                "union": round(union, 4),
                **us,
                **{name: against[name] for name in ("speedup", "q1", "q3")},
                "of_union": round(against["speedup"] * union, 3),
                "of_ideal": round(read / read_tbs / 1e6 / us["ours us"], 3),
                "error": round(error, 5),
            }


def bandwidth() -> float:
    """Read bandwidth in TB/s, from a maximum over 4 GiB, which writes almost nothing."""
    numbers = torch.zeros(2**30, dtype=torch.int32, device="cuda")
    return numbers.nbytes / statistics.median(time_in_turns({"read": numbers.max})["read"]) / 1e9


def compile_first(shape: Shape, tokens: int) -> None:
    """Fill the caches of Triton and of torch.compile; several processes can do it at once."""
    with torch.inference_mode():
        made = weights(shape, calls=1)
        dense_compiled(torch.zeros(tokens, shape.D, dtype=torch.bfloat16, device="cuda"), *made.of(0))
        for block in (32, *BLOCKS) if tokens == 1 else BLOCKS:
            gated(shape, made, case(shape, 1, tokens, block, 0.1), block)[0]()


def main() -> None:
    """Time all cases and write them to one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases with a target")
    parser.add_argument("--compile-first", type=int, default=0, help="processes that compile all kernels beforehand")
    parser.add_argument("--commit", help="commit of this source tree, where it has no history of its own")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.compile_first:
        with multiprocessing.get_context("spawn").Pool(args.compile_first) as pool:
            sizes = {(shape, tokens): None for shape, wanted in cases(args.quick) for tokens, _, _ in wanted}
            pool.starmap(compile_first, sizes, chunksize=1)
    meta = environment("python benchmarks/gpu_decode.py" + (" --quick" if args.quick else ""))
    meta["commit"] = args.commit or meta["commit"]
    meta["versions"]["triton"] = triton.__version__
    meta |= {"gpu": gpu_common.gpu(), "ceilings": {"read_tbs": round(bandwidth(), 2)}, "dtype": "bfloat16"}
    found: list[Row] = []
    for row in timed(args.quick, meta["ceilings"]["read_tbs"]):
        found.append(row)
        print(*row.values(), flush=True)
        write_results(args.out, meta, found)  # after every case, so that an interruption loses nothing
    write_results(args.out, meta | {"gpu after": gpu_common.gpu()}, found)
    for (tokens, fraction), target in TARGETS.items():
        for row in found:
            if (row["shape"], row["tokens"], row["share"]) == (SHAPES[0].name, tokens, fraction):
                print(f"{tokens} tokens, {fraction} open, block {row['block']}: {row['speedup']} x, target {target} x")


if __name__ == "__main__":
    main()
