"""What `compile` itself costs: seconds and memory for 4096-16384-4096, a gate on blocks of 128, one thread.

    python benchmarks/compile_cost.py        # writes results/compile_cost.json

Memory is what the process holds beyond an idle interpreter with torch, as a multiple of the weights, sampled every
5 ms. Packing alone needs the model and its packed copy. While dense torch is timed for comparison, its matrix product
makes a further temporary copy of one weight at a time; the peak of the whole compilation includes it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cpu import gated_model

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import lower_chain
from dynamicgate.inference.graph import trace
from dynamicgate.io.model_file import load

SIZE, OPEN, ROWS = "S4", 0.1, 256


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_of(call: Callable[[], object]) -> tuple[Any, int, float]:
    """The result of `call`, the most memory held meanwhile, and the seconds it took."""
    samples, done = [resident()], threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            samples.append(resident())

    sampler = threading.Thread(target=sample)
    sampler.start()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    done.set()
    sampler.join()
    return result, max(samples), seconds


def pack(model: torch.nn.Module, x: torch.Tensor) -> object:
    """Lower and pack the model's one chain, nothing else."""
    gates = dg.named_gates(model)
    (chain,), _ = find_chains(model, trace(model), gates, x[:8])
    return ops.pack(lower_chain(chain, gates).layers)


def measured(path: Path, what: str) -> tuple[object, dict[str, float]]:
    """The packed or compiled model, and what making it took; the original model is freed on return."""
    x = torch.randn(ROWS, 4096, generator=torch.Generator().manual_seed(1))
    before = resident()
    model = load(path).eval()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with torch.no_grad():
        result, peak, seconds = peak_of(lambda: pack(model, x) if what == "pack" else dg.compile(model, x))
    return result, {"seconds": seconds, "peak": (peak - before) / weights, "before": before, "weights": weights}


def child(path: Path, what: str) -> None:
    """Measure one of the two in this process, which has done nothing else before."""
    held, found = measured(path, what)
    gc.collect()
    plan = {"plan": str(held.plan)} if isinstance(held, dg.inference.CompiledModel) else {}
    found["held_after"] = (resident() - found.pop("before")) / found.pop("weights")
    print(json.dumps(found | plan))


def main() -> None:
    """Save the model, measure in fresh processes, write the result."""
    found: dict[str, Any] = {"meta": environment("python benchmarks/compile_cost.py") | {"backend": ops.backend()}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        dg.save(gated_model(SIZE, OPEN)[0], path)
        # Torch's allocator keeps freed memory for a while; without this it would be counted as held.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MIMALLOC_PURGE_DELAY": "0"}
        for what in ("pack", "compile"):
            run = subprocess.run(
                [sys.executable, __file__, str(path), what], env=env, check=True, capture_output=True, text=True
            )
            found[what] = json.loads(run.stdout.splitlines()[-1])
            found |= {"plan": found[what].pop("plan")} if "plan" in found[what] else {}
            print(f"{what}: {found[what]['seconds']:.1f} s, peak {found[what]['peak']:.2f} x the weights, "
                  f"then {found[what]['held_after']:.2f} x", flush=True)  # fmt: skip
    write_text(Path(__file__).parent / "results" / "compile_cost.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main()
