"""The study of a sweep in Optuna: what each trial tries, when it is stopped, and which trial is next. Needs `sweep`.

By default neither depends on how many processes take part. What a trial tries depends on its number alone (a scrambled
Sobol sequence), and it is stopped by comparison with trial 0 alone, which has the settings that the sweep starts from
and ends before any other begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from dynamicgate.lab.runner.search_space import Parameter, Value
from dynamicgate.training import Callback, RunInfo
from dynamicgate.training.folder_lock import InUseError, only_process

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.pruners import BasePruner, MedianPruner, NopPruner
    from optuna.samplers import BaseSampler, TPESampler
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial, TrialState

    from dynamicgate.lab.runner.journal_lock import JournalLock
except ImportError as error:
    raise ImportError("a sweep needs Optuna: pip install 'dynamicgate[sweep]'") from error

Sampler = Literal["sobol", "tpe"]
Pruner = Literal["first", "median", "none"]
NAME, WHAT = "dynamicgate", "what"
LOCK = ".trial.lock"
POLL_SECONDS = 0.5


def open_study(
    path: Path,
    space: Sequence[Parameter],
    start: Mapping[str, Value],
    *,
    sampler: Sampler,
    pruner: Pruner,
    warmup: int,
    seed: int,
    what: Mapping[str, Any],
) -> Study:
    """The study in a file, new or as others left it.

    start: what trial 0 tries. warmup: epochs before a trial may be stopped. what: identifies the sweep; ValueError if
    the file holds another one.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    pruners = {"first": lambda: FirstTrialPruner(warmup), "none": NopPruner}
    study = optuna.create_study(
        study_name=NAME,
        storage=_storage(path),
        direction="maximize",
        load_if_exists=True,
        sampler=NumberedSampler(space, start, sampler, seed),
        pruner=pruners.get(pruner, lambda: MedianPruner(n_startup_trials=4, n_warmup_steps=warmup))(),
    )
    asked = json.loads(json.dumps(what))
    found = study.user_attrs.get(WHAT)
    if found is None:
        study.set_user_attr(WHAT, asked)
    elif found != asked:
        apart = sorted(key for key in found.keys() | asked.keys() if found.get(key) != asked.get(key))
        raise ValueError(f"{path} holds a sweep with another {', '.join(apart)}: choose another folder for this one")
    return study


def _storage(path: Path) -> JournalStorage:
    """The journal: one JSON a line, to which processes and machines append."""
    try:
        return JournalStorage(JournalFileBackend(str(path), JournalLock(path)))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}): put back a copy of it, or delete it and the trials beside it to begin anew"
        ) from error


class NumberedSampler(BaseSampler):
    """Trial 0 tries `start`, every other one the next point of a Sobol sequence, or, by TPE, what the trials that have
    ended make likely."""

    def __init__(self, space: Sequence[Parameter], start: Mapping[str, Value], kind: Sampler, seed: int) -> None:
        """For a space; `seed` chooses the sequence."""
        self.space, self.first, self.kind, self.seed = tuple(space), dict(start), kind, seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All of it."""
        return {parameter.name: distribution(parameter) for parameter in self.space}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """What a trial tries."""
        if trial.number == 0:
            return self.first
        if self.kind == "tpe":  # a new one each time: its answer depends on the trials before, not on this process
            tpe = TPESampler(seed=self.seed + trial.number, constant_liar=True)
            return {name: tpe.sample_independent(study, trial, name, one) for name, one in sorted(search_space.items())}
        points = torch.quasirandom.SobolEngine(len(self.space), scramble=True, seed=self.seed)
        (places,) = points.fast_forward(trial.number - 1).draw(1, dtype=torch.float64).tolist()
        return {parameter.name: parameter.at(place) for parameter, place in zip(self.space, places, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never asked for: all parameters are known beforehand."""
        raise ValueError(f"{param_name} is not one of the parameters of this sweep")


def distribution(parameter: Parameter) -> BaseDistribution:
    """A parameter as Optuna knows it."""
    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    if parameter.is_whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def values_of(trial: Trial, space: Sequence[Parameter]) -> dict[str, Any]:
    """What a trial tries, also one whose process was killed before it had written all of that down."""
    found: dict[str, Any] = {}
    for one in space:
        if one.choices:
            found[one.name] = trial.suggest_categorical(one.name, one.choices)
        elif one.is_whole:
            found[one.name] = trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
        else:
            found[one.name] = trial.suggest_float(one.name, one.low, one.high, log=one.log)
    return found


class FirstTrialPruner(BasePruner):
    """Stops a trial whose validation accuracy over the last two epochs is below that of trial 0 at the same epochs.

    Not its best so far, as other pruners do: before gates have come down to their budget, accuracy is high.
    """

    def __init__(self, warmup: int) -> None:
        """warmup: epochs before that."""
        self.warmup = warmup

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to stop the trial now."""
        epoch, own = trial.last_step, trial.intermediate_values
        if epoch is None or epoch < max(1, self.warmup) or trial.number == 0:
            return False
        first = study.get_trials(deepcopy=False)[0].intermediate_values
        both = [at for at in (epoch - 1, epoch) if at in first and at in own]
        return sum(own[at] for at in both) < sum(first[at] for at in both)


class PruneByEpoch(Callback):
    """Reports the validation accuracy of every epoch (of a regression R2) to the study, which may stop the trial."""

    def __init__(self, trial: Trial, reported: set[int]) -> None:
        """reported: epochs that an earlier process, which was killed, has reported already."""
        self.trial, self.reported, self.steps_per_epoch = trial, set(reported), 1

    def on_start(self, run: RunInfo) -> None:
        """Know the length of an epoch."""
        self.steps_per_epoch = run.steps_per_epoch

    def on_log(self, row: dict[str, float], step: int) -> bool | None:
        """After an epoch: report, and ask."""
        name = "valid/accuracy" if "valid/accuracy" in row else "valid/r2"
        if name not in row:
            return None
        epoch = step // self.steps_per_epoch - 1
        if epoch not in self.reported:
            self.reported.add(epoch)
            self.trial.report(row[name], epoch)
        # an epoch that comes again, after a kill, was let pass the first time
        return epoch == max(self.reported) and self.trial.should_prune()


@contextmanager
def next_trial(study: Study, trials: int, folder: Path, *, wait_for_first: bool) -> Iterator[Trial | None]:
    """A trial that nobody else works on, to be told its result within the block: one that a process began which is no
    longer alive, or else a new one. None where `trials` of them exist and are ended or in good hands."""
    with ExitStack() as held:
        yield _claim(study, trials, folder, wait_for_first, held)


def _claim(study: Study, trials: int, folder: Path, wait_for_first: bool, held: ExitStack) -> Trial | None:
    while True:
        known = study.get_trials(deepcopy=False)
        for one in known[:trials]:
            if one.state == TrialState.RUNNING and _lock(folder, one.number, held):
                if study.get_trials(deepcopy=False)[one.number].state == TrialState.RUNNING:
                    return Trial(study, one._trial_id)
                held.close()  # its process ended it while we looked
        if known and wait_for_first and known[0].state == TrialState.RUNNING:
            time.sleep(POLL_SECONDS)
            continue
        if len(known) >= trials:
            return None
        created = study.ask()
        if created.number < trials and _lock(folder, created.number, held):
            return created
        if created.number >= trials:  # another process was faster
            created.set_user_attr("error", "more trials were begun than were asked for")
            study.tell(created, state=TrialState.FAIL)
            return None


def _lock(folder: Path, number: int, held: ExitStack) -> bool:
    try:
        held.enter_context(only_process(trial_folder(folder, number), LOCK))
    except InUseError:
        return False
    return True


def trial_folder(folder: Path, number: int) -> Path:
    """Where a trial leaves its run."""
    return folder / "trials" / f"{number:04d}"
