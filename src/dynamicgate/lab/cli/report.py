"""`dynamicgate report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dynamicgate.lab.report import read_results, render_table, write_report


@dataclass(frozen=True)
class Report:
    """Write report.html from the results of `dynamicgate compare`.

    For example:
      dynamicgate report runs/digits
      dynamicgate report experiments/results --out all.html

    Needs neither torch nor the data.
    """

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """A folder with results.json, or one with several such folders below it: all go on one page."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Where to write the page; by default report.html in the folder."""

    def run(self) -> int:
        """Write the page and print the table."""
        path = write_report(self.folder, self.out)
        print(render_table(read_results(self.folder)))
        print(f"\nreport: {path}")
        return 0
