"""`python -m tests.fuzz`: the long fuzz. Exits with 1 after a finding, whose seed and number make it again."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.fuzz import record
from tests.fuzz.corpus import KINDS
from tests.fuzz.runner import fuzz, make_case
from tests.fuzz.test_programs import run_driver


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kinds", default="programs," + ",".join(KINDS), help="separated by commas")
    parser.add_argument("--count", type=int, default=5000, help="changed files of each kind, four times of plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=int, metavar="NUMBER", help="write this one case here, and read nothing")
    parser.add_argument("--record", action="store_true", help="note the results in tests/fuzz/last_run.json")
    parser.add_argument("--sanitized", action="store_true", help="say so in the record (tests.fuzz.asan)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for kind in options.kinds.split(","):
        count = options.count * (4 if kind in ("programs", "plan") else 1)
        if options.write is not None:
            originals = Path(f"fuzz-{kind}")
            originals.mkdir()
            print(make_case(kind, KINDS[kind].write(originals), Path(), options.seed, options.write))
            continue
        name = f"{kind}, sanitized" if options.sanitized else kind
        begun, started = record.begin(name), time.monotonic()
        if kind == "programs":
            with tempfile.TemporaryDirectory() as folder:
                said = run_driver(Path(folder), options.seed, count)
            print(f"programs under sanitizers, seed {options.seed}: {said}", end="", flush=True)
            if options.record:
                record.write(name, begun, count=count, seed=options.seed, wrong=0, said=said.strip())
            continue
        found = fuzz(kind, options.seed, count)
        findings = {text: n for text, n in found.items() if text not in ("read", "refused")}
        said = f"{count} files, {found['refused']} refused, {found['read']} read, {len(findings)} findings"
        print(f"{kind}, seed {options.seed}: {said}, {time.monotonic() - started:.0f} s", flush=True)
        if options.record:
            record.write(name, begun, count=count, seed=options.seed, wrong=len(findings), said=said)
        for text in list(findings)[:20]:
            print(text)
        failed |= bool(findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
