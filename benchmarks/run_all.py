"""Runs all benchmarks one after the other, then fills the tables of the pages. Each result names its commit.

    python benchmarks/run_all.py                       # also: make bench-all; without a GPU those for GPUs are left out
    python benchmarks/run_all.py cpu_ops data          # some of them
    python benchmarks/run_all.py --list                # what there is, and what changed since it was measured

A benchmark that fails does not stop the others; the exit code is then 1. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MEASURED = Path(__file__).with_name("measured.json")


class Benchmark(NamedTuple):
    """A command, the file that it writes, and what it needs."""

    words: tuple[str, ...]
    result: str
    gpu: bool = False
    one_thread: bool = False


def _script(name: str, *words: str, gpu: bool = False, one_thread: bool = False) -> Benchmark:
    return Benchmark((f"benchmarks/{name}.py", *words), f"benchmarks/results/{name}.json", gpu, one_thread)


BENCHMARKS = {
    "cpu": _script("cpu"),  # sets the number of threads of its own processes
    "cpu_ops": _script("cpu_ops", "--out", "benchmarks/results/cpu_ops.json", one_thread=True),
    "latency": Benchmark(("-m", "experiments.latency"), "experiments/results/latency.json"),
    "frontier_latency": Benchmark(  # of the models that were trained on this machine
        ("-m", "experiments.frontier", "latency"), "experiments/results/frontier/latency.jsonl"
    ),
    "cpu_language": _script("cpu_language"),  # sets the number of threads of its own processes
    "cpu_language_bfloat16": Benchmark(
        ("benchmarks/cpu_language.py", "--bfloat16"), "benchmarks/results/cpu_language_bfloat16.json"
    ),
    "cpu_encoder": _script("cpu_encoder", one_thread=True),
    "cpu_language_grid": _script("cpu_language_grid", one_thread=True),
    "int8_weights": _script("int8_weights", one_thread=True),  # of SmolLM2, whose folder it says how to name
    "training_step": _script("training_step"),
    "sparsifier_step": _script("sparsifier_step"),
    "compile_cost": _script("compile_cost", one_thread=True),
    "data": _script("data"),
    "stages": _script("stages", "--out", "benchmarks/results/stages.json", one_thread=True),
    "onnx_export": _script("onnx_export", "--out", "benchmarks/results/onnx_export.json", one_thread=True),
    "gpu": _script("gpu", "--part", "forward,backward", gpu=True),
    "gpu_decode": _script("gpu_decode", gpu=True),
    "gpu_plan": _script("gpu_plan", gpu=True),
    "gpu_model": _script("gpu_model", "--size", "2048", "1024", "4096", gpu=True),
}


def has_gpu() -> bool:
    """Whether this machine can run the benchmarks for GPUs."""
    import torch

    return torch.cuda.is_available()


def run_one(name: str) -> bool:
    """Run one benchmark from the root of the checkout, and show what it prints; whether it succeeded."""
    benchmark = BENCHMARKS[name]
    threads = {"OMP_NUM_THREADS": "1"} if benchmark.one_thread else {}
    done = subprocess.run([sys.executable, *benchmark.words], cwd=ROOT, env={**os.environ, **threads})
    return done.returncode == 0


def run_all(names: Sequence[str]) -> list[str]:
    """Run these benchmarks; the names of those that failed."""
    failed = []
    for at, name in enumerate(names, start=1):
        print(f"[{at}/{len(names)}] {name}", flush=True)
        started = time.monotonic()
        ok = run_one(name)
        if not ok:
            failed.append(name)
        minutes = (time.monotonic() - started) / 60
        where = f"wrote {BENCHMARKS[name].result}" if ok else "FAILED"
        print(f"[{at}/{len(names)}] {name}: {where} after {minutes:.1f} min", flush=True)
    return failed


def changed_since(result: Path, places: Sequence[str], root: Path = ROOT) -> list[str] | None:
    """The files below `places` that changed after the commits of a result; None where that cannot be known: without a
    commit, or without a history that has it."""
    changed: list[str] = []
    for commit in commits_of(result):
        if not commit or not all(letter in "0123456789abcdef" for letter in commit):
            return None
        asked = ["git", "-C", str(root), "diff", "--name-only", f"{commit}...HEAD", "--", *places, ":!*.md"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if found.returncode:
            return None
        changed += found.stdout.split()
    return sorted(set(changed))


def commits_of(result: Path) -> list[str]:
    """The commit of a result, and those of its rows where they differ; "" where one is not known."""
    text = result.read_text(encoding="utf-8")
    if result.suffix == ".jsonl":
        metas = json.loads(text.splitlines()[0])["provenance"]
    else:
        found = json.loads(text)
        metas = [found.get("meta"), *(row for row in found.get("runs", ()) if "commit" in row)]
    return sorted({str((meta or {}).get("commit") or "") for meta in metas})


def ages(root: Path = ROOT) -> dict[str, list[str] | None]:
    """For every result in measured.json what changed since it was measured."""
    table = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {name: changed_since(root / name, places, root) for name, places in table.items() if (root / name).exists()}


def summary(root: Path = ROOT) -> str:
    """One line for the end of a test run: which results are older than what they measure."""
    found = ages(root)
    old = {name: files for name, files in found.items() if files}
    unknown = [name for name, files in found.items() if files is None]
    line = f"benchmarks: {len(found) - len(old) - len(unknown)} of {len(found)} results are of the code as it is"
    if unknown:
        line += f"; {len(unknown)} cannot be dated without the git history"
    if old:
        names = ", ".join(f"{Path(name).stem} ({len(files or ())} files changed)" for name, files in old.items())
        line += f". WARNING: measured before changes: {names}; `python benchmarks/run_all.py --list` says which"
    return line


def show_list() -> None:
    """Every benchmark, its result, and what changed since."""
    found = ages()
    for name, benchmark in BENCHMARKS.items():
        files = found.get(benchmark.result, None)
        state = "not dated" if files is None else ", ".join(files) or "nothing"
        print(f"{name}{' (GPU)' * benchmark.gpu}: {benchmark.result}; changed since: {state}")


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="benchmarks; by default all that this machine can run")
    parser.add_argument("--list", action="store_true", help="only list them")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmarks {', '.join(unknown)}: expected some of {', '.join(BENCHMARKS)}")
    if args.list:
        show_list()
        return 0
    gpu = has_gpu()
    names = args.names or [name for name, benchmark in BENCHMARKS.items() if gpu or not benchmark.gpu]
    left_out = [name for name in BENCHMARKS if name not in names]
    if left_out and not args.names:
        print(f"left out, because this machine has no CUDA GPU: {', '.join(left_out)}")
    failed = run_all(names)
    subprocess.run([sys.executable, "benchmarks/pages.py"], cwd=ROOT, check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
