"""Run tasks on the machines of a Ray cluster. Needs the extra `ray`.

Ray finds the machines, hands out tasks and repeats those of a machine that was lost; a repeated run continues from its
checkpoint. All machines need the same packages and see the same folders under the same paths, as on a cluster with a
network file system.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamicgate.lab.runner.pool import available_cores, one_thread
from dynamicgate.lab.runner.scheduling import R, T, as_they_finish

OBJECT_STORE = 100 * 2**20  # bytes; tasks return a few numbers


@contextmanager
def on_ray(address: str | None = None, *, jobs: int | None = None, gpus: float = 0.0) -> Iterator[RayEngine]:
    """Connect to a Ray cluster, and leave it at the end; where the program has connected already, that one is used and
    left as it is.

    address: of the head node, such as "10.0.0.1:6379", or "auto" on a machine of the cluster; None starts Ray on this
        machine alone. jobs: the most tasks at once. gpus: of each task; 0.25 lets four share one. With 0 tasks do not
        see any.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"at least one job at a time is needed, received {jobs}")
    if not math.isfinite(gpus) or gpus < 0:
        raise ValueError(f"gpus is the number of GPUs of each job, 0 or more, received {gpus}")
    ray = _import_ray()
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"this program is connected to a Ray cluster already: leave out the address {address}")
        yield RayEngine(ray, jobs, gpus)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what people run is nobody else's business
    alone = {"num_cpus": jobs or available_cores(), "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    try:
        if address is not None:
            _check_answers(address)
        ray.init(address=address or "local", logging_level="ERROR", **({} if address else alone))
    except OSError as error:
        raise ValueError(
            f"no Ray cluster answers at {address}: start one with `ray start --head` and give the address it prints"
        ) from error
    try:
        yield RayEngine(ray, jobs, gpus)
    finally:
        ray.shutdown()  # also ends the tasks that are still running


@dataclass(frozen=True)
class RayEngine:
    """The engine of a Ray cluster that this process is connected to; see `on_ray`."""

    ray: Any
    jobs: int | None
    gpus: float

    @property
    def workers(self) -> int:
        """How many tasks run at once: machines may come and go."""
        return min(self._places(), self.jobs or self._places())

    def _places(self) -> int:
        found = self.ray.cluster_resources()
        places = found.get("CPU", 0.0)
        if self.gpus:
            places = min(places, found.get("GPU", 0.0) / self.gpus)
        return max(1, int(places))

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        more: Callable[[T], Sequence[T]] | None = None,
        shared: Path | None = None,
    ) -> Iterator[tuple[T, R]]:
        """See `Engine.run`."""
        if self.gpus and self.ray.cluster_resources().get("GPU", 0.0) < min(1.0, self.gpus):
            raise ValueError(f"no machine of the Ray cluster has a GPU, and every job needs {self.gpus}")
        remote = self.ray.remote(num_cpus=1, num_gpus=self.gpus)(run_task)
        with _mark_in(shared) as mark:
            given = self.ray.put((task, Path.cwd(), mark))  # once, not with every item
            for item, reference in as_they_finish(
                items,
                start=lambda item: remote.remote(given, item),
                wait=lambda started: self.ray.wait(started, num_returns=1)[0],
                # one more than can run, so that no machine waits for this one, and a cluster that grows has a reason to
                at_once=lambda: self.jobs or self.workers + 1,
                more=more,
            ):
                yield item, self._result(reference)

    def _result(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error  # as if it had happened here
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ConnectionError(
                f"a machine of the Ray cluster could not finish its task: {reason[-1]}. If it was lost, the same "
                "command continues; if a module is missing, install the same packages on all machines"
            ) from error


def run_task(given: tuple[Callable[[T], R], Path, Path | None], item: T) -> R:
    """One task in a process of a Ray worker, in the folder that the command was given in."""
    task, folder, mark = given
    for path in (folder, mark):
        if path is not None and not path.exists():
            seen = folder if path is folder else path.parent
            raise ValueError(
                f"{socket.gethostname()} does not see {seen}: machines of a Ray cluster write into one folder, so put "
                "it on a file system that all of them have, under the same path"
            )
    os.chdir(folder)
    one_thread()
    return task(item)


@contextmanager
def _mark_in(folder: Path | None) -> Iterator[Path | None]:
    """A file with a new name in a folder, by which other machines know that they see the same one."""
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder.resolve() / f".seen-{secrets.token_hex(4)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _check_answers(address: str) -> None:
    """An error at once where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10.0).close()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("the engine ray needs Ray: pip install 'dynamicgate[ray]'") from error
    return ray
