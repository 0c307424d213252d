"""Reads many changed files in child processes, and says what became of them. A child that dies is a finding."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.corpus import KINDS, Kind
from tests.fuzz.mutations import forge, mutate_bytes

AT_ONCE = 500  # files a child
# Megabytes above what the child had at first
MOST_MB = int(os.environ.get("FUZZ_MB", "200"))


def make_case(kind: str, originals: list[Path], folder: Path, seed: int, number: int) -> Path:
    """The changed file of this number: the same for the same seed."""
    pick = random.Random(f"{kind} {seed} {number}")
    original = pick.choice(originals)
    target = folder / original.name
    if KINDS[kind].ours and pick.random() < 0.6:
        forge(original, target, pick)
    else:
        target.write_bytes(mutate_bytes(original.read_bytes(), pick))
    return target


def read_case(how: Kind, path: Path) -> str:
    """What became of it; anything but a sentence is a finding."""
    try:
        how.read(path)
    except (ValueError, OSError) as error:
        text = str(error).strip()
        return "refused" if len(text.split()) > 2 else f"FINDING: no sentence: {error!r}"
    except Exception:
        return f"FINDING: {traceback.format_exc(limit=-4)}"
    return "read"


def fuzz(kind: str, seed: int, count: int) -> Counter[str]:
    """Change and read `count` files of a kind; counts of "read", "refused", and of findings with their numbers."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "original").mkdir()
        originals = KINDS[kind].write(folder / "original")
        for original in originals:  # also loads what a first call loads, so that the children start alike
            KINDS[kind].read(original)
        for first in range(0, count, AT_ONCE):
            found.update(_in_child(kind, originals, folder, seed, range(first, min(count, first + AT_ONCE))))
    return found


def _in_child(kind: str, originals: list[Path], folder: Path, seed: int, numbers: range) -> Counter[str]:
    report, work = folder / "report", folder / "work"
    work.mkdir()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            _read_cases(kind, originals, work, seed, numbers, report)
            os._exit(0)
        finally:  # nothing of the parent's may be cleaned up here
            traceback.print_exc()
            os._exit(70)
    _, status = os.waitpid(child, 0)
    last = dict(json.loads(line) for line in report.read_text().splitlines())
    shutil.rmtree(work)
    results = Counter(text if text in ("read", "refused") else f"number {n}: {text}" for n, text in last.items())
    if code := os.waitstatus_to_exitcode(status):
        results[f"FINDING: the process ended with {code} at number {max(last, default=-1)}"] += 1
    return results


def _read_cases(kind: str, originals: list[Path], work: Path, seed: int, numbers: range, report: Path) -> None:
    before = _peak()
    with report.open("w") as out:
        for number in numbers:
            print(json.dumps([number, "died"]), file=out, flush=True)
            case = make_case(kind, originals, work, seed, number)
            started, peak = time.monotonic(), _peak()
            result = read_case(KINDS[kind], case)
            grown, seconds = (_peak() - before) >> 10, time.monotonic() - started
            if grown > MOST_MB and _peak() > peak:
                result = f"FINDING: {grown} MB more memory"
            elif seconds > 30:
                result = f"FINDING: took {seconds:.0f} s"
            print(json.dumps([number, result]), file=out, flush=True)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
