"""The lock under which processes append to the journal of a study. Needs `sweep`."""

from __future__ import annotations

import os
from pathlib import Path

from optuna.storages.journal import JournalFileOpenLock

try:
    import fcntl
except ImportError:  # Windows: Optuna's own lock, which waits half a minute for one that was killed
    fcntl = None  # type: ignore[assignment]

LAST_BYTES = 1 << 16


class JournalLock(JournalFileOpenLock):
    """Held by one process at a time, and free as soon as its holder ends, even by a kill.

    Whoever holds it is the only writer, so that half a line at the end is what a killed writer left, or one whose disk
    was full. It is cut off: otherwise the next line would be appended to it, and the study could never be read again.
    """

    def __init__(self, path: Path) -> None:
        """Of this journal."""
        super().__init__(str(path))
        self.path, self.handle = path, -1

    def acquire(self) -> bool:
        """Wait for the lock, then mend the end of the journal."""
        if fcntl is None:
            super().acquire()
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        if fcntl is not None:
            fcntl.flock(self.handle, fcntl.LOCK_EX)
        _cut_half_line(self.handle)
        return True

    def release(self) -> None:
        """Let it go."""
        os.close(self.handle)
        if fcntl is None:
            super().release()


def _cut_half_line(handle: int) -> None:
    size = os.fstat(handle).st_size
    end = size
    while end:
        start = max(0, end - LAST_BYTES)
        os.lseek(handle, start, os.SEEK_SET)
        newline = os.read(handle, end - start).rfind(b"\n")
        end = start + newline + 1
        if newline >= 0:
            break
    if end < size:
        os.ftruncate(handle, end)
