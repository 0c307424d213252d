"""The engines that commands can choose from, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dynamicgate.lab.runner.pool import ProcessPool
from dynamicgate.lab.runner.ray_engine import on_ray
from dynamicgate.lab.runner.scheduling import Engine

ENGINES = ("pool", "ray")


@contextmanager
def open_engine(
    name: str = "pool", *, jobs: int | None = None, address: str | None = None, gpus: float = 0.0
) -> Iterator[Engine]:
    """The engine of this name, as long as the block lasts.

    jobs: tasks at once; None is one a core, of this machine or of the whole cluster. address, gpus: see `on_ray`.
    """
    if name not in ENGINES:
        raise ValueError(f"the engine must be one of {', '.join(ENGINES)}, received {name!r}")
    if name == "ray":
        with on_ray(address, jobs=jobs, gpus=gpus) as engine:
            yield engine
        return
    if address is not None or gpus:
        given = f"address {address}" if address is not None else f"gpus {gpus:g}"
        raise ValueError(f"{given} is for a Ray cluster: choose the engine ray as well")
    yield ProcessPool(jobs)
