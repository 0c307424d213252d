"""The options that the commands of all experiments share, and what they do with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from dynamicgate.lab.runner import Experiment, Job, open_engine, run_jobs
from dynamicgate.lab.runner.engines import ENGINES
from dynamicgate.lab.runner.results import write_for_report
from dynamicgate.lab.runner.scheduling import Engine


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of running jobs."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and epochs; results are kept apart")
    parser.add_argument("--seeds", type=int, default=None, help="only the first few seeds of each table")
    parser.add_argument(
        "--jobs", type=int, default=None, help="runs in parallel, one thread each; by default all cores"
    )
    parser.add_argument("--engine", choices=ENGINES, default="pool", help="processes of this machine, or Ray")
    parser.add_argument("--address", default=None, help="of a Ray cluster; by default Ray is started on this machine")
    parser.add_argument("--gpus", type=float, default=0.0, help="of each run on Ray; 0.25 lets four runs share one")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with the data files")
    return parser


def asked_experiment(experiment: Experiment, args: argparse.Namespace) -> Experiment:
    """The experiment, or its quick version."""
    return replace(experiment, quick=args.quick)


def engine_of(args: argparse.Namespace) -> AbstractContextManager[Engine]:
    """What runs the jobs, as long as the block lasts."""
    return open_engine(args.engine, jobs=args.jobs, address=args.address, gpus=args.gpus)


def run_asked(
    experiment: Experiment,
    jobs: Sequence[Job],
    args: argparse.Namespace,
    command: str,
    more: Callable[[Job], Sequence[Job]] | None = None,
) -> None:
    """Run what is missing of these jobs, and leave what `dynamicgate report` reads; `more` as in `run_jobs`."""
    with engine_of(args) as engine:
        run_jobs(jobs, experiment.results, engine=engine, data_dir=args.data_dir, command=command, more=more)
    write_for_report(experiment.results, jobs)


def only(jobs: Sequence[Job], models: Sequence[str] | None) -> list[Job]:
    """The jobs of these models (--only), None: of all. A name that no table has would run nothing, and is a mistake."""
    if models is None:
        return list(jobs)
    known = list(dict.fromkeys(job.model for job in jobs))
    unknown = [name for name in models if name not in known]
    if unknown or not models:
        raise ValueError(f"--only names unknown models {'; '.join(unknown) or '(none)'}: there are {'; '.join(known)}")
    return [job for job in jobs if job.model in models]


def exit_code(main: Callable[[], None], module: str) -> int:
    """Run a command; a mistake in what was asked for is one sentence and 2."""
    try:
        main()
    except ValueError as error:
        print(f"{module}: {error}", file=sys.stderr)
        return 2
    return 0
