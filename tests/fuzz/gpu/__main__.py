"""`python -m tests.fuzz.gpu`: see the text of the package. Exits with 1 after a wrong case, which names its seed."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import record

SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"
FIRST = 20  # wrong cases that are printed


def main() -> int:
    """Run cases, or have them run under the sanitizer."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.gpu", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="cases to run")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case; a wrong case names its own")
    parser.add_argument("--only", type=int, metavar="SEED", help="run this one case again")
    parser.add_argument("--kinds", default="", help="only these kinds of cases, separated by commas")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: in Triton's interpreter")
    parser.add_argument("--jobs", type=int, default=1, help="processes: most of the time goes to compilers")
    parser.add_argument("--record", action="store_true", help="note the result in tests/fuzz/last_run.json")
    parser.add_argument(
        "--out", type=Path, help="note it in this file, for `python -m tests.fuzz.record FILE` elsewhere"
    )
    parser.add_argument("--sanitized", action="store_true", help="the kernels under compute-sanitizer's memcheck")
    options = parser.parse_args()
    if options.only is not None:
        options.seed, options.count = options.only, 1
    return _run_sanitized(options) if options.sanitized else _run(options)


def _run(options: argparse.Namespace) -> int:
    from tests.fuzz.gpu import cases  # here, because it imports torch, which the parent of a sanitized run leaves alone

    cases.prepare(options.device)
    begun, started = _begin("gpu"), time.monotonic()
    seeds, kinds = range(options.seed, options.seed + options.count), tuple(filter(None, options.kinds.split(",")))
    wrong: list[cases.Wrong] = []
    counts: Counter[str] = Counter()
    for name, count, found in cases.run(seeds, options.device, kinds, options.jobs):
        counts[name.split()[0]] += count
        passed = f"{time.monotonic() - started:.0f} s"
        print(f"{passed:>6} {name}: {count} cases, {len(found)} wrong", flush=True)
        for case in found[: max(0, FIRST - len(wrong))]:
            again = f"--only {case.seed}" + (f" --kinds {options.kinds}" if kinds else "")
            print(f"seed {case.seed} (again: {again}): {case.what}", flush=True)
        wrong += found
    each = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    said = f"{options.count} cases from seed {options.seed} ({each}): {len(wrong)} wrong"
    print(f"{said}, {time.monotonic() - started:.0f} s", flush=True)
    _note(options, "gpu", begun, len(wrong), said)
    return 1 if wrong else 0


def _run_sanitized(options: argparse.Namespace) -> int:
    """The same in a child process under memcheck. Plans are left out: every tensor has memory of its own there, so that
    bounds are exact, and no CUDA graph can be captured."""
    tool = shutil.which("compute-sanitizer") or (SANITIZER if Path(SANITIZER).exists() else None)
    if tool is None:
        raise SystemExit("compute-sanitizer is not installed: it is part of the CUDA toolkit; put it on the PATH")
    begun = _begin("gpu, sanitized")
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "memcheck.txt", Path(folder) / "record.json"
        command = [
            tool, "--tool", "memcheck", "--target-processes", "application-only", "--report-api-errors", "no",
            "--log-file", str(log), sys.executable, "-m", "tests.fuzz.gpu", "--count", str(options.count), "--seed",
            str(options.seed), "--out", str(out), "--kinds", options.kinds or "grouped,decode,given,fused,module",
        ]  # fmt: skip
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        code = subprocess.run(command, env=environment, check=False).returncode
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        summary = re.search(r"ERROR SUMMARY: (\d+) error", text)
        if summary is None or not out.exists():
            raise SystemExit(f"compute-sanitizer did not finish (exit status {code}): {text[-2000:]}")
        errors = int(summary.group(1))
        inside = record.read(out)["gpu"]
    if errors:
        print(text[:6000])
    said = f"{inside['said']}; memcheck: {errors} errors"
    print(said, flush=True)
    _note(options, "gpu, sanitized", begun, inside["wrong"] + errors, said)
    return 1 if inside["wrong"] or errors else 0


def _begin(name: str) -> dict[str, object]:
    begun = record.begin(name)
    begun["command"] = re.sub(r" --out \S+", "", begun["command"])  # a place on one machine
    try:
        import triton

        begun["versions"]["triton"] = triton.__version__
    except ImportError as error:
        raise SystemExit(f"the kernels need Triton: pip install 'dynamicgate[triton]' ({error})") from error
    return begun


def _note(options: argparse.Namespace, name: str, begun: dict[str, object], wrong: int, said: str) -> None:
    for path in [record.RECORD] * options.record + [options.out] * (options.out is not None):
        record.write(name, begun, count=options.count, seed=options.seed, wrong=wrong, said=said, path=path)


if __name__ == "__main__":
    sys.exit(main())
