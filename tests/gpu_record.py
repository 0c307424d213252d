"""When, where and at which commit the GPU tests last passed: tests/gpu_last_run.json.

    python -m tests.gpu_record             # run the GPU tests; if all pass, write the record (also: make test-gpu)
    python -m tests.gpu_record --jobs 4    # in four processes on the one GPU: most of the time is compiling

Machines without a GPU skip these tests. `make test` says there which kernels have changed since the record was written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "gpu_last_run.json"
KERNELS = ("src/dynamicgate/ops/ffn", "src/dynamicgate/inference/gpu", "src/dynamicgate/nn/ffn.py")


def kernel_digests() -> dict[str, str]:
    """A short digest of every source file that runs on a GPU only."""
    found: dict[str, str] = {}
    for place in KERNELS:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found[file.relative_to(ROOT).as_posix()] = hashlib.blake2b(file.read_bytes(), digest_size=6).hexdigest()
    return found


def changed_kernels(record: Mapping[str, Any]) -> list[str]:
    """The files that are not as they were when the tests last passed."""
    then, now = record["kernels"], kernel_digests()
    return sorted(name for name in {*then, *now} if then.get(name) != now.get(name))


def summary() -> str:
    """One line for the end of a test run."""
    if not RECORD.exists():
        return "GPU tests: no record of a run; run `make test-gpu` on a machine with a CUDA GPU"
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    line = f"GPU tests: {record['passed']} passed on {record['device']} at {record['commit']}, {record['date']}"
    changed = changed_kernels(record)
    if not changed:
        return f"{line}; no kernel has changed since"
    return f"{line}. WARNING: changed since: {', '.join(changed)}; run `make test-gpu` on a machine with a CUDA GPU"


class _Count:
    """Counts tests that passed."""

    def __init__(self) -> None:
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed


def main() -> int:
    """Run the GPU tests, and write the record if all pass."""
    import torch

    from dynamicgate.files import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="commit of this source tree, where it has no history of its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes; several need pytest-xdist")
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this machine has no CUDA GPU", file=sys.stderr)
        return 2
    count = _Count()
    # only the files with such tests: others import packages that a GPU machine may lack
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    several = ["-n", str(args.jobs), "--dist", "worksteal"] if args.jobs > 1 else []
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", *several]
    code = pytest.main([*options, *files], plugins=[count])
    if code or not count.passed:
        return int(code) or 1
    meta = environment("python -m tests.gpu_record")
    record = {
        "commit": args.commit or meta["commit"],
        "date": meta["created"][:10],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "passed": count.passed,
        "kernels": kernel_digests(),
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
