"""What decides the result of a run, and the defaults of each data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch

from dynamicgate.data import Splits
from dynamicgate.gate import Policy


class Defaults(NamedTuple):
    """What suits a data set: chosen on validation data, the same for every model."""

    hidden: tuple[int, ...] = (256,)
    epochs: int = 30
    batch: int = 128
    lr: float = 3e-3


DEFAULTS = {"digits": Defaults((128,), epochs=60, batch=32, lr=4e-3), "mnist": Defaults((256,), epochs=20)}
GATE_SHARE = 0.28  # of the budget: more rank reads the input better, but its cost is taken from the units


@dataclass(frozen=True)
class Settings:
    """What decides the result of one run; zero or empty means: the default for this data set."""

    data: str = "digits"
    model: str = "gate"
    seed: int = 0
    budget: float = 0.3
    hidden: tuple[int, ...] = ()
    epochs: int = 0
    batch: int = 0
    lr: float = 0.0
    weight_decay: float = 0.05
    dropout: float = 0.1
    block: int = 1
    net: str = "low-rank"
    rank: int = 0
    policy: Policy = "gumbel"
    tau: float = 1.0
    theta: float = 0.5
    scale: bool = False
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False
    balanced: bool = False
    patience: int | None = None
    data_options: tuple[tuple[str, str], ...] = ()

    def resolved(self, splits: Splits) -> Settings:
        """With the defaults of the data set filled in."""
        usual = DEFAULTS.get(splits.name, Defaults())
        found = replace(
            self,
            hidden=self.hidden or usual.hidden,
            epochs=self.epochs or usual.epochs,
            batch=self.batch or min(usual.batch, len(splits.train)),
            lr=self.lr or usual.lr,
        )
        if not 0.0 < found.budget <= 1.0:
            raise ValueError(
                f"a budget is a share of the dense MACs: expected 0 < budget <= 1, received {found.budget}"
            )
        if any(width < 1 for width in found.hidden):
            raise ValueError(f"hidden widths must be 1 or more, received {found.hidden}")
        return found if found.rank else replace(found, rank=_affordable_rank(found, splits))


def dense_macs(sizes: Sequence[int]) -> int:
    """MACs of an MLP with these layer sizes."""
    return sum(a * b for a, b in pairwise(sizes))


def settings_hash(settings: Settings, splits: Splits) -> str:
    """Runs are found by what they were asked to do, and to which data."""
    values = asdict(settings)
    if not settings.data_options:
        del values["data_options"]  # runs from before there were such options are found again
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4)
    for part in (splits.train, splits.valid, splits.test):
        sample = torch.arange(len(part))[:: max(1, len(part) // 1000)]
        digest.update(part.rows(sample).numpy().tobytes())
        digest.update(part.y.numpy().tobytes())
    return digest.hexdigest()


def _affordable_rank(settings: Settings, splits: Splits) -> int:
    sizes = (splits.train.features, *settings.hidden)
    cost_per_rank = sum(a + b for a, b in pairwise(sizes))
    return max(2, min(32, round(GATE_SHARE * settings.budget * dense_macs((*sizes, splits.classes)) / cost_per_rank)))
