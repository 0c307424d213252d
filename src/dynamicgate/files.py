"""Writing files so that a crash, a full disk or a kill never costs the one that was there before."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


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


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
