"""Atomic writes, reading JSON lines, and the provenance of a result. Imports neither torch nor numpy.

A crash, a full disk or a kill never damages the file that was there before.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamicgate._version import __version__

CODE = (
    ":/src",
    ":/csrc",
    ":/setup.py",
    ":/pyproject.toml",
    ":/constraints.txt",
    ":/experiments/*.py",
    ":/benchmarks/*.py",
)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour of `path`, flush it to disk, then put it in place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        kept = "; the earlier file is untouched" if path.exists() else ""
        sentence = f"could not write {path}: {error.strerror or error}{kept}"
        raise (OSError(sentence) if error.errno is None else OSError(error.errno, sentence)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_atomically` for text."""
    write_atomically(path, lambda temporary: _write(temporary, text))


def write_results(path: Path, meta: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> None:
    """A results file, one run a line: it stays small, and a diff shows which run changed."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    write_text(path, f'{{"meta": {json.dumps(meta, indent=1)},\n"runs": [\n{lines}\n]}}\n')


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file with one JSON object a line, such as log.jsonl.

    A last line that was cut short (no newline, not a whole object: the writer was killed) is left out, and empty lines
    are skipped. Any other line that is not an object is damage, and raises ValueError.
    """
    found = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = _json_object(line)
        if entry is not None:
            found.append(entry)
        elif number < len(lines):
            raise ValueError(f"{path}, line {number}: expected a JSON object, received {line[:60]!r}")
    return found


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def environment(command: str) -> dict[str, Any]:
    """Where a result comes from: commit, versions, machine, command."""
    import numpy  # here: reports are written without torch and numpy
    import torch

    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "command": command,
        "versions": {
            "dynamicgate": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.system(),
            "arch": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _commit() -> str | None:
    """The commit of this source tree, marked if its code has uncommitted changes; None for an installed package. A copy
    of a tree without its history says with DYNAMICGATE_COMMIT which commit it is."""
    if said := os.environ.get("DYNAMICGATE_COMMIT"):
        return said[:12]
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    found = _git(root, "describe", "--always", "--abbrev=12", "--exclude=*")
    # Results and the pages made from them change while experiments run; they do not change what the code does.
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return found if found is None or not changed else f"{found}-dirty"


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
