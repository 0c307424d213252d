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
from dynamicgate.lab.cli.spelling import wrong_command, wrong_option

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
        "sweep": "Search for good hyperparameters of one model on validation data, in any number of processes.",
        "continual": "Train models on a stream of tasks, print what they retain and write a report.",
        "measure": "Measure a saved model: quality, executed MACs of each layer, and how gates depend on the input.",
        "predict": "Predict the class of every row of a file with a saved model, and what each row costs.",
        "bench": "Time a saved model on this machine, compiled, against the compiled dense network asked for.",
        "export": "Write a saved model for runtimes without DynamicGate: ONNX, or an AOTInductor package.",
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
        command = parse(arguments)
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


def parse(arguments: Sequence[str]) -> Any:
    """The command with its options; prints help or a parse error and exits where that is the answer."""
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-") and name not in COMMANDS:
        raise ValueError(wrong_command(name, list(COMMANDS)))
    if name in COMMANDS:
        command = getattr(import_module(f"dynamicgate.lab.cli.{name}"), name.capitalize())
        if misspelt := wrong_option(command, arguments[1:]):
            raise ValueError(f"{misspelt} See `dynamicgate {name} --help`")
        return tyro.cli(command, prog=f"dynamicgate {name}", args=arguments[1:])
    return tyro.cli(_overview(), prog="dynamicgate", args=arguments, description=DESCRIPTION)


def _overview() -> Any:
    """All commands without their options, for `--help`."""
    stubs: list[Any] = []
    for name, summary in COMMANDS.items():
        stub = make_dataclass(name.capitalize(), [], frozen=True)
        stub.__doc__ = summary
        stubs.append(Annotated[stub, subcommand(name)])
    return reduce(or_, stubs)
