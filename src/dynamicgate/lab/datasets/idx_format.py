"""Read idx files, the array format of MNIST, plain or gzipped.

Layout, big-endian: two zero bytes, a type byte, the number of dimensions, one uint32 size per dimension, the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from dynamicgate.lab.datasets.limits import gunzip

DTYPES: Mapping[int, str] = MappingProxyType(
    {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
)

_DOWNLOAD_AGAIN = "download the file again"


def read_idx(path: Path, ndim: int | None = None) -> npt.NDArray[Any]:
    """The array in `path`, in native byte order; `ndim` is the number of dimensions it must have."""
    content = read_content(path)
    if len(content) < 4:
        raise ValueError(
            f"{path} is not an idx file: expected at least 4 bytes, found {len(content)}; {_DOWNLOAD_AGAIN}"
        )
    zeros, type_byte, found_ndim = content[:2], content[2], content[3]
    if zeros != b"\0\0" or type_byte not in DTYPES or not 1 <= found_ndim <= 32:  # numpy 1 ends at 32
        raise ValueError(
            f"{path} is not an idx file: expected a magic number 0x0000TTDD (type 08, 09 or 0b to 0e, dimensions), "
            f"found 0x{content[:4].hex()}; {_DOWNLOAD_AGAIN}"
        )
    if ndim is not None and found_ndim != ndim:
        raise ValueError(
            f"{path} has the wrong magic number: expected an idx array of {ndim} dimensions, found {found_ndim} "
            f"(0x{content[:4].hex()}); images have 3 and labels 1; have two files been swapped?"
        )
    start = 4 + 4 * found_ndim
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    dtype = np.dtype(DTYPES[type_byte])
    # Python integers: a damaged header can promise more than 2**64 bytes.
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) < start or len(content) != expected:
        raise ValueError(
            f"{path} is truncated or damaged: its header promises shape {shape}, {expected} bytes in all, "
            f"found {len(content)}; {_DOWNLOAD_AGAIN}"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def read_content(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped."""
    content = path.read_bytes()
    # Decide by the first bytes, not by the name: some programs unpack a download but leave ".gz" in its name.
    return gunzip(content, str(path)) if content[:2] == b"\x1f\x8b" else content
