"""Where runs are made: the options of commands that train many models."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

if TYPE_CHECKING:
    from dynamicgate.lab.runner.scheduling import Engine


@dataclass(frozen=True)
class Machines:
    """In how many processes, and on which machines."""

    jobs: Annotated[int | None, arg(help_behavior_hint="")] = None
    """Models trained in parallel, each with one thread. By default one after the other with all threads, and on a Ray
    cluster as many as it has cores."""
    engine: Literal["pool", "ray"] = "pool"
    """What trains in parallel: processes of this machine, or Ray."""
    address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """The head node of a Ray cluster, or auto on a machine that belongs to one; by default Ray is started here."""
    gpus: float = 0.0
    """GPUs of each model that is trained by Ray; 0.25 lets four of them share one."""

    def open(self) -> AbstractContextManager[Engine | None]:
        """The engine as long as the block lasts; None trains one model after the other in this process."""
        if self.engine == "pool" and self.jobs in (None, 1) and self.address is None and not self.gpus:
            return nullcontext()
        from dynamicgate.lab.runner.engines import open_engine

        return open_engine(self.engine, jobs=self.jobs, address=self.address, gpus=self.gpus)
