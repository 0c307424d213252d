"""The command line: train, compare, measure, bench, report, data. One file for each command."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from dynamicgate import __version__
from dynamicgate.lab.cli.bench import Bench
from dynamicgate.lab.cli.compare import Compare
from dynamicgate.lab.cli.data import Data
from dynamicgate.lab.cli.measure import Measure
from dynamicgate.lab.cli.report import Report
from dynamicgate.lab.cli.train import Train

Command = (
    Annotated[Train, subcommand("train")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Measure, subcommand("measure")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Data, subcommand("data")]
)


def main(arguments: Sequence[str]) -> int:
    """Parse and run one command; mistakes get a sentence, not a traceback (`--traceback` shows it)."""
    arguments = list(arguments)
    if arguments == ["--version"]:
        print(f"dynamicgate {__version__}")
        return 0
    show_traceback = "--traceback" in arguments
    arguments = [a for a in arguments if a != "--traceback"]
    description = "Conditional computation that pays: learned gates whose report and whose clock agree."
    command: Any = tyro.cli(Command, prog="dynamicgate", args=arguments, description=description)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill saves too
    try:
        return int(command.run())
    except KeyboardInterrupt:
        print("\ndynamicgate: stopped; the same command continues where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads the output has seen enough, e.g. `head`; Python must not try it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell says of a program that SIGPIPE ended
    except (ValueError, TypeError, OSError, ImportError) as error:
        if show_traceback:
            traceback.print_exc()
        print(f"dynamicgate: {error}", file=sys.stderr)
        return 2
