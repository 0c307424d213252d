"""Read an h5ad file to its end in a process of its own, before this one opens it.

libhdf5 trusts what a file says about itself: of thousands of changed files one ended the process that read it, and some
made it take gigabytes. Here that ends a child, whose memory is limited, and the file is refused with a sentence.

This file runs as a script that imports nothing of the package, because a child that loads torch would take seconds.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PIECE = 1 << 20  # bytes of a dataset that are read together
ROOM = 150 << 20  # bytes that the child may take beyond what it has when it has started
BYTES_A_SECOND = 2_000_000  # a child that is slower than that, a minute aside, is stuck
BUSY = 4  # seconds of processor time beside that: libhdf5 runs in circles in some changed files
REFUSED = 3


def refuse_dangerous(path: Path, limit: int) -> None:
    """Raise ValueError if the file cannot be read to its end, or promises more than `limit` bytes."""
    seconds = 60 + path.stat().st_size / BYTES_A_SECOND
    command = [sys.executable, str(Path(__file__).resolve()), str(path), str(limit)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"it was not read to its end in {seconds:.0f} s") from error
    if done.returncode == -signal.SIGXCPU:
        raise ValueError("libhdf5 ran in circles while it read it")
    if done.returncode < 0:
        raise ValueError(f"libhdf5 ended with signal {-done.returncode} while it read it")
    if done.returncode:
        raise ValueError(done.stdout.strip() or done.stderr.strip().rpartition("\n")[2])


def _read(path: str, limit: int) -> None:
    """Everything in the file, piece by piece; ValueError if there is more than `limit`, or if it is elsewhere."""
    import h5py  # type: ignore[import-untyped, unused-ignore]

    _limit_memory()
    _limit_time(BUSY + Path(path).stat().st_size // BYTES_A_SECOND)
    with h5py.File(path, "r") as file:
        waiting, seen, total = [file], set(), 0
        while waiting:
            group = waiting.pop()
            dict(group.attrs)
            for name in group:
                if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
                    raise ValueError(f"{group.name}/{name} is in another file")
                found = group[name]
                if found.id in seen:
                    continue
                seen.add(found.id)
                if isinstance(found, h5py.Group):
                    waiting.append(found)
                elif isinstance(found, h5py.Dataset):
                    if found.external or found.is_virtual:
                        raise ValueError(f"{found.name} is in another file")
                    total += (found.size or 0) * found.dtype.itemsize
                    _refuse_larger(total, limit)
                    dict(found.attrs)
                    total += _read_pieces(found)
                    _refuse_larger(total, limit)


def _refuse_larger(total: int, limit: int) -> None:
    if total > limit:
        raise ValueError(f"refused, it would unpack to {total:,} bytes, for its size {limit:,} are allowed")


def _read_pieces(dataset: Any) -> int:
    """Read all values, and return how many bytes of text there were."""
    if not dataset.shape:  # one value, or none
        value = dataset[()]
        return len(value) if isinstance(value, bytes) else 0
    texts = 0
    row = max(1, dataset.size // max(1, dataset.shape[0])) * dataset.dtype.itemsize
    step = max(1, PIECE // row)
    for first in range(0, dataset.shape[0], step):
        values = dataset[first : first + step]
        if dataset.dtype.kind == "O":
            texts += sum(len(value) for value in values.flat if isinstance(value, bytes))
    return texts


def _limit_memory() -> None:
    """No more than `ROOM` beyond what there is now. Linux only: others cannot say what there is."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return
    import resource

    most = int(pages.read_text().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time(seconds: int) -> None:
    """No more processor time than this from now on: a slow disk or a busy machine does not count."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))


if __name__ == "__main__":
    try:
        _read(sys.argv[1], int(sys.argv[2]))
    except MemoryError:
        print("it asks for far more memory than a file of its size needs")
        sys.exit(REFUSED)
    except Exception as error:  # on damaged bytes the library raises almost anything
        print(" ".join(str(error).split()))
        sys.exit(REFUSED)
