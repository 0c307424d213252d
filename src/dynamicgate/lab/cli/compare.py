"""`dynamicgate compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from dynamicgate.lab.cli.engine_options import Machines
from dynamicgate.lab.cli.options import Training, this_command
from dynamicgate.lab.report import render_table, write_report


@dataclass(frozen=True)
class Compare:
    """Train several models over several seeds, print a table and write a report.

    For example:
      dynamicgate compare --data digits --budget 0.3 --seeds 5 --out runs/digits
      dynamicgate compare --data mnist --data-dir DATA --models small,gate --budget 0.25 --seeds 3 --out runs/mnist
      dynamicgate compare --models rigl staged cascade staged-random --budget 0.05 --out runs/stages
      dynamicgate compare --engine ray --address 10.0.0.1:6379 --seeds 10 --out runs/digits

    Run the same command again to continue after an interruption: finished runs are not repeated.
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder for results.json, report.html and one subfolder for each run."""
    models: Annotated[tuple[str, ...], arg(metavar="NAMES")] = ("dense,small,dropout,static,gate,sparsify",)
    """Models to train, separated by commas or spaces; `dynamicgate train --help` lists them."""
    seeds: int = 5
    """Number of seeds; every model is trained with the same ones."""
    machines: OmitArgPrefixes[Machines] = field(default_factory=Machines)
    training: OmitArgPrefixes[Training] = field(default_factory=Training)

    def run(self) -> int:
        """Train all models, print the table, write the page."""
        from dynamicgate.lab.runner.comparison import compare

        names = [name.strip() for word in self.models for name in word.split(",") if name.strip()]
        if self.seeds < 1:
            raise ValueError(f"at least one seed is needed, received {self.seeds}")
        settings, folder = self.training.settings(names), self.training.data_dir
        with self.machines.open() as engine:
            results = compare(
                settings, names, range(self.seeds), self.out, data_dir=folder, command=this_command(), engine=engine
            )
        print(render_table(results))
        print(f"\nreport: {write_report(self.out)}")
        return 0
