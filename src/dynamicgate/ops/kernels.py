"""Which backend runs the ops: compiled kernels, or torch where there was no compiler. Said once, through logging."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

_LIBRARY = "_kernels*.so"


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None. Loaded after torch: they look up torch's functions in the running process."""
    files = sorted(Path(__file__).parent.glob(_LIBRARY))
    if not files:
        return None
    found = ctypes.CDLL(str(files[0]))
    found.dynamicgate_register.restype = ctypes.c_char_p
    found.dynamicgate_level.restype = ctypes.c_char_p
    found.dynamicgate_mask.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    found.dynamicgate_mask.restype = None
    return found


@cache
def missing() -> str:
    """Why the kernels cannot be used; empty once they are registered as the CPU implementation of the op."""
    try:
        found = library()
    except OSError as error:
        return f"their library does not load: {error}"
    if found is None:
        return "they were not built; with a C++ compiler, install the package again"
    problem = found.dynamicgate_register()
    return f"this torch lacks what they need: {problem.decode()}" if problem else ""


@cache
def backend() -> str:
    """What runs the ops: "c++ neon", "c++ avx512", "c++ avx2", "c++ sse2", or "torch". The first call logs it."""
    why = missing()
    found = None if why else library()
    name = "torch" if found is None else f"c++ {found.dynamicgate_level().decode()}"
    log = logging.getLogger("dynamicgate")
    if why:
        log.warning("ops run on torch, slowly: there are no compiled kernels, because %s", why)
    else:
        log.info("ops run on %s", name)
    return name
