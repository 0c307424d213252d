"""A small sweep for tests. `python -m tests.lab.runner.sweeping FOLDER DATA TRIALS` makes it below a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dynamicgate.lab.methods import Settings
from dynamicgate.lab.runner.scheduling import Engine
from dynamicgate.lab.runner.search_space import read_parameter
from dynamicgate.lab.runner.sweep import RESULTS, new_sweep, sweep

SPACE = ("lr=0.001:0.05:log", "block=1,2,4", "dropout=0:0.5")


def run(folder: Path, data: Path, trials: int = 8, *, engine: Engine | None = None, **rest: Any) -> dict[str, Any]:
    """Run what is missing; returns sweep.json without what depends on when and where it was made."""
    settings = Settings(data=str(data), epochs=5, batch=40, hidden=(20,), budget=0.5)
    space = tuple(read_parameter(text) for text in SPACE)
    sweep(new_sweep(settings, space, trials, folder, **rest), engine=engine, command="a test")
    return content(folder)


def content(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / RESULTS).read_text())
    for key in ("created", "commit", "machine"):
        del found["meta"][key]
    return found


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
