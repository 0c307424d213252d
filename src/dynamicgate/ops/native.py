"""Loads the compiled C++ kernels and says what runs the CPU ops: the kernels, or torch where there was no compiler."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

_LIBRARY = "_kernels*.so"
_FUNCTIONS = tuple(
    f"dynamicgate_{name}"
    for name in (
        *("register", "level", "poison", "mask", "problem", "dispatcher_bypass"),
        *("decoder_problem", "run_decoder", "huge_pages"),
    )
)
_ROOM = 200  # for a sentence


def _file() -> Path | None:
    return next(iter(sorted(Path(__file__).parent.glob(_LIBRARY))), None)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None. Loaded after torch, because they look up torch's functions in the process."""
    file = _file()
    if file is None:
        return None
    found = ctypes.CDLL(str(file))
    for name in _FUNCTIONS:
        if not hasattr(found, name):
            raise OSError(f"{file.name} was built from other sources, it lacks {name}; install the package again")
    found.dynamicgate_register.restype = ctypes.c_char_p
    found.dynamicgate_level.restype = ctypes.c_char_p
    found.dynamicgate_mask.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    found.dynamicgate_mask.restype = None
    number = ctypes.c_int64
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for problem in (found.dynamicgate_problem, found.dynamicgate_decoder_problem):
        problem.argtypes, problem.restype = (pointer, number, number, text, number), None
    tensors = (pointer,) * 8
    found.dynamicgate_run_decoder.argtypes = (pointer, number, pointer, number, *tensors, text, number)
    found.dynamicgate_run_decoder.restype = None
    found.dynamicgate_huge_pages.argtypes, found.dynamicgate_huge_pages.restype = (pointer, number), None
    return found


@cache
def missing() -> str:
    """Why the kernels cannot be used. Empty once they are registered as the CPU implementation of the chain op."""
    try:
        found = library()
    except OSError as error:
        return f"their library does not load: {error}"
    if found is None:
        return "they were not built; with a C++ compiler, install the package again"
    problem = found.dynamicgate_register()
    return f"this torch lacks what they need: {problem.decode()}" if problem else ""


def problem_of(program: Tensor, floats: int, *, decoder: bool = False) -> str:
    """What is wrong with a packed program (int32, contiguous) for that many weights; empty if it can be run."""
    found = library()
    assert found is not None
    text = ctypes.create_string_buffer(_ROOM)
    ask = found.dynamicgate_decoder_problem if decoder else found.dynamicgate_problem
    ask(program.data_ptr(), program.numel(), floats, text, _ROOM)
    return text.value.decode()


def decode(program: Tensor, weights: Tensor, tensors: Sequence[Tensor | None], sizes: Sequence[int]) -> str:
    """Run a packed decoder. tensors: x, cache, position, padding, end, y, seconds; sizes: see csrc/decoder.cpp. Returns
    what is wrong with the call; empty if it ran."""
    found = library()
    assert found is not None
    text = ctypes.create_string_buffer(_ROOM)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)
    words, floats = (program.data_ptr(), program.numel()), (weights.data_ptr(), weights.numel())
    found.dynamicgate_run_decoder(*words, *floats, *pointers, numbers, text, _ROOM)
    return text.value.decode()


def in_large_pages(count: int) -> Tensor:
    """Room for so many float32 numbers, not yet written, in large pages where the system has them."""
    room = torch.empty(count, dtype=torch.float32)
    found = library()
    if found is not None:
        found.dynamicgate_huge_pages(room.data_ptr(), 4 * count)
    return room


@cache
def dispatcher_bypass() -> Callable[[Tensor, Tensor, Tensor], Tensor | None] | None:
    """(x, weights, program) -> result, without torch's dispatcher. None where this torch does not allow it. The
    function returns None for a call that only the op can handle."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if missing() or table is None:
        return None
    make = ctypes.PyDLL(str(_file())).dynamicgate_dispatcher_bypass
    make.argtypes, make.restype = (ctypes.py_object,), ctypes.py_object
    try:
        return cast("Callable[[Tensor, Tensor, Tensor], Tensor | None]", make(table))
    except ValueError:  # a null pointer: another version of the table, or a Python without the functions
        return None


@cache
def backend() -> str:
    """What runs the CPU ops: "c++ neon", "c++ avx512", "c++ avx2", "c++ sse2" or "torch". The first call logs it."""
    why = missing()
    found = None if why else library()
    name = "torch" if found is None else f"c++ {found.dynamicgate_level().decode()}"
    log = logging.getLogger("dynamicgate")
    if why:
        log.warning("ops run on torch, slowly: there are no compiled kernels, because %s", why)
    else:
        log.info("ops run on %s", name)
    return name
