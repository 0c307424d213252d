"""`dynamicgate report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from dynamicgate.lab.report import read_results, render_table, write_report


@dataclass(frozen=True)
class Report:
    """Make report.html from a folder with results.json, or from all results files below a folder.

    For example:

      dynamicgate report runs/digits
      dynamicgate report experiments/results --out all.html
    """

    folder: Positional[Path]
    """A folder that `dynamicgate compare` wrote, or one that holds several."""
    out: Path | None = None
    """Where to write the page; by default report.html in the folder."""

    def run(self) -> int:
        """Write the page and print the table."""
        path = write_report(self.folder, self.out)
        print(render_table(read_results(self.folder)))
        print(f"\nreport: {path}")
        return 0
