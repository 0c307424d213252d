"""Compiled models against dense networks on the CPU, with one thread and with all.

For each network, open fraction or density, and batch size: `dynamicgate.compile` verifies the plan against the model in
float64 (a wrong plan gets no time), then all candidates take turns in one process and their medians are compared. Gates
are random and independent for every row, the worst case for batches; the times include them.

    python benchmarks/cpu.py                 # half an hour on a quiet machine; results/cpu.json, docs/figures/cpu.svg
    python benchmarks/cpu.py --quick         # minutes, a corner of the grid

Baselines: eager torch, the same under torch.compile with frozen weights, our dense panels, int8 (dynamic, oneDNN). None
of these has a gate, so there are also the two dense ways to run the gated network itself: all units in torch or in our
panels, closed ones multiplied by zero. The limit is the larger of two times: to read the weights and activations that
are needed once, and to do the executed multiply-adds at the rate of torch's best matrix product.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.cpu.breakdown import ungated
from dynamicgate.inference.cpu.candidates import DENSE, OWN_DENSE, Candidates
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import lower_chain
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.graph import trace
from dynamicgate.inference.timing import batches_of

HERE = Path(__file__).resolve().parent
SIZES = {"S1": (784, 256, 10), "S2": (2000, 1000, 500, 10), "S3": (1024, 4096, 1024), "S4": (4096, 16384, 4096)}
BLOCK = {"S1": 64, "S2": 64, "S3": 64, "S4": 128}
BATCHES = (1, 4, 16, 64, 256, 1024, 8192)
OPEN = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
DENSITY = (0.05, 0.1, 0.25)
MAX_MACS = 2e10  # of one dense call; time is linear in the batch size beyond 256
SPEEDUPS = ("frozen", "own", "int8", "ours")
Calls = dict[str, Callable[[Tensor], Tensor]]


def gated_model(size: str, fraction: float) -> tuple[nn.Module, Tensor]:
    """Random weights, and on every hidden vector a linear gate that opens each block for `fraction` of the inputs."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(SIZES[size], dg.GateConfig(block=BLOCK[size], net="linear")).eval()
    x = torch.randn(1024, SIZES[size][0])
    for name, gate in dg.named_gates(model).items():
        with torch.no_grad(), dg.usage(model) as used:
            gate.bias.zero_()
            model(x)
            always = torch.full_like(gate.bias, 1e3)
            gate.bias.copy_(always if fraction >= 1 else -used[name].logits.quantile(1 - fraction, dim=0))
    return model, x


def sparse_model(size: str, density: float, pattern: str) -> tuple[nn.Module, Tensor]:
    """Random weights of which a fraction `density` exists; the output layer is dense."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(SIZES[size]).eval()
    dg.sparsity.Static(model, density, pattern=pattern)
    return model, torch.randn(1024, SIZES[size][0])


def calls_to_time(model: nn.Module, compiled: dg.inference.CompiledModel, x: Tensor, frozen: bool) -> Calls:
    """Baselines, dense candidates, and the compiled model, by name."""
    gates = dg.named_gates(model)
    (chain,), _ = find_chains(model, trace(model), gates, x[:8])
    candidates = Candidates(lower_chain(chain, gates))
    dense = [ops.chain.Layer(s.module.weight.detach(), s.module.bias.detach(), "relu") for s in chain.linears]  # type: ignore[union-attr,operator]
    dense[-1] = ops.chain.Layer(dense[-1].weight, dense[-1].bias)
    packed = ops.chain.pack(dense)
    plain = as_modules(dense)
    calls: Calls = {"eager": ungated(chain), "own": lambda x: ops.chain.run(x, packed), "int8": int8(plain)}
    if frozen:
        torch.compiler.reset()  # or the limit on recompilations would count those of earlier cases
        calls["frozen"] = torch.compile(plain, dynamic=False)
    for candidate in (DENSE, *([OWN_DENSE] if gates else [])):
        calls[candidate.name] = candidates.call(candidates.build(candidate))
    return calls | {"ours": compiled}


def as_modules(layers: list[ops.chain.Layer]) -> nn.Sequential:
    """The dense network as modules on the same weights."""
    parts: list[nn.Module] = []
    for layer in layers:
        outputs, inputs = layer.weight.shape
        linear = nn.Linear(inputs, outputs, device="meta")
        assert layer.bias is not None
        linear.weight = nn.Parameter(layer.weight, requires_grad=False)
        linear.bias = nn.Parameter(layer.bias, requires_grad=False)
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1]).eval()


def int8(plain: nn.Module) -> Callable[[Tensor], Tensor]:
    """Dynamic quantization, the best that this torch has for a CPU without bf16."""
    torch.backends.quantized.engine = "onednn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and there is no replacement in torch
        return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)


class Machine:
    """How fast this machine reads memory, by working set, and multiplies and adds."""

    def __init__(self) -> None:
        """Measures it."""
        self.read = {mb: self._read(mb) for mb in (1, 10, 32, 512)}
        a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
        self.macs = 1024**3 / min(_seconds(lambda: a @ b) for _ in range(5))

    def _read(self, mb: int) -> float:
        numbers = torch.ones(mb << 18)
        return (mb << 20) / min(_seconds(numbers.sum) for _ in range(9))

    def limit(self, needed: float, macs: float) -> float:
        """Microseconds below which no kernel can go that reads `needed` bytes."""
        speed = next((rate for mb, rate in self.read.items() if needed <= mb << 20), self.read[512])
        return 1e6 * max(needed / speed, macs / self.macs)


def needed_bytes(model: nn.Module, xs: list[Tensor]) -> float:
    """What a call has to read at least: the weights that any of its rows needs, gates and activations."""
    gates = dg.named_gates(model)
    counter = dg.accounting.MacCounter.for_mlp(model)
    total = 0.0
    for x in xs:
        unions: dict[str, Tensor] = {}
        if gates:
            with dg.usage(model) as used:
                model(x)
                unions = {name: used[name].open.amax(0, keepdim=True) for name in used}
        weights = sum(float(layer.executed(unions).mean()) for layer in counter.layers)
        total += 4 * (weights + counter.gate + x.numel() + len(x) * counter.layers[-1].written.units)
    return total / len(xs)


def cases(args: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """Size, kind, and open fraction or density."""
    for size in args.sizes:
        for fraction in args.open:
            yield size, "gate", fraction
        for density in args.density:
            for pattern in ("16x1", "unstructured"):
                if size != "S4":
                    yield size, pattern, density


def measure(args: argparse.Namespace, machine: Machine) -> Iterator[dict[str, Any]]:
    """One row for each case and batch size."""
    for size, kind, fraction in cases(args):
        model, x = gated_model(size, fraction) if kind == "gate" else sparse_model(size, fraction, kind)
        macs = sum(a * b for a, b in pairwise(SIZES[size]))
        batches = [b for b in args.batches if b * macs <= MAX_MACS]
        compiled = dg.compile(model, x, batches=batches, seconds=3 * args.seconds * len(batches))
        verified = compiled.plan.verification
        assert verified is not None
        frozen = args.frozen and (kind, fraction) == ("gate", args.open[0])  # the dense network is the same for all
        calls = calls_to_time(model, compiled, x, frozen)
        for index, batch in enumerate(batches):
            regime = compiled.plan.chains[0][index]
            xs = batches_of(x, batch)
            with torch.inference_mode():  # as when it is timed: torch.compile compiles here
                for call in calls.values():
                    call(xs[0])
            us = time_calls(calls, xs, args.seconds)
            if best_dense(us) < us["ours"]:  # in doubt: time it again for longer, and use that
                us = time_calls(calls, xs, 5 * args.seconds)
            executed = batch * sum(layer.macs for layer in regime.layers)
            with torch.inference_mode():
                limit = machine.limit(needed_bytes(model, xs[:4]), executed)
            yield {
                "size": size, "kind": kind, "share": fraction, "batch": batch, "threads": torch.get_num_threads(),
                "chosen": [layer.choice for layer in regime.layers], "us": us,
                "speedup": {name: us["eager"] / us[name] for name in SPEEDUPS if name in us},
                "over_best_dense": best_dense(us) / us["ours"], "limit_us": limit, "reached": limit / us["ours"],
                "error": verified.error,
            }  # fmt: skip


def best_dense(us: dict[str, float]) -> float:
    """The faster of the two dense ways to run the gated network."""
    return min(us[name] for name in (DENSE.name, OWN_DENSE.name) if name in us)


def show(row: dict[str, Any]) -> str:
    """A row of the table."""
    speeds = "".join(f"{row['speedup'].get(name, float('nan')):>8.2f}" for name in SPEEDUPS)
    return (
        f"{row['size']:<4}{row['kind']:<13}{row['share']:>5}{row['batch']:>6}{row['us']['eager']:>12,.0f}{speeds}"
        f"{row['us']['eager'] / row['limit_us']:>8.1f}{100 * row['reached']:>7.0f} %{row['over_best_dense']:>8.2f}"
    )


def plot(rows: list[dict[str, Any]]) -> str:
    """Speed-up over eager dense against the open fraction: a panel for each size and number of threads, log scales."""
    rows = [row for row in rows if row["kind"] == "gate"]
    panels = sorted({(row["threads"], row["size"]) for row in rows})
    batches = sorted({row["batch"] for row in rows})
    width, height = 300, 230
    colours = ["#0b7285", "#c2255c", "#5f3dc4", "#e67700", "#2b8a3e", "#495057", "#1864ab"]
    low, high = 0.04, 1.1

    def at(panel: int, fraction: float, speed: float) -> tuple[float, float]:
        x = torch.tensor([fraction, low, high]).log()
        y = torch.tensor([min(max(speed, 0.5), 64.0), 0.5, 64.0]).log()
        left = 45 + panel * width
        return left + 230 * float((x[0] - x[1]) / (x[2] - x[1])), 190 - 160 * float((y[0] - y[1]) / (y[2] - y[1]))

    drawn = []
    for panel, (threads, size) in enumerate(panels):
        title = f"{size} {'-'.join(map(str, SIZES[size]))}, threads: {threads}"
        drawn.append(f'<text x="{45 + panel * width}" y="18" font-weight="bold">{title}</text>')
        for speed in (1, 2, 4, 8, 16, 32):
            (x1, y), (x2, _) = at(panel, low, speed), at(panel, high, speed)
            drawn.append(f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" stroke="#ced4da"/>')
            drawn.append(f'<text x="{x1 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{speed}x</text>')
        for fraction in (0.05, 0.1, 0.2, 0.4, 0.8):
            x, y = at(panel, fraction, 0.5)
            drawn.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{fraction}</text>')
        for batch, colour in zip(batches, colours, strict=False):
            mine = [r for r in rows if (r["threads"], r["size"], r["batch"]) == (threads, size, batch)]
            points = [at(panel, r["share"], r["speedup"]["ours"]) for r in sorted(mine, key=lambda r: r["share"])]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for index, (batch, colour) in enumerate(zip(batches, colours, strict=False)):
        drawn.append(f'<text x="{45 + 90 * index}" y="{height}" fill="{colour}">batch {batch}</text>')
    size = f'viewBox="0 0 {max(700, width * len(panels) + 20)} {height + 12}"'
    style = 'font-family="sans-serif" font-size="11" fill="#212529" role="img"'
    label = 'aria-label="Speed-up over eager dense torch against the fraction of open blocks"'
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style} {label}>{white}{"".join(drawn)}</svg>\n'


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def child(args: argparse.Namespace) -> None:
    """Measure with the number of threads of this process."""
    if args.frozen:
        import torch._inductor.config as inductor

        inductor.freezing = True
    torch.set_grad_enabled(False)
    machine = Machine()
    head = "".join(f"{name:>8}" for name in SPEEDUPS)
    print(f"{ops.backend()}, threads: {torch.get_num_threads()}; speed-up over eager, limit, reached, over best dense")
    print(f"{'size':<4}{'kind':<13}{'open':>5}{'batch':>6}{'eager us':>12}{head}{'limit':>8}{'reached':>9}{'dense':>8}")
    rows = []
    for row in measure(args, machine):
        rows.append(row)
        print(show(row), flush=True)
    limits = {"read_bytes_per_s": machine.read, "macs_per_s": machine.macs}
    write_text(Path(args.child), json.dumps({"limits": limits, "rows": rows}))


def main() -> None:
    """Measure with each number of threads in its own process: torch.set_num_threads does not limit oneDNN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="S1 and S3, few fractions and batches, half a second each")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES))
    parser.add_argument("--open", nargs="+", type=float)
    parser.add_argument("--density", nargs="*", type=float)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--threads", nargs="+", type=int, default=[], help="measure only these; keep other results")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--no-frozen", dest="frozen", action="store_false", help="leave torch.compile out")
    parser.add_argument("--out", type=Path, help="a folder; benchmarks/results by default, a temporary one if --quick")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    quick = {"sizes": ["S1", "S3"], "open": [0.1, 0.8, 1.0], "density": [0.1], "batches": [1, 16, 256], "seconds": 0.3}
    full = {
        "sizes": list(SIZES),
        "open": list(OPEN),
        "density": list(DENSITY),
        "batches": list(BATCHES),
        "seconds": 0.6,
    }
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.child:
        return child(args)
    folder = args.out or (Path(tempfile.mkdtemp(prefix="cpu-")) if args.quick else HERE / "results")
    found: dict[str, Any] = {"meta": environment("python benchmarks/cpu.py") | {"backend": ops.backend()}}
    found |= {"limits": {}, "rows": []}
    if args.threads and (folder / "cpu.json").exists():  # keep what was measured with other numbers of threads
        earlier = json.loads((folder / "cpu.json").read_text(encoding="utf-8"))
        found["rows"] = [row for row in earlier["rows"] if row["threads"] not in args.threads]
        found["limits"] = earlier["limits"]
    for threads in args.threads or ([1] if args.quick else sorted({1, os.cpu_count() or 1})):
        with tempfile.TemporaryDirectory() as part:
            path = Path(part) / "rows.json"
            env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", str(path)], env=env, check=True)
            measured = json.loads(path.read_text(encoding="utf-8"))
        found["limits"][str(threads)] = measured["limits"] | {"commit": found["meta"]["commit"]}
        found["rows"] += measured["rows"]
    found["least_over_best_dense"] = min(row["over_best_dense"] for row in found["rows"])
    write_text(folder / "cpu.json", json.dumps(found, indent=1))
    figures = folder if args.out or args.quick else HERE.parent / "docs" / "figures"
    figures.mkdir(exist_ok=True)
    write_text(figures / "cpu.svg", plot(found["rows"]))
    print(f"never slower: least ratio to the best dense candidate {found['least_over_best_dense']:.3f}")
    print(f"wrote {folder / 'cpu.json'} and {figures / 'cpu.svg'}")
    return None


if __name__ == "__main__":
    main()
