"""Read idx files, the array format of MNIST, plain or gzipped.

Layout, big-endian: two zero bytes, a type byte, the number of dimensions, one uint32 size per dimension, the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from dynamicgate.lab.datasets.limits import most_bytes, refuse_larger

DTYPES: Mapping[int, str] = MappingProxyType(
    {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
)

_DOWNLOAD_AGAIN = "download the file again"


def read_idx(path: Path, ndim: int | None = None) -> npt.NDArray[Any]:
    """The array in `path`, in native byte order; `ndim` is the number of dimensions it must have."""
    with _opened(path) as (file, packed):
        return _read_array(path, file, ndim, most_bytes(path) if packed else None)


def _read_array(path: Path, file: IO[bytes], ndim: int | None, limit: int | None) -> npt.NDArray[Any]:
    """Read no more than the header promises, and nothing after a header that cannot be right."""
    start = file.read(4)
    if len(start) < 4:
        raise ValueError(f"{path} is not an idx file: expected at least 4 bytes, found {len(start)}; {_DOWNLOAD_AGAIN}")
    zeros, type_byte, found_ndim = start[:2], start[2], start[3]
    if zeros != b"\0\0" or type_byte not in DTYPES or not 1 <= found_ndim <= 32:  # numpy 1 ends at 32
        raise ValueError(
            f"{path} is not an idx file: expected a magic number 0x0000TTDD (type 08, 09 or 0b to 0e, dimensions), "
            f"found 0x{start.hex()}; {_DOWNLOAD_AGAIN}"
        )
    if ndim is not None and found_ndim != ndim:
        raise ValueError(
            f"{path} has the wrong magic number: expected an idx array of {ndim} dimensions, found {found_ndim} "
            f"(0x{start.hex()}); images have 3 and labels 1; have two files been swapped?"
        )
    sizes = file.read(4 * found_ndim)
    shape = tuple(int.from_bytes(sizes[at : at + 4], "big") for at in range(0, len(sizes), 4))
    dtype = np.dtype(DTYPES[type_byte])
    # Python integers: a damaged header can promise more than 2**64 bytes.
    header, expected = 4 + 4 * found_ndim, 4 + 4 * found_ndim + math.prod(shape) * dtype.itemsize
    if limit is None:
        found = path.stat().st_size
        values = file.read() if found == expected else b""
    else:
        refuse_larger(expected, limit, str(path))
        values = file.read(expected - header + 1)  # one more, to see that there is none
        found = 4 + len(sizes) + len(values)
    if found != expected:
        raise ValueError(
            f"{path} is truncated or damaged: its header promises shape {shape}, {expected} bytes in all, "
            f"found {found}{' or more' if limit and found > expected else ''}; {_DOWNLOAD_AGAIN}"
        )
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_content(path: Path, limit: int) -> bytes:
    """The bytes of a file, unpacked if it is gzipped, no more than the limit and one."""
    with _opened(path) as (file, _):
        return file.read(limit + 1)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """The file, unpacked while it is read if it is gzipped, and whether it is."""
    with path.open("rb") as file:
        # Decide by the first bytes, not by the name: some programs unpack a download but leave ".gz" in its name.
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield file, packed
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked), packed
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is a truncated or damaged gzip file ({error}); {_DOWNLOAD_AGAIN}") from error
