"""`sweep`: many trainings of one model with different hyperparameters, of which validation rows choose.

Any number of processes and machines may work on one study: each takes the next trial, until there are as many as were
asked for. A trial whose process was killed is continued by whoever comes next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from dynamicgate.files import environment, read_json, write_results
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import SPARSIFY, Settings, given, settings_hash
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.methods.train_one import run_one
from dynamicgate.lab.runner.comparison import check_one
from dynamicgate.lab.runner.scheduling import Engine
from dynamicgate.lab.runner.search_space import Parameter, check_space, usual_space, with_values
from dynamicgate.lab.runner.study import (
    PruneByEpoch,
    Pruner,
    Sampler,
    next_trial,
    open_study,
    trial_folder,
    values_of,
)

RESULTS = "sweep.json"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@dataclass(frozen=True)
class Sweep:
    """What is searched, and where its runs are. The number of trials and the places of files are no part of what it is:
    more trials may be asked for later."""

    settings: Settings
    space: tuple[Parameter, ...]
    trials: int
    folder: Path
    study: Path
    sampler: Sampler = "sobol"
    pruner: Pruner = "first"
    data_dir: Path | None = None

    def open(self) -> Study:
        """Its study, which is made if this is the first process."""
        splits = load(self)
        chosen = self.settings.resolved(splits)
        return open_study(
            self.study,
            self.space,
            {parameter.name: parameter.start(chosen) for parameter in self.space},
            sampler=self.sampler,
            pruner=self.pruner,
            warmup=given(chosen.epochs) // 3,
            seed=self.settings.seed,
            what={
                "settings": settings_hash(chosen, splits),
                "space": [parameter.to_json() for parameter in self.space],
                "sampler": self.sampler,
                "pruner": self.pruner,
            },
        )


def load(asked: Sweep) -> Splits:
    """The data of all trials."""
    settings = asked.settings
    return _load(settings.data, settings.seed, settings.data_options, asked.data_dir)


@lru_cache(maxsize=1)
def _load(data: str, seed: int, options: tuple[tuple[str, str], ...], data_dir: Path | None) -> Splits:
    return load_dataset(data, data_dir=data_dir, seed=seed, options=dict(options)).flat()


def new_sweep(settings: Settings, space: tuple[Parameter, ...], trials: int, folder: Path, **rest: Any) -> Sweep:
    """A sweep after all that can be wrong with it was looked at; an empty space is the usual one of the model."""
    if settings.model not in MODELS or settings.model in ("cascade", SPARSIFY):
        names = ", ".join(name for name in MODELS if name not in ("cascade", SPARSIFY))
        raise ValueError(f"a sweep trains one network a trial: expected one of {names}, received {settings.model!r}")
    if trials < 1:
        raise ValueError(f"at least one trial is needed, received {trials}")
    if settings.patience is not None:
        raise ValueError("a sweep stops trials itself, by their epochs: leave out patience")
    asked = Sweep(settings, space, trials, folder, **{"study": folder / "study.journal", **rest})
    if (folder / "trials").exists() and not asked.study.exists():
        raise ValueError(f"{folder} holds trials of a study that is gone, {asked.study}: delete {folder / 'trials'}")
    splits = load(asked)
    chosen = settings.resolved(splits)
    check_one(chosen, splits)
    asked = replace(asked, space=space or usual_space(chosen))
    check_space(asked.space)
    return asked


def sweep(asked: Sweep, *, engine: Engine | None = None, command: str = "") -> dict[str, Any]:
    """Run the trials that are missing, and write what is known to sweep.json; returns that.

    engine: None runs one trial after the other with all threads.
    """
    study = asked.open()
    ended = count_ended(study, asked.trials)
    print(f"{ended} of {asked.trials} trials found in {asked.study}", file=sys.stderr, flush=True)
    items = list(range(asked.trials - ended))
    done: Iterator[str | None]
    if engine is None:
        done = (run_next(asked, show=True) for _ in items)
    else:
        done = (line for _, line in engine.run(partial(_run_item, asked), items, shared=asked.folder))
    for line in done:
        if line is not None:
            print(f"[{count_ended(study, asked.trials)}/{asked.trials}] {line}", file=sys.stderr, flush=True)
    return write(asked, study, command)


def _run_item(asked: Sweep, _item: int) -> str | None:
    return run_next(asked)


def run_next(asked: Sweep, *, show: bool = False) -> str | None:
    """Run the next trial, whichever it is, and say what became of it; None where all are ended or in good hands."""
    study = asked.open()
    with next_trial(study, asked.trials, asked.folder, wait_for_first=asked.pruner == "first") as trial:
        return None if trial is None else run_trial(asked, study, trial, show=show)


def run_trial(asked: Sweep, study: Study, trial: Trial, *, show: bool) -> str:
    """Train one model, tell the study what it reached, and say so."""
    splits = load(asked)
    reported = study.get_trials(deepcopy=False)[trial.number].intermediate_values
    values = values_of(trial, asked.space)
    name = f"trial {trial.number}  {said(values)}"
    try:
        chosen = with_values(asked.settings, values).resolved(splits)
        check_one(chosen, splits)
        run = run_one(
            chosen,
            splits,
            trial_folder(asked.folder, trial.number),
            label=name,
            show=show,
            callbacks=[PruneByEpoch(trial, set(reported))],
        )
    except ValueError as error:  # these values cannot be trained: the loss diverged, or the budget does not allow them
        trial.set_user_attr("error", str(error))
        study.tell(trial, state=TrialState.FAIL)
        return f"{name}  failed: {error}"
    trial.set_user_attr("valid", run["valid"])
    trial.set_user_attr("steps", run["steps"])
    whole = given(chosen.epochs) * -(-len(splits.train) // given(chosen.batch))
    if run["steps"] < whole:
        study.tell(trial, state=TrialState.PRUNED)
        return f"{name}  stopped after {run['steps']} of {whole} steps"
    study.tell(trial, run["valid"][quality_name(run["valid"])])
    return f"{name}  valid {said_quality(run['valid'])}  MACs {run['valid']['relative']:.3f}"


def quality_name(quality: Mapping[str, float]) -> str:
    """What is best where it is highest: accuracy, or R2 of a regression."""
    return "accuracy" if "accuracy" in quality else "r2"


def said_quality(quality: Mapping[str, float]) -> str:
    """It, in words."""
    name = quality_name(quality)
    return f"{name} {quality[name]:.4f}"


def said(values: dict[str, Any]) -> str:
    """Hyperparameters in a few words."""
    texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def count_ended(study: Study, trials: int) -> int:
    """How many of the first trials need nothing more."""
    return sum(trial.state in ENDED for trial in study.get_trials(deepcopy=False)[:trials])


def write(asked: Sweep, study: Study, command: str) -> dict[str, Any]:
    """What is known of the study, in sweep.json: trials in the order of their numbers, and the best of them."""
    known = study.get_trials(deepcopy=False)[: asked.trials]
    complete = [trial for trial in known if trial.state == TrialState.COMPLETE]
    failed = [trial for trial in known if trial.state == TrialState.FAIL]
    if failed and len(failed) == len(known):
        raise ValueError(f"no trial could be trained; the first failed because {failed[0].user_attrs['error']}")
    best = max(complete, key=lambda trial: (trial.value, -trial.number), default=None)
    meta: dict[str, Any] = {
        **environment(command),
        "settings": asked.settings.to_json(),
        "space": [parameter.to_json() for parameter in asked.space],
        "sampler": asked.sampler,
        "pruner": asked.pruner,
        "best": None,
    }
    if best is not None:
        run = read_json(trial_folder(asked.folder, best.number) / "run.json")
        meta["best"] = {"number": best.number, "params": best.params, "quality": run["quality"], "macs": run["macs"]}
    rows = [row_of(trial) for trial in known]
    write_results(asked.folder / RESULTS, meta, rows)
    return {"meta": meta, "runs": rows}


def row_of(trial: FrozenTrial) -> dict[str, Any]:
    """A trial as sweep.json holds it: nothing that depends on the clock."""
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "params": trial.params,
        "valid": trial.user_attrs.get("valid"),
        "steps": trial.user_attrs.get("steps"),
        "epochs": [trial.intermediate_values[epoch] for epoch in sorted(trial.intermediate_values)],
        **({"error": trial.user_attrs["error"]} if "error" in trial.user_attrs else {}),
    }
