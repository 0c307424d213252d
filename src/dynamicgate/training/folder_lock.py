"""One process at a time in an output folder: two that write the same files would leave a mixture of both."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dynamicgate import distributed

try:
    import fcntl
except ImportError:  # Windows, whose files cannot be locked this way: folders are not guarded there
    fcntl = None  # type: ignore[assignment]


class InUseError(ValueError):
    """Another process works in the folder."""


@contextmanager
def only_process(folder: Path | None, name: str, device: torch.device | None = None) -> Iterator[None]:
    """Hold the lock `name` of a folder; None: there is no folder. InUseError says who holds it and since when.

    The lock belongs to the process that holds it: when that one ends, even by a kill, the lock is free and its file
    is taken over. Of several processes that train one model, the first holds the lock for all.
    """
    if folder is None or fcntl is None:
        yield
        return
    handle, refused = None, None
    if distributed.rank() == 0:
        try:
            handle = _acquire(folder / name)
        except InUseError as error:
            refused = error
    if distributed.world_size() > 1:
        (other,) = distributed.any_of(refused is not None, device=device or torch.device("cpu"))
        if other and refused is None:
            refused = InUseError(f"another process works in {folder}")
    if refused is not None:
        raise refused
    try:
        _check_shared(folder, name, device)
        yield
    finally:
        if handle is not None:
            (folder / name).unlink(missing_ok=True)  # before it is let go: whoever waits for it looks again
            os.close(handle)


def _check_shared(folder: Path, name: str, device: torch.device | None) -> None:
    """All processes see the lock of the first: otherwise one would not find the checkpoint that another continues
    from, and they would train on from different steps."""
    if distributed.world_size() == 1:
        return
    (unseen,) = distributed.any_of(not (folder / name).exists(), device=device or torch.device("cpu"))
    if unseen:
        raise ValueError(
            f"{folder} is not the same folder on all machines: put it on a file system that they share, or call fit "
            "without out="
        )


def _acquire(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise InUseError(_said(path)) from error
        if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
            break
        os.close(handle)  # its holder removed it between our two steps
    owner = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(owner).encode())
    return handle


def _said(path: Path) -> str:
    try:
        owner: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        age = max(0.0, time.time() - owner["since"])
        who = f"process {owner['pid']} on {owner['host']}, since {since} ({age:.0f} s)"
    except (OSError, ValueError, KeyError):  # it has just been taken, or was just let go
        who = "another process"
    return f"{path.parent} is in use by {who}: wait until that ends and ask again, or choose another folder"
