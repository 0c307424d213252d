"""Commands and options that are almost right: say which was meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints


def wrong_command(name: str, commands: Sequence[str]) -> str:
    """An error about a command that does not exist."""
    close = get_close_matches(name, commands, n=1)
    meant = f"; did you mean `dynamicgate {close[0]}`?" if close else "."
    return f"there is no command {name!r}{meant} The commands are {', '.join(commands)}: see `dynamicgate --help`"


def wrong_option(command: type, arguments: Sequence[str]) -> str | None:
    """An error about the first option that is close to one of the command and is none itself; None if there is none.

    The parser says so too, but not where a required option is missing as well.
    """
    known = {"--help", *_options(command)}
    for argument in arguments:
        option = argument.partition("=")[0].replace("_", "-")
        if argument.startswith("--") and option not in known:
            close = get_close_matches(option, sorted(known), n=1, cutoff=0.75)
            if close:
                return f"there is no option {argument.partition('=')[0]}; did you mean {close[0]}?"
    return None


def _options(kind: Any) -> set[str]:
    """The options of a dataclass, of those inside it, and of all alternatives."""
    found: set[str] = set()
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            inside = _options(hints[field.name])
            name = field.name.replace("_", "-")
            found |= inside or {f"--{name}", f"--no-{name}"}
        return found
    for part in get_args(kind):
        found |= _options(part)
    return found
