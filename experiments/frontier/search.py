"""The search for learning rate, dropout and alternatives: the same rule for every method (protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FACTOR = 2.0  # between two learning rates
START = (-1, 0, 1)
EXTENSIONS = 3
DROPOUT = 0.2


class Trial(NamedTuple):
    """One setting. step: how many factors above the learning rate of the dataset. other: which alternative, from 1 on;
    0 is the usual."""

    step: int
    dropout: float = 0.0
    other: int = 0


class Score(NamedTuple):
    """What a setting reached on validation rows; the better one is the greater."""

    accuracy: float
    minus_loss: float


Tried = Mapping[Trial, Score | None]
"""None: the method cannot meet the budget."""


def all_trials(alternatives: int = 1) -> list[Trial]:
    """Every setting that a search can come to."""
    steps = range(START[0] - EXTENSIONS, START[-1] + EXTENSIONS + 1)
    others = range(alternatives + 1)
    return [Trial(step, dropout, other) for other in others for dropout in (0.0, DROPOUT) for step in steps]


def next_trials(tried: Tried, alternatives: int = 1, close: float = 0.0) -> list[Trial]:
    """What to try next; nothing where the search has ended. close: how much less accurate than the best rate one at the
    edge may be to count as the best."""
    if missing := [Trial(step) for step in START if Trial(step) not in tried]:
        return missing
    if best_of(tried) is None:
        return []
    rates = {trial.step: score for trial, score in tried.items() if trial == Trial(trial.step) and score}
    best, steps = max(rates, key=lambda step: rates[step]), sorted(rates)
    edge = max(steps[0], steps[-1], key=lambda step: rates[step])
    near = edge == best or rates[edge].accuracy > rates[best].accuracy - close
    if near and len(steps) < len(START) + EXTENSIONS:
        return [Trial(edge - 1 if edge == steps[0] else edge + 1)]
    with_dropout = Trial(best, DROPOUT)
    if with_dropout not in tried:
        return [with_dropout]
    score, plain = tried[with_dropout], rates[best]
    dropout = DROPOUT if score and score > plain else 0.0
    others = [Trial(best, dropout, other) for other in range(1, alternatives + 1)]
    return [trial for trial in others if trial not in tried]


def best_of(tried: Tried) -> Trial | None:
    """The best setting; None where no one is possible."""
    scores = {trial: score for trial, score in tried.items() if score is not None}
    return max(scores, key=lambda trial: scores[trial]) if scores else None


def is_at_edge(tried: Tried, trial: Trial) -> bool:
    """Whether the learning rate of a setting is the lowest or the highest of those tried."""
    steps = [one.step for one, score in tried.items() if score is not None]
    return trial.step in (min(steps), max(steps))


def least_left(tried: Tried, alternatives: int = 1, close: float = 0.0) -> int:
    """How many more runs a search takes for each seed, if the best learning rate is not at the edge."""
    if not next_trials(tried, alternatives, close):
        return 0
    return max(1, len(START) + 1 + alternatives - len(tried))


def most_left(tried: Tried, alternatives: int = 1, close: float = 0.0) -> int:
    """How many more runs a search may take at most, for each seed."""
    if not next_trials(tried, alternatives, close):
        return 0
    return len(START) + EXTENSIONS + 1 + alternatives - len(tried)
