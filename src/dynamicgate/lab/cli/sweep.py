"""`dynamicgate sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, UseAppendAction, arg

from dynamicgate.lab.cli.engine_options import Machines
from dynamicgate.lab.cli.options import Training, this_command


@dataclass(frozen=True)
class Sweep:
    """Search for good hyperparameters of one model on validation data, in any number of processes.

    For example:
      dynamicgate sweep --data digits --model gate --budget 0.3 --trials 16 --out runs/sweep
      dynamicgate sweep --trials 32 --jobs 2 --out runs/sweep
      dynamicgate sweep --search lr=0.001:0.01:log --search block=1,2,4 --out runs/sweep

    Run the same command again to continue, with more --trials to search on, or beside the first one, here or on another
    machine that sees the folder, to help.
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder for the study, sweep.json and one subfolder for each trial."""
    model: Annotated[str, arg(metavar="NAME")] = "gate"
    """The model to train; `dynamicgate train --help` lists them."""
    trials: int = 16
    """Number of trials; the first has the settings given, each other one changes what is searched."""
    search: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=RANGE")] = ()
    """What to search, as lr=0.001:0.01:log, dropout=0:0.5 or block=1,2,4; repeat it for several. By default the
    learning rate, weight decay and dropout, and for gates their learning rate."""
    sampler: Literal["sobol", "tpe"] = "sobol"
    """What the next trial tries: the next point of a sequence that fills the space evenly, or (tpe) what earlier trials
    make likely, which then depends on which of them have ended."""
    pruner: Literal["first", "median", "none"] = "first"
    """When a trial is stopped: once it is worse than the first one was at the same epoch, or (median) worse than half
    of the earlier ones, which then depends on which of them have ended; or never."""
    study: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """The file of the study; by default study.journal in the folder."""
    seed: int = 0
    """Seed of every run and of the search."""
    machines: OmitArgPrefixes[Machines] = field(default_factory=Machines)
    training: OmitArgPrefixes[Training] = field(default_factory=Training)

    def run(self) -> int:
        """Run the trials, print the best."""
        from dynamicgate.lab.runner import sweep as runner  # here, because it needs Optuna
        from dynamicgate.lab.runner.search_space import read_parameter
        from dynamicgate.lab.runner.study import trial_folder

        asked = runner.new_sweep(
            self.training.settings([self.model], model=self.model, seed=self.seed),
            tuple(read_parameter(text) for text in self.search),
            self.trials,
            self.out,
            sampler=self.sampler,
            pruner=self.pruner,
            data_dir=self.training.data_dir,
            **({} if self.study is None else {"study": self.study}),
        )
        with self.machines.open() as engine:
            found = runner.sweep(asked, engine=engine, command=this_command())
        states = [row["state"] for row in found["runs"]]
        print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
        best = found["meta"]["best"]
        if best is not None:
            number = best["number"]
            print(f"best trial {number}: {runner.said(best['params'])}")
            print(f"valid {runner.said_quality(found['runs'][number]['valid'])}")
            print(f"test {runner.said_quality(best['quality'])} at {best['macs']['relative']:.4f} of the dense MACs")
            print(f"saved {trial_folder(self.out, number) / 'model.safetensors'}")
        return 0
