"""How much a file may unpack to: a few kilobytes can promise terabytes, and fill memory or disk before that shows."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

ALWAYS = 64 << 20
"""Bytes that any file may unpack to."""
RATIO = 200
"""Beyond that, how often its own size: text packs to a fifth, one-hot columns and mostly black images to a fiftieth."""


def most_members(path: Path) -> int:
    """The most files that the archive at `path` may hold: a hundred packed bytes each, if there are many."""
    return max(20_000, path.stat().st_size // 100)


def most_bytes(path: Path) -> int:
    """The most that the file at `path` may unpack to."""
    return most_bytes_of(path.stat().st_size)


def most_bytes_of(size: int) -> int:
    """The most that a file of that size may unpack to."""
    return max(ALWAYS, RATIO * size)


def refuse_larger(promised: int, limit: int, what: str) -> None:
    """Raise ValueError if `what` would be unpacked to more than `limit`."""
    if promised > limit:
        raise ValueError(
            f"{what}: refused, it would unpack to {promised:,} bytes, for a file of its size {limit:,} are allowed; "
            "unpack it yourself if it is what you expect"
        )


def refuse_gzip_bomb(path: Path) -> None:
    """Unpack a gzip file once without keeping anything, and raise ValueError if it is more than it may be. For readers
    that keep many times the bytes that they read."""
    limit, count = most_bytes(path), 0
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
