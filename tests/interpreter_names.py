"""A pytest plugin for interpreted kernels: Triton's interpreter looks through all members of its language at every call
of a function, for those that it replaces. Their names are found once here, which saves a third of the time."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from triton.runtime import interpreter

is_builtin = interpreter.tl.core.is_builtin


@cache
def names(members_of: Any) -> list[str]:
    """Of what the interpreter replaces; asked for the first time before anything has been replaced."""
    return [name for name, member in inspect.getmembers(members_of) if is_builtin(member)]


def replace_builtins(members_of: Any, builder: Any, scope: Any) -> None:
    """What the interpreter's own function does."""
    for name in names(members_of):
        if is_builtin(member := getattr(members_of, name)):
            interpreter._patch_attr(members_of, name, member, builder, scope)


if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
    language = interpreter.tl
    for owner in (language, language.core, language.tensor, language.math, language.core.tensor_descriptor_base):
        names(owner)
    interpreter._patch_builtin = replace_builtins
