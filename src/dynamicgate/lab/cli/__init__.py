"""The `dynamicgate` command. Each subcommand is a module of its own, imported only when that subcommand runs."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from functools import reduce
from importlib import import_module
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from dynamicgate import __version__

DESCRIPTION = (
    "Train, compare, measure and time models with learned gates, at a budget of executed MACs.\n\n"
    "Run `dynamicgate COMMAND --help` for the options and examples of a command, and `dynamicgate --version` for the "
    "version. With --traceback, any command shows where an error comes from."
)

# What `dynamicgate --help` says about each command: the first line of its class, kept here because importing the class
# may import torch.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "train": "Train one model and measure it on the test data.",
        "compare": "Train several models over several seeds, print a table and write a report.",
        "continual": "Train models on a stream of tasks, print what they retain and write a report.",
        "measure": "Measure a saved model: quality, executed MACs of each layer, and how gates depend on the input.",
        "bench": "Time a saved model on this machine, uncompiled and compiled, against the dense network.",
        "generate": "Continue a text with a saved language model, and say what its tokens cost.",
        "report": "Write report.html from the results of `dynamicgate compare`.",
        "data": "List, download, verify and describe datasets.",
    }
)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr, with `--traceback` also a traceback."""
    arguments = list(arguments)
    if arguments == ["--version"]:
        print(f"dynamicgate {__version__}")
        return 0
    show_traceback = "--traceback" in arguments
    arguments = [a for a in arguments if a != "--traceback"]
    try:
        command = _parse(arguments)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a plain kill saves a checkpoint, like Ctrl-C
        return int(command.run())
    except KeyboardInterrupt:
        print("\ndynamicgate: stopped; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has gone; Python must not write to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports for a program ended by SIGPIPE
    except MemoryError as error:
        if show_traceback:
            traceback.print_exc()
        print(f"dynamicgate: not enough memory: {error or 'a smaller model or dataset needs less'}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, ImportError) as error:
        if show_traceback:
            traceback.print_exc()
        print(f"dynamicgate: {error}", file=sys.stderr)
        return 2


def _parse(arguments: Sequence[str]) -> Any:
    """The command with its options; prints help or a parse error and exits where that is the answer."""
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        command = getattr(import_module(f"dynamicgate.lab.cli.{name}"), name.capitalize())
        return tyro.cli(command, prog=f"dynamicgate {name}", args=arguments[1:])
    return tyro.cli(_overview(), prog="dynamicgate", args=arguments, description=DESCRIPTION)


def _overview() -> Any:
    """All commands without their options, for `--help` and for the error about an unknown command."""
    stubs: list[Any] = []
    for name, summary in COMMANDS.items():
        stub = make_dataclass(name.capitalize(), [], frozen=True)
        stub.__doc__ = summary
        stubs.append(Annotated[stub, subcommand(name)])
    return reduce(or_, stubs)
