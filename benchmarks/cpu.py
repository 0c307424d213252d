"""Compiled plans against dense networks on the CPU, with one thread and with all.

For each size, open share or density, and batch size: `dynamicgate.compile` checks the plan against the hard model in
float64 (a wrong plan has no time), then all rivals run in turn in one process and the medians are compared. Gates are
random and independent for every row, the worst case for batches; their cost is in the times.

    python benchmarks/cpu.py                 # half an hour of a quiet machine; results/cpu.json, docs/figures/cpu.svg
    python benchmarks/cpu.py --quick         # minutes, a corner of the grid

Rivals: eager torch, the same under torch.compile with frozen weights, our dense panels, int8 (dynamic, oneDNN); and,
because none of these closes anything, the two dense ways to run the gated network itself: all units in torch or in our
panels, closed ones multiplied by zero. The limit is the larger of two times: to read the touched weights and
activations once, and to do the executed multiply-adds at the rate of torch's best matrix product.
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
from dynamicgate.files import environment, write_text
from dynamicgate.inference.cpu.breakdown import ungated
from dynamicgate.inference.cpu.choose import OWN, TORCH, Forms
from dynamicgate.inference.cpu.find import find_paths, look, trace
from dynamicgate.inference.cpu.lower import lower
from dynamicgate.inference.cpu.timing import batches_of, race
from dynamicgate.ops import backend, chain

HERE = Path(__file__).resolve().parent
SIZES = {"S1": (784, 256, 10), "S2": (2000, 1000, 500, 10), "S3": (1024, 4096, 1024), "S4": (4096, 16384, 4096)}
BLOCK = {"S1": 64, "S2": 64, "S3": 64, "S4": 128}
BATCHES = (1, 4, 16, 64, 256, 1024, 8192)
OPEN = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
DENSITY = (0.05, 0.1, 0.25)
MOST_MACS = 2e10  # of one dense call; time is linear in the batch size beyond 256
SPEEDUPS = ("frozen", "own", "int8", "ours")
Calls = dict[str, Callable[[Tensor], Tensor]]


def gated_model(size: str, share: float) -> tuple[nn.Module, Tensor]:
    """Random weights, a linear gate on every hidden vector whose blocks are open for `share` of the inputs."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(SIZES[size], dg.GateConfig(block=BLOCK[size], net="linear")).eval()
    x = torch.randn(1024, SIZES[size][0])
    for name, gate in dg.named_gates(model).items():
        with torch.no_grad(), dg.usage(model) as used:
            gate.bias.zero_()
            model(x)
            gate.bias.copy_(
                torch.full_like(gate.bias, 1e3) if share >= 1 else -used[name].logits.quantile(1 - share, dim=0)
            )
    return model, x


def sparse_model(size: str, density: float, pattern: str) -> tuple[nn.Module, Tensor]:
    """Random weights of which `density` exist, except in the output layer."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(SIZES[size]).eval()
    dg.sparsity.Static(model, density, pattern=pattern)
    return model, torch.randn(1024, SIZES[size][0])


def rivals(model: nn.Module, fast: dg.inference.CompiledModel, x: Tensor, frozen: bool) -> Calls:
    """Everything that is timed."""
    gates = dg.named_gates(model)
    graph = trace(model)
    look(model, graph, x[:8])
    (path,), _ = find_paths(model, graph, gates)
    forms = Forms(lower(path, gates))
    dense = [chain.Layer(s.module.weight.detach(), s.module.bias.detach(), "relu") for s in path.linears]  # type: ignore[union-attr,operator]
    dense[-1] = chain.Layer(dense[-1].weight, dense[-1].bias)
    packed = chain.pack(dense)
    plain = as_modules(dense)
    calls: Calls = {"eager": ungated(path), "own": lambda x: chain.run(x, packed), "int8": int8(plain)}
    if frozen:
        torch.compiler.reset()  # or the limit on recompilations would count those of earlier cases
        calls["frozen"] = torch.compile(plain, dynamic=False)
    calls |= {name: forms.call(forms.get(name)) for name in (TORCH, *([OWN] if gates else []))}
    return calls | {"ours": fast}


def as_modules(layers: list[chain.Layer]) -> nn.Sequential:
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
        warnings.simplefilter("ignore")  # it is deprecated, and it is there
        return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)


class Machine:
    """What this machine can do: reading by working set, and multiply-adds."""

    def __init__(self) -> None:
        """Measure it."""
        self.read = {mb: self._read(mb) for mb in (1, 10, 32, 512)}
        a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
        self.macs = 1024**3 / min(_seconds(lambda: a @ b) for _ in range(5))

    def _read(self, mb: int) -> float:
        numbers = torch.ones(mb << 18)
        return (mb << 20) / min(_seconds(numbers.sum) for _ in range(9))

    def limit(self, touched: float, macs: float) -> float:
        """Microseconds below which no kernel can go."""
        speed = next((rate for mb, rate in self.read.items() if touched <= mb << 20), self.read[512])
        return 1e6 * max(touched / speed, macs / self.macs)


def touched_bytes(model: nn.Module, xs: list[Tensor]) -> float:
    """Weights of which any row needs a part, gates and activations: what a call has to read at least."""
    gates = dg.named_gates(model)
    counter = dg.accounting.MacCounter(model)
    total = 0.0
    for x in xs:
        unions: dict[str, Tensor] = {}
        if gates:
            with dg.usage(model) as used:
                model(x)
                unions = {name: used[name].open.amax(0, keepdim=True) for name in used}
        weights = sum(float(layer.executed(unions).mean()) for layer in counter.layers)
        total += 4 * (weights + counter.gate + x.numel() + len(x) * counter.layers[-1].linear.out_features)
    return total / len(xs)


def cases(args: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """Size, kind, and open share or density."""
    for size in args.sizes:
        for share in args.open:
            yield size, "gate", share
        for density in args.density:
            for pattern in ("16x1", "unstructured"):
                if size != "S4":
                    yield size, pattern, density


def measure(args: argparse.Namespace, machine: Machine) -> Iterator[dict[str, Any]]:
    """One row for each case and batch size."""
    for size, kind, share in cases(args):
        model, x = gated_model(size, share) if kind == "gate" else sparse_model(size, share, kind)
        macs = sum(a * b for a, b in pairwise(SIZES[size]))
        batches = [b for b in args.batches if b * macs <= MOST_MACS]
        fast = dg.compile(model, x, batches=batches, seconds=3 * args.seconds * len(batches))
        frozen = args.frozen and (kind, share) == ("gate", args.open[0])  # a dense network is the same at every share
        calls = rivals(model, fast, x, frozen)
        for index, batch in enumerate(batches):
            regime = fast.plan.chains[0][index]
            xs = batches_of(x, batch)
            with torch.inference_mode():  # as in the race: torch.compile compiles here
                for call in calls.values():
                    call(xs[0])
            us = race(calls, xs, args.seconds)
            if best_dense(us) < us["ours"]:  # in doubt: time it again, longer, and believe that
                us = race(calls, xs, 5 * args.seconds)
            executed = batch * sum(layer.macs for layer in regime.layers)
            with torch.inference_mode():
                limit = machine.limit(touched_bytes(model, xs[:4]), executed)
            yield {
                "size": size, "kind": kind, "share": share, "batch": batch, "threads": torch.get_num_threads(),
                "chosen": [layer.choice for layer in regime.layers], "us": us,
                "speedup": {name: us["eager"] / us[name] for name in SPEEDUPS if name in us},
                "over_best_dense": best_dense(us) / us["ours"], "limit_us": limit, "reached": limit / us["ours"],
                "error": fast.plan.checked["error"],
            }  # fmt: skip


def best_dense(us: dict[str, float]) -> float:
    """The faster of the two dense ways to run the gated network."""
    return min(us[name] for name in (TORCH, OWN) if name in us)


def show(row: dict[str, Any]) -> str:
    """A row of the table."""
    speeds = "".join(f"{row['speedup'].get(name, float('nan')):>8.2f}" for name in SPEEDUPS)
    return (
        f"{row['size']:<4}{row['kind']:<13}{row['share']:>5}{row['batch']:>6}{row['us']['eager']:>12,.0f}{speeds}"
        f"{row['us']['eager'] / row['limit_us']:>8.1f}{100 * row['reached']:>7.0f} %{row['over_best_dense']:>8.2f}"
    )


def plot(rows: list[dict[str, Any]]) -> str:
    """Speed-up over eager dense against the open share: one panel for each size and number of threads, log scales."""
    rows = [row for row in rows if row["kind"] == "gate"]
    panels = sorted({(row["threads"], row["size"]) for row in rows})
    batches = sorted({row["batch"] for row in rows})
    width, height = 300, 230
    colours = ["#0b7285", "#c2255c", "#5f3dc4", "#e67700", "#2b8a3e", "#495057", "#1864ab"]
    low, high = 0.04, 1.1

    def at(panel: int, share: float, speed: float) -> tuple[float, float]:
        x = torch.tensor([share, low, high]).log()
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
        for share in (0.05, 0.1, 0.2, 0.4, 0.8):
            x, y = at(panel, share, 0.5)
            drawn.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{share}</text>')
        for batch, colour in zip(batches, colours, strict=False):
            mine = [r for r in rows if (r["threads"], r["size"], r["batch"]) == (threads, size, batch)]
            points = [at(panel, r["share"], r["speedup"]["ours"]) for r in sorted(mine, key=lambda r: r["share"])]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for index, (batch, colour) in enumerate(zip(batches, colours, strict=False)):
        drawn.append(f'<text x="{45 + 90 * index}" y="{height}" fill="{colour}">batch {batch}</text>')
    size = f'viewBox="0 0 {max(700, width * len(panels) + 20)} {height + 12}"'
    style = 'font-family="sans-serif" font-size="11" fill="#212529" role="img"'
    label = 'aria-label="Speed-up over eager dense torch against the share of open blocks"'
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style} {label}>{white}{"".join(drawn)}</svg>\n'


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def child(args: argparse.Namespace) -> None:
    """Measure with the threads of this process."""
    if args.frozen:
        import torch._inductor.config as inductor

        inductor.freezing = True
    torch.set_grad_enabled(False)
    machine = Machine()
    head = "".join(f"{name:>8}" for name in SPEEDUPS)
    print(f"{backend()}, threads: {torch.get_num_threads()}; speed-up over eager, limit, reached, over best dense")
    print(
        f"{'size':<4}{'kind':<13}{'share':>5}{'batch':>6}{'eager us':>12}{head}{'limit':>8}{'reached':>9}{'dense':>8}"
    )
    rows = []
    for row in measure(args, machine):
        rows.append(row)
        print(show(row), flush=True)
    limits = {"read_bytes_per_s": machine.read, "macs_per_s": machine.macs}
    write_text(Path(args.child), json.dumps({"limits": limits, "rows": rows}))


def main() -> None:
    """Measure with each number of threads in a process of its own: torch.set_num_threads does not restrain oneDNN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="S1 and S3, few shares and batches, half a second each")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES))
    parser.add_argument("--open", nargs="+", type=float)
    parser.add_argument("--density", nargs="*", type=float)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--threads", nargs="+", type=int, default=[], help="only these; others stay as they were")
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
    found: dict[str, Any] = {"meta": environment("python benchmarks/cpu.py") | {"backend": backend()}}
    found |= {"limits": {}, "rows": []}
    if args.threads and (folder / "cpu.json").exists():  # only these anew, beside what is there
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
