"""Programs in processes of their own that find torch imported: each is forked from a process that did nothing else.

A new Python needs seconds to import torch, and many tests need a process to kill, to stop or to leave alone with its
warnings. Tests of how Python starts and of what is imported start a new Python.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# No module of this package that `import dynamicgate` does not import itself. The first count of MACs imports Dynamo and
# with it Triton: the tests of interpreted kernels, which Triton asks its environment for, start a new Python.
PRELOADED = [
    *("torch", "torch._dynamo", "sklearn.datasets", "rich"),
    *("dynamicgate.training", "dynamicgate.inference", "tests.forked"),
]
SECONDS = 300.0


class Ended(NamedTuple):
    """How a program ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Program:
    """A running program. `wait` for it, also after it was killed."""

    def __init__(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None) -> None:
        """Start it."""
        context = _forkserver()
        self.folder = tempfile.TemporaryDirectory()
        self.printed = [Path(self.folder.name) / name for name in ("out", "err")]
        given = (list(words), str(cwd or os.getcwd()), {**os.environ, **(env or {})}, list(map(str, self.printed)))
        self.process = context.Process(target=_run, args=given)
        self.process.start()

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """How it ended; AssertionError if it does not."""
        self.process.join(seconds)
        if late := self.poll() is None:
            self.kill()
            self.process.join()
        out, err = (path.read_bytes().decode(errors="replace") if path.exists() else "" for path in self.printed)
        self.folder.cleanup()
        code = self.poll()
        assert not late, f"still running after {seconds} seconds: {out[-1000:]}{err[-2000:]}"
        assert code is not None
        self.process.close()
        return Ended(code, out, err)


def start(words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Program:
    """Start a program by the words that follow `python`: a script, `-m MODULE` or `-c CODE`, and arguments. `env` is
    added to the environment."""
    return Program(words, cwd, env)


def run(
    words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Ended:
    """`start`, and wait for the end."""
    return start(words, cwd=cwd, env=env).wait(seconds)


def wait_for_all(programs: Sequence[Program], seconds: float = SECONDS) -> list[Ended]:
    """How programs that work together end; when one fails the others, which would wait for it, are killed."""
    until = time.monotonic() + seconds
    while any(program.poll() is None for program in programs) and time.monotonic() < until:
        if any(program.poll() for program in programs):
            time.sleep(1.0)  # the others may be about to fail for the same reason, and say so
            break
        time.sleep(0.01)
    for program in programs:
        program.kill()
    return [program.wait() for program in programs]


def call_in_two_processes(function: Callable[..., None], *arguments: object) -> None:
    """Call a function with 0 and with 1, and these arguments, each in a process; an error in one is raised here."""
    import torch

    _forkserver()
    torch.multiprocessing.start_processes(function, arguments, nprocs=2, start_method="forkserver")  # type: ignore[no-untyped-call]


def _forkserver() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(words: list[str], cwd: str, env: dict[str, str], printed: list[str]) -> None:
    """In the process: what Python does with these words. What was imported before is not searched by the garbage
    collector, and by whoever asks it for the holders of a module."""
    gc.freeze()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(printed, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    if threads := env.get("OMP_NUM_THREADS"):  # torch has read this variable already
        import torch

        torch.set_num_threads(int(threads))
    first, *rest = words
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")
