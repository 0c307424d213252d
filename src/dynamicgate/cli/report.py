"""`dynamicgate report`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from dynamicgate.report import render_table, write_report


@dataclass(frozen=True)
class Report:
    """Make report.html again from a folder with results.json.

    For example:

      dynamicgate report runs/digits
    """

    folder: Positional[Path]
    """A folder that `dynamicgate compare` wrote."""

    def run(self) -> int:
        """Write the page and print the table."""
        path = write_report(self.folder)
        print(render_table(json.loads((self.folder / "results.json").read_text(encoding="utf-8"))))
        print(f"\nreport: {path}")
        return 0
