"""What each long fuzz last showed: tests/fuzz/last_run.json, which the commands write themselves with --record.

`make fuzz` records, and on a machine with a GPU `make fuzz-gpu`. `make test` says what has changed since in what a fuzz
tests.

    python -m tests.fuzz.record FILE    # take over what ran on another machine, which wrote FILE with --out
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.places import ROOT

RECORD = Path(__file__).with_name("last_run.json")
CHAINS = ("csrc", "src/dynamicgate/ops/chain", "src/dynamicgate/ops/gate_net.py", "src/dynamicgate/ops/native.py")
COMPILE = (*CHAINS, "src/dynamicgate/gating", "src/dynamicgate/inference/cpu", "src/dynamicgate/inference/verify.py",
           "src/dynamicgate/inference/compile_model.py", "src/dynamicgate/inference/shadow_copy.py")  # fmt: skip
FILES = ("src/dynamicgate/files.py", "src/dynamicgate/io")
PLANS = (*CHAINS, *FILES, "src/dynamicgate/inference/cpu", "src/dynamicgate/inference/compiled_model.py")
TRAINING = (*FILES, "src/dynamicgate/training", "src/dynamicgate/continual", "src/dynamicgate/lab/methods",
            "src/dynamicgate/lab/runner", "src/dynamicgate/lab/cli")  # fmt: skip
GPU_KERNELS = ("src/dynamicgate/ops/ffn", "src/dynamicgate/ops/gate_net.py", "src/dynamicgate/nn/ffn.py")
SOURCES = {
    "programs": CHAINS,
    "plan": PLANS,
    "plan, sanitized": PLANS,
    "model": (*FILES, "src/dynamicgate/gating", "src/dynamicgate/nn"),
    "checkpoint": (*FILES, "src/dynamicgate/training/checkpoint.py"),
    "h5ad": ("src/dynamicgate/lab/datasets/limits.py", "src/dynamicgate/lab/datasets/single_cell"),
    "archive": ("src/dynamicgate/lab/datasets",),
    "chains": CHAINS,
    "decoders": (*CHAINS, "src/dynamicgate/ops/decoder"),
    "models": COMPILE,
    "kills": TRAINING,
    "threads": COMPILE,
    "gpu": (*GPU_KERNELS, "src/dynamicgate/inference/gpu", "src/dynamicgate/inference/gates.py"),
    "gpu, sanitized": GPU_KERNELS,
}
"""What each fuzz tests: changes there make its result old."""


def digests(name: str) -> dict[str, str]:
    """A short digest of every place whose code a fuzz tests."""
    return {place: _digest(ROOT / place) for place in SOURCES[name]}


def _digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=6)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file.suffix in (".py", ".cpp", ".h"):
            found.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def begin(name: str) -> dict[str, Any]:
    """What is known of a run before it begins: the code may have changed by its end."""
    from dynamicgate.files import environment
    from dynamicgate.ops import native

    meta = environment(" ".join(["python -m", _module(), *sys.argv[1:]]))
    return {
        "command": meta["command"],
        "commit": meta["commit"],
        "date": meta["created"][:10],
        "versions": meta["versions"],
        "machine": {**meta["machine"], "kernels": native.backend()},
        "sources": digests(name),
    }


def write(
    name: str, begun: dict[str, Any], *, count: int, seed: int | None, wrong: int, said: str, path: Path = RECORD
) -> None:
    """Note one run, whatever it showed, in place of the earlier one of this name."""
    from dynamicgate.files import write_text

    entry = {"count": count, "seed": seed, "wrong": wrong, "said": said, **begun}
    write_text(path, json.dumps({**read(path), name: entry}, indent=1) + "\n")


def merge(path: Path, into: Path = RECORD) -> list[str]:
    """Take the runs of another file over, each in place of the earlier one of its name; their names."""
    from dynamicgate.files import write_text

    runs = read(path)
    if unknown := sorted(runs.keys() - SOURCES.keys()):
        raise ValueError(f"{path} records {', '.join(unknown)}, which is no fuzz here; its names are those of SOURCES")
    write_text(into, json.dumps({**read(into), **runs}, indent=1) + "\n")
    return list(runs)


def _module() -> str:
    """The module that was started, as `python -m` knows it."""
    parts = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__main__")


def read(path: Path = RECORD) -> dict[str, dict[str, Any]]:
    """The last run of each fuzz."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def changed() -> dict[str, list[str]]:
    """By fuzz, the places that are not as they were when it last ran; all of them where it never ran."""
    runs = read()
    found = {}
    for name in SOURCES:
        then, now = runs.get(name, {}).get("sources", {}), digests(name)
        if places := sorted(place for place in {*then, *now} if then.get(place) != now.get(place)):
            found[name] = places
    return found


def summary() -> str:
    """One line for the end of a test run."""
    runs = read()
    wrong = [name for name, run in runs.items() if run["wrong"]]
    line = f"fuzz: {len(runs)} of {len(SOURCES)} runs recorded, {len(runs) - len(wrong)} without a finding"
    if wrong:
        line += f", findings in {', '.join(wrong)}"
    if never := [name for name in SOURCES if name not in runs]:
        line += f", no record of {', '.join(never)}"
    old = {name: places for name, places in changed().items() if name in runs}
    if not old:
        return f"{line}; nothing that they test has changed since"
    places = sorted({place for found in old.values() for place in found})
    commands = dict.fromkeys("`make fuzz-gpu`" if name.startswith("gpu") else "`make fuzz`" for name in old)
    return f"{line}. WARNING: {', '.join(old)} ran before changes in {', '.join(places)}; run {' and '.join(commands)}"


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).exists():
        sys.exit("python -m tests.fuzz.record FILE, where FILE was written with --out")
    print(f"{RECORD.name} has {', '.join(merge(Path(sys.argv[1])))} from {sys.argv[1]}")
