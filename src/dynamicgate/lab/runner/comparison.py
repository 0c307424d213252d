"""`compare`: models and their controls over paired seeds, in one folder that a report can be made from.

Every finished run is found again by the hash of its settings and its data, and not repeated; an interrupted one
continues from its checkpoint. Validation data decides, test data is measured once, at the end of a run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget import Budget
from dynamicgate.files import environment, write_results
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, given, settings_hash
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.methods.train_one import run_one
from dynamicgate.lab.runner.scheduling import Engine


@dataclass(frozen=True)
class Finished:
    """A finished run, and what it says about all runs of the comparison."""

    run: dict[str, Any]
    epochs: int
    hidden: tuple[int, ...]
    data: dict[str, Any]


def compare(
    settings: Settings,
    models: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    data_dir: Path | None = None,
    command: str = "",
    engine: Engine | None = None,
) -> dict[str, Any]:
    """All models over all seeds; results.json is complete after every run.

    engine: None trains one model after the other with all threads, an engine in parallel, with one thread each.
    """
    unknown = [name for name in models if name not in MODELS]
    if unknown or not models:
        raise ValueError(f"unknown models {', '.join(unknown) or '(none given)'}; choose from {', '.join(MODELS)}")
    twice = sorted({name for name in models if list(models).count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is asked for twice: name each model once")
    if not seeds:
        raise ValueError("at least one seed is needed")
    splits = load(settings, seeds[0], data_dir)
    check_all(replace(settings, seed=seeds[0]), models, splits)
    asked = [replace(settings, model=model, seed=seed) for seed in seeds for model in models]
    if engine is None:
        done = train_in_turn(asked, splits, out, data_dir)
    else:
        done = engine.run(partial(load_and_train, out=out, data_dir=data_dir), asked, shared=out)
    finished: dict[tuple[int, str], Finished] = {}
    for at, (one, found) in enumerate(done, start=1):
        finished[one.seed, one.model] = found
        quality, relative = found.run["quality"], found.run["macs"]["relative"]
        said = f"accuracy {quality['accuracy']:.2%}" if "accuracy" in quality else f"R2 {quality['r2']:.4f}"
        print(
            f"[{at}/{len(asked)}] {one.model} seed {one.seed}  {said}  MACs {relative:.3f}  "
            f"{found.run['seconds']:.0f} s{said_choice(found.run)}",
            file=sys.stderr,
            flush=True,
        )
        runs = [finished[key].run for seed in seeds for model in models if (key := (seed, model)) in finished]
        meta = {
            **environment(command),
            "budget": settings.budget,
            "seeds": list(seeds),
            "epochs": found.epochs,
            "hidden": list(found.hidden),
            "data": found.data,
        }
        results = {"meta": meta, "runs": runs}
        write_results(out / "results.json", meta, runs)
    return results


def said_choice(run: dict[str, Any]) -> str:
    """For a model that chose its recipe which one, and how many of its seconds that took."""
    choice = run.get("choice")
    return f", {choice['seconds']:.0f} s of them to choose {choice['recipe']}" if choice else ""


def train_in_turn(
    asked: Sequence[Settings], splits: Splits, out: Path, data_dir: Path | None
) -> Iterator[tuple[Settings, Finished]]:
    """One run after the other, with the data of the first; those of every further seed are loaded once."""
    seed = asked[0].seed
    for at, one in enumerate(asked, start=1):
        if one.seed != seed:
            seed, splits = one.seed, load(one, one.seed, data_dir)
        yield one, train(one, splits, out, label=f"[{at}/{len(asked)}] {one.model} seed {one.seed}")


def load_and_train(settings: Settings, *, out: Path, data_dir: Path | None) -> Finished:
    """One run in a process of its own, without a progress bar."""
    return train(settings, load(settings, settings.seed, data_dir), out)


def train(settings: Settings, splits: Splits, out: Path, label: str = "") -> Finished:
    """One run, in the folder that its settings and data give it; without a label there is no progress bar."""
    chosen = settings.resolved(splits)
    folder = Path("runs") / f"{chosen.model}-s{chosen.seed}-{settings_hash(chosen, splits)}"
    run = run_one(chosen, splits, out / folder, label=label, show=bool(label))
    return Finished({**run, "folder": folder.as_posix()}, given(chosen.epochs), given(chosen.hidden), splits.info())


def load(settings: Settings, seed: int, data_dir: Path | None) -> Splits:
    """The data of a run."""
    return load_dataset(settings.data, data_dir=data_dir, seed=seed, options=dict(settings.data_options)).flat()


def check_all(settings: Settings, models: Sequence[str], splits: Splits) -> None:
    """Build every model once: a mistake that only the last one shows should be known before the first is trained."""
    for name in models:
        check_one(replace(settings, model=name).resolved(splits), splits)


def check_one(chosen: Settings, splits: Splits) -> None:
    """Build a model from resolved settings; ValueError where its budget cannot be met or its run is too short."""
    model, budget, sparsifier, _ = MODELS[chosen.model](chosen, splits)
    if isinstance(budget, Budget):
        budget.bind(MacCounter.for_mlp(model), sparsifier)
    if sparsifier is not None:
        sparsifier.check_length(given(chosen.epochs) * math.ceil(len(splits.train) / given(chosen.batch)))
