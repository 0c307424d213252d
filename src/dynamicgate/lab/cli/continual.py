"""`dynamicgate continual`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from dynamicgate.files import environment, read_json, write_results, write_text
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, Target, integers, loader_options, this_command
from dynamicgate.lab.methods.fields import NEED_BOUNDARIES, OF_CONTEXTS, STREAM_METHODS, WITHOUT_STEPS
from dynamicgate.lab.report.continual_page import continual_table, write_continual_report

DEFAULTS: dict[str, Any] = {"tasks": 5, "classes": 2, "scenario": "class"}
HEEDED_BY = {
    "tasks": ("permuted", "rotated", "labels", "drifting"),
    "classes": ("split",),
    "scenario": ("split",),
    "by": ("grouped",),
}
"""Options that mean nothing to other streams."""
UNCHANGED = "does not grow old step by step: leave it out, or ask for --measure retention"


@dataclass(frozen=True)
class Continual:
    """Train models on a stream of tasks, print what they retain and write a report.

    For example:
      dynamicgate continual --data digits --tasks 5 --models naive,er,keep,separate,joint --out runs/stream
      dynamicgate continual --data mnist --stream rotated --tasks 10 --models naive,si,keep --out runs/rotated
      dynamicgate continual --data digits --stream split --models naive,lwf,er,readout --out runs/classes
      dynamicgate continual --data cells.h5ad --target type --stream grouped --by donor --out runs/donors
      dynamicgate continual --data digits --tasks 50 --measure plasticity --models dense,l2,redo,cbp,set --out runs/long

    Run the same command again to continue after Ctrl-C, a kill or a crash.
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder for results.json, report.html and a folder for each run."""
    models: Annotated[str, arg(metavar="NAMES", help=f"Separated by commas: {', '.join(STREAM_METHODS)}.")] = (
        "naive,er,keep,joint"
    )
    stream: Literal["permuted", "rotated", "split", "labels", "drifting", "grouped"] = "permuted"
    """What changes from task to task: the order of features, the angle of images, the classes, their names, the angle a
    little at every step, or the group of rows, such as their batch or donor, that a column of a file names."""
    tasks: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 5)")] = None
    """How many tasks; a split has as many as its classes give, a grouped stream as many as there are groups."""
    classes: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 2)")] = None
    """Classes in a task of a split."""
    scenario: Annotated[
        Literal["class", "task", "domain"] | None,
        arg(metavar="{class,task,domain}", help_behavior_hint="(default: class)"),
    ] = None
    """What is asked of a split: among all classes, or among those of the task."""
    by: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """With --stream grouped, the column that names the group of each row; of an .h5ad file, a column of obs."""
    known: Annotated[
        Literal["ids", "boundaries", "nothing"] | None,
        arg(metavar="{ids,boundaries,nothing}", help_behavior_hint="(default: boundaries)"),
    ] = None
    """What is told: the task of every row, in training and in testing; when a task ends, in training only; or nothing.
    In the scenario task it is always ids, and of a drifting stream nothing."""
    horizon: Annotated[int | None, arg(metavar="STEPS", help_behavior_hint="")] = None
    """With --known nothing, after how many steps a context counts as learned."""
    measure: Literal["retention", "plasticity"] = "retention"
    """What is looked at: what is left of old tasks, or how well rows are answered before the step on them as tasks go
    by. For plasticity the learning rate is constant, and the optimizer does not begin anew with a task."""
    references: bool = False
    """Train a fresh network on every task, and one on all tasks up to it, for plasticity and intransigence; this takes
    about half as many times as long as there are tasks."""
    data: Annotated[str, arg(metavar="NAME|PATH")] = "digits"
    """A known dataset (see `dynamicgate data list`), or the path of your own file or folder."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    hidden: Annotated[str, arg(metavar="WIDTHS")] = "256,256"
    """Widths of the hidden layers, such as 256 or 400,400."""
    width: int = 128
    """Units of each context of `keep`; `separate` has networks of as many weights."""
    density: float = 0.3
    """Fraction of its connections that a context of `keep` ends with; it starts dense."""
    reuse: int = 0
    """How many contexts that are most like it a new one of `keep` reads."""
    memory: int = 200
    """Rows that er, der++ and a-gem keep."""
    features: int = 1000
    """Random features that readout and balanced-readout read."""
    rows: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Training rows of every task; by default all."""
    epochs: int = 3
    batch: int = 128
    lr: float = 2e-3
    seeds: int = 1
    device: Annotated[str, arg(metavar="DEVICE")] = "auto"
    """auto, cpu or cuda."""

    def run(self) -> int:
        """Run what is missing, then print and write the report."""
        names = self.models.split(",")
        self._check(names)
        from dynamicgate.lab.datasets.loading import load_dataset
        from dynamicgate.lab.methods.streams import scaled

        options = dict(loader_options(self.data_option, self.target, "--data-option"))
        if self.by is not None:
            options["group"] = self.by
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

    @property
    def told(self) -> Literal["ids", "boundaries", "nothing"]:
        """What is known of the stream."""
        if self.stream == "drifting":
            return "nothing"
        if self.known is not None:
            return self.known
        return "ids" if self.stream == "split" and self.scenario == "task" else "boundaries"

    def _check(self, names: list[str]) -> None:
        """Refuse what does not go together before anything is trained."""
        if unknown := [name for name in names if name not in STREAM_METHODS]:
            raise ValueError(f"unknown models {', '.join(unknown)}: expected some of {', '.join(STREAM_METHODS)}")
        if self.seeds < 1 or (self.tasks is not None and self.tasks < 1):
            raise ValueError(f"seeds and tasks must be 1 or more, received {self.seeds} and {self.tasks}")
        for option in ("features", "rows", "batch"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ValueError(f"--{option} must be 1 or more, received {value}")
        if not 0.0 < self.density <= 1.0:
            raise ValueError(f"--density must be above 0 and at most 1, received {self.density}")
        for option, heeded_by in HEEDED_BY.items():
            value = getattr(self, option)
            if value is not None and self.stream not in heeded_by:
                raise ValueError(
                    f"--{option} {value} means nothing with --stream {self.stream}: it is for {', '.join(heeded_by)}"
                )
        self._check_groups()
        self._check_known(names)
        if self.measure == "plasticity" and (
            wrong := [n for n in names if n in (*OF_CONTEXTS, *WITHOUT_STEPS, "joint")]
        ):
            raise ValueError(f"--measure plasticity: {', '.join(wrong)} {UNCHANGED}")

    def _check_groups(self) -> None:
        if self.stream != "grouped":
            return
        if self.by is None:
            raise ValueError("--stream grouped needs --by COLUMN, the column that names the group of each row")
        from dynamicgate.lab.datasets.aligned import CELLS
        from dynamicgate.lab.datasets.table_file import SUFFIXES

        files = (*SUFFIXES, CELLS)
        if not self.data.lower().endswith(files):
            raise ValueError(
                f"--by names a column of a file ({', '.join(files)}), and --data {self.data} is none: give "
                "the path of a table or AnnData file"
            )

    def _check_known(self, names: list[str]) -> None:
        if self.stream == "drifting" and self.known not in (None, "nothing"):
            raise ValueError(
                f"--known {self.known}: a drifting stream has no tasks that could be told; leave --known out, or take "
                "--stream rotated"
            )
        if self.stream == "split" and self.scenario == "task" and self.told != "ids":
            raise ValueError(
                f"--known {self.known} contradicts --scenario task, in which the task of every row is told: leave "
                "--known out, or take --scenario class or domain"
            )
        if self.told != "nothing":
            if self.horizon is not None:
                raise ValueError(f"--horizon {self.horizon} is for --known nothing, received --known {self.told}")
            return
        if wrong := [name for name in names if name in NEED_BOUNDARIES]:
            raise ValueError(
                f"{', '.join(wrong)} must be told when a task ends, and nothing is known: leave it out, or use --known "
                "boundaries"
            )
        if self.horizon is None and (wrong := [name for name in names if name in OF_CONTEXTS]):
            raise ValueError(
                f"nothing is known, so that {', '.join(wrong)} cannot know when a context is learned: say with "
                "--horizon after how many steps"
            )

    def _run_one(self, name: str, seed: int, splits: Any) -> dict[str, Any]:
        from dynamicgate.continual.walk_file import stream_settings
        from dynamicgate.lab.methods.stream_runs import run_stream
        from dynamicgate.lab.methods.streams import stream_of

        asked = self._asked(name, splits)
        stream = stream_of(splits, asked, seed)
        rows = stream_settings(stream)["data"]
        folder = self.out / f"{name}-s{seed}"
        finished = folder / "run.json"
        if finished.exists():
            stored: dict[str, Any] = read_json(finished)
            if stored["settings"] != asked:
                raise ValueError(f"{folder} holds a run with other settings: choose another --out, or delete it")
            if stored.get("rows_digest", rows) != rows:  # absent in older files
                raise ValueError(
                    f"{folder} holds a run on other rows or labels (another --target, --data-option or a changed "
                    "file): choose another --out, or delete it"
                )
            return stored
        found = run_stream(stream, {**asked, "show": True}, seed, device=self.device, folder=folder)
        found |= {"settings": asked, "rows_digest": rows}
        write_text(finished, json.dumps(found))
        return found

    def _asked(self, name: str, splits: Any) -> dict[str, Any]:
        chosen = {
            key: default if getattr(self, key) is None else getattr(self, key) for key, default in DEFAULTS.items()
        }
        shared = {"stream": self.stream, **chosen, "data": self.data, "known": self.told, "epochs": self.epochs,
                  "batch": self.batch, "lr": self.lr, "hidden": list(integers(self.hidden, "hidden")),
                  "overlap": True}  # fmt: skip
        asked: dict[str, Any] = {"method": name, **shared}
        if self.rows is not None:
            asked["rows"] = self.rows
        if self.by is not None:
            asked["by"] = self.by
        if self.stream == "split" and not isinstance(splits.mean, float):
            asked["scale"] = "first task"
        if self.told == "nothing" and name != "joint":
            asked |= {"horizon": self.horizon} if name in OF_CONTEXTS else {"clock": "constant"}
        if self.measure == "plasticity":
            asked |= {"online": True, "clock": "constant", "new_optimizer": False}
        if self.references and name != "joint" and name not in WITHOUT_STEPS:
            asked["references"] = True
        if name in ("keep", "separate"):
            asked |= {"width": self.width, "density": self.density, "reuse": self.reuse}
        if name in ("er", "der++", "a-gem"):
            asked["learner"] = {"rows": self.memory}
        if name in WITHOUT_STEPS:
            asked["features"] = self.features
        return asked
