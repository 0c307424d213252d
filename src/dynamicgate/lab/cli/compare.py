"""`dynamicgate compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import OmitArgPrefixes

from dynamicgate.lab.cli.options import Training, this_command
from dynamicgate.lab.report import render_table, write_report
from dynamicgate.lab.runner.comparison import compare


@dataclass(frozen=True)
class Compare:
    """Train models and their controls over seeds, print the table and write the report.

    For example:

      dynamicgate compare --data digits --budget 0.3 --seeds 5 --out runs/digits
      dynamicgate compare --data mnist --data-dir DATA --models small,gate --budget 0.25 --seeds 3 --out runs/mnist

    Finished runs are not repeated, interrupted ones continue.
    """

    out: Path
    """Folder for results.json, report.html and one folder for each run."""
    models: str = "dense,small,dropout,static,gate"
    """Which models, separated by commas."""
    seeds: int = 5
    """How many seeds, paired over the models."""
    jobs: int = 1
    """Models trained in parallel, each with one thread; 1 trains one after the other with all threads."""
    training: OmitArgPrefixes[Training] = field(default_factory=Training)

    def run(self) -> int:
        """Train all, print the table, write the page."""
        names = [name.strip() for name in self.models.split(",") if name.strip()]
        if self.seeds < 1:
            raise ValueError(f"at least one seed is needed, received {self.seeds}")
        settings, folder = self.training.settings(), self.training.data_dir
        results = compare(
            settings, names, range(self.seeds), self.out, data_dir=folder, command=this_command(), jobs=self.jobs
        )
        print(render_table(results))
        print(f"\nreport: {write_report(self.out)}")
        return 0
