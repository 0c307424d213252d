"""`dynamicgate continual`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from dynamicgate.files import environment, read_json, write_results, write_text
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, Target, integers, loader_options, this_command
from dynamicgate.lab.methods.fields import STREAM_METHODS
from dynamicgate.lab.report.continual_page import continual_table, write_continual_report


@dataclass(frozen=True)
class Continual:
    """Train models on a stream of tasks, print what they retain and write a report.

    For example:
      dynamicgate continual --data digits --tasks 5 --models naive,er,keep,joint --out runs/stream
      dynamicgate continual --data mnist --stream rotated --tasks 10 --models naive,si,keep --out runs/rotated
      dynamicgate continual --data digits --stream split --models naive,lwf,er --out runs/classes

    Run the same command again to continue after Ctrl-C, a kill or a crash.
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder for results.json, report.html and a folder for each run."""
    models: Annotated[str, arg(metavar="NAMES", help=f"Separated by commas: {', '.join(STREAM_METHODS)}.")] = (
        "naive,er,keep,joint"
    )
    stream: Literal["permuted", "rotated", "split", "labels", "drifting"] = "permuted"
    """What changes from task to task: the order of features, the angle of images, the classes, their names, or the
    angle a little at every step."""
    tasks: int = 5
    """How many tasks; a split has as many as its classes give."""
    classes: int = 2
    """Classes in a task of a split."""
    scenario: Literal["class", "task", "domain"] = "class"
    """What is asked of a split: among all classes, or among those of the task."""
    known: Literal["boundaries", "nothing"] = "boundaries"
    """What is told in training."""
    horizon: Annotated[int | None, arg(metavar="STEPS", help_behavior_hint="")] = None
    """With --known nothing, after how many steps a context counts as learned."""
    data: Annotated[str, arg(metavar="NAME|PATH")] = "digits"
    """A known dataset (see `dynamicgate data list`), or the path of your own file or folder."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    hidden: Annotated[str, arg(metavar="WIDTHS")] = "256,256"
    """Widths of the hidden layers, such as 256 or 400,400."""
    width: int = 128
    """Units of each context of `keep`."""
    density: float = 0.3
    """Fraction of its connections that a context of `keep` ends with; it starts dense."""
    reuse: int = 0
    """How many contexts that are most like it a new one of `keep` reads."""
    memory: int = 200
    """Rows that er, der++ and a-gem keep."""
    rows: Annotated[int | None, arg(help_behavior_hint="")] = None
    """Training rows of every task; by default all."""
    epochs: int = 3
    batch: int = 128
    lr: float = 2e-3
    seeds: int = 1
    device: Annotated[str, arg(metavar="DEVICE")] = "auto"
    """auto, cpu or cuda."""

    def run(self) -> int:
        """Run what is missing, then print and write the report."""
        from dynamicgate.lab.datasets.loading import load_dataset
        from dynamicgate.lab.methods.stream_methods import scaled

        names = self.models.split(",")
        if unknown := [name for name in names if name not in STREAM_METHODS]:
            raise ValueError(f"unknown models {', '.join(unknown)}: expected some of {', '.join(STREAM_METHODS)}")
        if self.seeds < 1 or self.tasks < 1:
            raise ValueError(f"seeds and tasks must be 1 or more, received {self.seeds} and {self.tasks}")
        options = dict(loader_options(self.data_option, self.target, "--data-option"))
        runs = []
        for seed in range(self.seeds):
            splits = scaled(load_dataset(self.data, data_dir=self.data_dir, seed=seed, options=options))
            for name in names:
                runs.append({"model": name, "seed": seed, "data": self.data, **self._run_one(name, seed, splits)})
        meta = {"kind": "continual", **environment(this_command())}
        write_results(self.out / "results.json", meta, runs)
        print(continual_table(runs))
        print(f"\nreport: {write_continual_report(self.out)}")
        return 0

    def _run_one(self, name: str, seed: int, splits: Any) -> dict[str, Any]:
        from dynamicgate.lab.methods.stream_methods import run_stream, stream_of

        asked = self._asked(name)
        folder = self.out / f"{name}-s{seed}"
        finished = folder / "run.json"
        if finished.exists():
            stored: dict[str, Any] = read_json(finished)
            if stored["settings"] != asked:
                raise ValueError(f"{folder} holds a run with other settings: choose another --out, or delete it")
            return stored
        found = run_stream(stream_of(splits, asked, seed), {**asked, "show": True}, seed, device=self.device,
                           folder=folder)  # fmt: skip
        found["settings"] = asked
        write_text(finished, json.dumps(found))
        return found

    def _asked(self, name: str) -> dict[str, Any]:
        shared = {"stream": self.stream, "tasks": self.tasks, "classes": self.classes, "scenario": self.scenario,
                  "data": self.data, "known": self.known, "epochs": self.epochs, "batch": self.batch, "lr": self.lr,
                  "hidden": list(integers(self.hidden, "hidden")), "overlap": True}  # fmt: skip
        asked: dict[str, Any] = {"method": name, **shared}
        if self.rows is not None:
            asked["rows"] = self.rows
        if self.known == "nothing":
            of_contexts = name in ("keep", "xdg")
            asked |= {"horizon": self.horizon} if of_contexts else {"clock": "constant"}
        if name == "keep":
            asked |= {"width": self.width, "density": self.density, "reuse": self.reuse}
        if name in ("er", "der++", "a-gem"):
            asked["learner"] = {"rows": self.memory}
        return asked
