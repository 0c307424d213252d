"""How much a file may unpack to: a few kilobytes can promise terabytes, and fill memory or disk before that shows."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no limits of a process
    resource = None  # type: ignore[assignment]

ALWAYS = 64 << 20
"""Bytes that any file may unpack to."""
RATIO = 200
"""Beyond that, how often its own size: text packs to a fifth, one-hot columns and mostly black images to a fiftieth."""

MEMORY = 4
"""The part of the memory of this machine that a large file may unpack to, and"""
TABLE_MEMORY = 16
"""that a table may: eight bytes for each number, several times over, where its text has two."""
LARGEST_MEMBER = 256 << 20
"""Bytes of one file in an archive, which is read as a whole; those of every dataset known here are smaller."""


def most_members(path: Path) -> int:
    """The most files that the archive at `path` may hold: a hundred packed bytes each, if there are many."""
    return max(20_000, path.stat().st_size // 100)


def most_bytes(path: Path) -> int:
    """The most that the file at `path` may unpack to."""
    return most_bytes_of(path.stat().st_size)


def most_bytes_of(size: int) -> int:
    """The most that a file of that size may unpack to on this machine."""
    return max(ALWAYS, min(RATIO * size, _memory() // MEMORY))


def refuse_larger(promised: int, limit: int, what: str) -> None:
    """Raise ValueError if `what` would be unpacked to more than `limit`."""
    if promised > limit:
        raise ValueError(
            f"{what}: refused, it would unpack to {promised:,} bytes, and {limit:,} are allowed for its size and the "
            "memory of this machine; unpack it yourself if it is what you expect"
        )


def refuse_gzip_bomb(path: Path) -> None:
    """Unpack a gzip file once without keeping anything, and raise ValueError if it is more than it may be. For readers
    that keep many times the bytes that they read."""
    limit, count = max(ALWAYS, min(RATIO * path.stat().st_size, _memory() // TABLE_MEMORY)), 0
    with gzip.open(path) as packed:
        while piece := packed.read(1 << 20):
            count += len(piece)
            refuse_larger(count, limit, str(path))


def gunzip(content: bytes, what: str, limit: int | None = None) -> bytes:
    """The content of a gzip file, no longer than the limit, by default that for a file of its size."""
    limit = most_bytes_of(len(content)) if limit is None else limit
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        try:
            found = packed.read(limit + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(
                f"{what} is a truncated or damaged gzip file ({error}); download the file again"
            ) from error
    refuse_larger(len(found), limit, what)
    return found


def _memory() -> int:
    found = memory_bytes()
    return 1 << 62 if found is None else found


def memory_bytes(limits: Sequence[Path] = (Path("/sys/fs/cgroup/memory.max"),)) -> int | None:
    """The memory of this machine, or of the container that the process is in, or what the process may take (ulimit -v);
    None where that cannot be found out."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on Windows
        return None
    for path in limits:
        text = path.read_text(encoding="ascii").strip() if path.is_file() else "max"
        found = min(found, int(text)) if text.isdigit() else found
    if resource is not None:
        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        found = found if allowed == resource.RLIM_INFINITY else min(found, allowed)
    return found
