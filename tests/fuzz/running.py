"""What every fuzzer does: run cases by number, print those that fail, and say how many there were."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.fuzz import record


def fuzz(name: str, check: Callable[[int], str | None], *, count: int = 200) -> None:
    """Run `check` for many seeds from the command line. It returns what is wrong, or None. name: in the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=count, help="cases to run")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case; a failing case names its own")
    parser.add_argument("--record", action="store_true", help="note the result in tests/fuzz/last_run.json")
    wanted = parser.parse_args()
    begun, start, wrong = record.begin(name), time.monotonic(), 0
    for seed in range(wanted.seed, wanted.seed + wanted.count):
        problem = check(seed)
        if problem is not None:
            wrong += 1
            print(f"seed {seed}: {problem}", flush=True)
    said = f"{wanted.count} cases from seed {wanted.seed}: {wrong} wrong"
    print(f"{said}, {time.monotonic() - start:.0f} s", flush=True)
    if wanted.record:
        record.write(name, begun, count=wanted.count, seed=wanted.seed, wrong=wrong, said=said)
    sys.exit(1 if wrong else 0)


def failures(check: Callable[[int], str | None], seeds: range) -> list[str]:
    """What is wrong in these cases, for a test that expects nothing."""
    found = ((seed, check(seed)) for seed in seeds)
    return [f"seed {seed}: {problem}" for seed, problem in found if problem is not None]
