"""`dynamicgate paper`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from dynamicgate.lab.cli.options import this_command
from dynamicgate.lab.runner.command import run_paper


@dataclass(frozen=True)
class Paper:
    """Run the tables of the paper again and write docs/paper.md, in a checkout of DynamicGate.

    For example:

      dynamicgate paper all --quick       does everything run? results go to runs/paper-quick
      dynamicgate paper mnist
      dynamicgate paper cifar10/ours --device cuda --jobs 8
      dynamicgate paper page              only the page, from the results that are there

    Finished runs are found and not repeated, interrupted ones continue.
    """

    name: Positional[str]
    """mnist, cifar10, tiny-imagenet, speech, moe, pbmc3k or all; one recipe as mnist/published, mnist/written or
    mnist/ours; or page."""
    quick: bool = False
    """One seed, few rows, few epochs: minutes instead of hours, and results of their own."""
    seeds: int | None = None
    """Only the first so many seeds of each recipe."""
    jobs: int | None = None
    """Runs side by side, each with one thread; by default as many as there are cores."""
    device: str = "auto"
    """auto, cpu or cuda."""
    recipes: Path | None = None
    """Folder with the recipe files; by default experiments/paper of the checkout this runs in."""
    data_dir: Path | None = None
    """Folder with the data files; by default the variable DYNAMICGATE_DATA, else the cache folder of the platform."""

    def run(self) -> int:
        """Run what is missing, write the page."""
        return run_paper(
            self.name, quick=self.quick, seeds=self.seeds, jobs=self.jobs, device=self.device, recipes=self.recipes,
            data_dir=self.data_dir, command=this_command(),
        )  # fmt: skip
