"""The Python edition of CIFAR-10, whose official files are pickles: the only file here that reads any.

A pickle is a program, and running a stranger's is how machines are taken over. These are read because the official
archive holds nothing else, by an interpreter that knows four names: numpy's rebuilding of an array, its array and dtype
types, and the encoding of a string as bytes. Each of the four is replaced by a plain stand-in below, so nothing that a
file asks for is ever imported or called, and every other name is refused. Nothing of our own is written like this.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt


class _Dtype:
    """Stands for numpy.dtype; pixels are bytes and nothing else."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1", "uint8", b"uint8"):
            raise ValueError(f"an array of type {code!r}, expected bytes (u1)")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands for numpy.ndarray: keeps the shape and the bytes that numpy would be given."""

    array: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise ValueError("an array whose content is not bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _rebuild(kind: object, *_: object) -> _Array:
    if kind is not _Array:
        raise ValueError("an array of a type of its own")
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"text in the encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"refused, it asks for {module}.{name}, and images need no such thing")
        return _KNOWN[module, name]


def read_python_batch(content: bytes, what: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Pixels [n, 3072] and labels [n] of a batch in the Python edition; `what` names it in errors."""
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # damaged bytes make this interpreter raise almost anything
        raise ValueError(f"{what} is not a readable batch of CIFAR-10 ({error}): fetch it again") from error
    batch = {_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    data, labels = batch.get("data"), batch.get("labels")
    pixels = data.array if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) == 0:
        received = "none" if pixels is None else f"shape {pixels.shape}"
        raise ValueError(f'{what}: expected under "data" an array of n x 3072 bytes, found {received}')
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f'{what}: expected under "labels" a list of whole numbers')
    if len(labels) != len(pixels):
        raise ValueError(f"{what} has {len(pixels)} images but {len(labels)} labels; fetch it again")
    return pixels, np.array(labels)


def _text(key: object) -> object:
    return key.decode("latin1") if isinstance(key, bytes) else key
