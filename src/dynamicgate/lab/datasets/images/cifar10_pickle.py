"""Safely read the Python version of CIFAR-10, whose official files are pickles. Nothing else here reads pickles.

A pickle is a program, and running one from a stranger can take over the machine. These are read because the official
Python archive has nothing else. The unpickler below knows four names: numpy's array reconstruction, its array and dtype
types, and the encoding of a string as bytes. Each is replaced by a plain stand-in, so nothing that a file asks for is
ever imported or called, and every other name is refused. Our own files are never pickles.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt


class _Dtype:
    """Stands in for numpy.dtype; pixels are bytes and nothing else."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1", "uint8", b"uint8"):
            raise ValueError(f"an array of type {code!r}, expected bytes (u1)")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which mean nothing for single bytes."""


class _Array:
    """Stands in for numpy.ndarray: keeps the shape and the bytes that numpy would be given."""

    array: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise ValueError("an array whose content is not bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _reconstruct(kind: object, *_: object) -> _Array:
    if kind is not _Array:
        raise ValueError("an array of a custom type")
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"text in the encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"refused, it asks for {module}.{name}, which images do not need")
        return _STAND_INS[module, name]


def read_pickled_batch(content: bytes, what: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Pixels [n, 3072] and labels [n] of a pickled batch; `what` names it in errors."""
    try:
        found = _SafeUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damaged bytes make the unpickler raise almost anything
        raise ValueError(f"{what} is not a readable CIFAR-10 batch ({error}): download it again") from error
    batch = {_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    data, labels = batch.get("data"), batch.get("labels")
    pixels = data.array if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) == 0:
        received = "none" if pixels is None else f"shape {pixels.shape}"
        raise ValueError(f'{what}: expected "data" to be an array of n x 3072 bytes, found {received}')
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f'{what}: expected "labels" to be a list of whole numbers')
    if len(labels) != len(pixels):
        raise ValueError(f"{what} has {len(pixels)} images but {len(labels)} labels; download it again")
    return pixels, np.array(labels)


def _text(key: object) -> object:
    return key.decode("latin1") if isinstance(key, bytes) else key
