"""Atomic writes, reading JSON lines, and the provenance of a result. Imports neither torch nor numpy.

A crash, a full disk or a kill never damages the file that was there before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamicgate._version import __version__

try:
    import fcntl
except ImportError:  # Windows, which has neither its locks nor folders that can be opened
    fcntl = None  # type: ignore[assignment]

CODE = (
    ":/src",
    ":/csrc",
    ":/setup.py",
    ":/pyproject.toml",
    ":/constraints.txt",
    ":/experiments/*.py",
    ":/benchmarks/*.py",
    ":!*.md",  # the pages beside the code have tables made from results
)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour of `path`, flush it to disk, then put it in place in one move.

    See `replacing`; an error of the system becomes a sentence that names `path`.
    """
    try:
        with replacing(path) as temporary:
            write(temporary)
    except OSError as error:
        kept = "; the earlier file is untouched" if path.exists() else ""
        sentence = f"could not write {path}: {error.strerror or error}{kept}"
        raise (OSError(sentence) if error.errno is None else OSError(error.errno, sentence)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to, which takes its place at the end, or is removed after an error.

    A symbolic link stays one: what it points to is written. A file that was there keeps its permissions, a new one gets
    those that the umask allows. What killed writers of the same file left behind is removed.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = _new_neighbour(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o7777)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def _new_neighbour(path: Path) -> tuple[Path, int]:
    """An empty hidden file beside `path` and an open handle of it, which holds a lock as long as this process lives."""
    _remove_abandoned(path)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)  # less what the umask takes away
        _lock(handle, wait=True)
        if temporary.exists():  # another writer may have taken it for abandoned before it was locked
            return temporary, handle
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove the neighbours that killed writers of `path` left: nobody holds their lock any more."""
    named = re.compile(re.escape(f".{path.name}.") + r"\w{8}")
    for found in [entry.path for entry in os.scandir(path.parent) if named.fullmatch(entry.name)]:
        try:
            handle = os.open(found, os.O_RDWR)
        except OSError:  # it is gone, or somebody else's
            continue
        try:
            if _lock(handle, wait=False):
                Path(found).unlink(missing_ok=True)
        finally:
            os.close(handle)


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; False if that is not possible now, or not on this system."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process holds it, or the file system has no locks
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: a move is not safe from a power failure before that."""
    if fcntl is None:  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some file systems cannot
            raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """`write_atomically` for text."""
    write_atomically(path, lambda temporary: _write(temporary, text))


def write_results(path: Path, meta: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> None:
    """A results file, one run a line: it stays small, and a diff shows which run changed."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    write_text(path, f'{{"meta": {json.dumps(meta, indent=1)},\n"runs": [\n{lines}\n]}}\n')


def read_json_lines(path: Path, damaged: list[int] | None = None) -> list[dict[str, Any]]:
    """The objects in a file with one JSON object a line, such as log.jsonl.

    A last line that was cut short (no newline, not a whole object: the writer was killed) is left out, and empty lines
    are skipped. Any other line that is not an object is damage. It raises ValueError, unless there is a list for the
    numbers of such lines: then the rows before and after it are read.
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
            if damaged is None:
                raise ValueError(f"{path}, line {number}: expected a JSON object, received {line[:60]!r}")
            damaged.append(number)
    return found


def file_sha256(path: Path) -> str:
    """The sha256 of a file of any size, in hexadecimal: 1.6 GB take a second."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; anything else raises ValueError with the name of the file."""
    found = _json_object(path.read_bytes())
    if found is None:
        raise ValueError(f"{path} is damaged: expected one JSON object; delete it to have it made again")
    return found


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
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
