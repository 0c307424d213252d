"""Small labelled arrays, a writer of idx files, and a way to compare rows."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

IDX_TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    header = bytes([0, 0, IDX_TYPES[array.dtype.str[1:]], array.ndim])
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> Path:
    content = idx_bytes(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def rows_of(x: Any) -> set[bytes]:
    """The distinct rows of a tensor, to check whether two parts share one."""
    return {row.tobytes() for row in x.numpy()}


def labelled_rows(counts: Sequence[int], features: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`counts[c]` rows of class c, every value different from every other."""
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.arange(len(y) * features, dtype=np.float32).reshape(len(y), features)
    return x, y
