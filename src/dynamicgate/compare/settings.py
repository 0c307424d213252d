"""What decides the result of a run, and the defaults of each data set."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch

from dynamicgate.data import Splits
from dynamicgate.gate import Policy


class Defaults(NamedTuple):
    """What suits a data set: chosen on validation data, the same for every model but for `SPARSE_LR`."""

    hidden: tuple[int, ...] = (256,)
    epochs: int = 30
    batch: int = 128
    lr: float = 3e-3


DEFAULTS = {"digits": Defaults((128,), epochs=60, batch=32, lr=4e-3), "mnist": Defaults((256,), epochs=20)}
GATE_SHARE = 0.28  # of the budget: more rank reads the input better, but its cost is taken from the units
SPARSE = ("pruned", "static-sparse", "set", "rigl", "gate+rigl")
FUSED = "gate+rigl"
FUSED_BLOCK = 16
FUSED_DENSITY = 1.2  # times the budget: about two thirds of the units are then open
FUSED_GATE_SHARE = 0.2  # of the budget
SPARSE_LR = 5 / 3  # times the usual rate: few connections bear larger steps
PERIOD = 100
UPDATES = 10  # in a short run, at least


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
    block: int = 0
    net: str = "auto"
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
    density: float = 0.0
    gate_density: float = 0.0
    structure: str = "unstructured"
    sparse_output: bool = False
    every: int = 0

    def resolved(self, splits: Splits) -> Settings:
        """With the defaults of the data set filled in."""
        usual = DEFAULTS.get(splits.name, Defaults())
        found = replace(
            self,
            hidden=self.hidden or usual.hidden,
            epochs=self.epochs or usual.epochs,
            batch=self.batch or min(usual.batch, len(splits.train)),
            lr=self.lr or usual.lr * (SPARSE_LR if self.model in SPARSE else 1.0),
        )
        if not 0.0 < found.budget <= 1.0:
            raise ValueError(
                f"a budget is a share of the dense MACs: expected 0 < budget <= 1, received {found.budget}"
            )
        if any(width < 1 for width in found.hidden):
            raise ValueError(f"hidden widths must be 1 or more, received {found.hidden}")
        fused = found.model == FUSED
        found = replace(
            found,
            block=found.block or (FUSED_BLOCK if fused else 1),
            net=("linear" if fused else "low-rank") if found.net == "auto" else found.net,
            rank=found.rank or _affordable_rank(found, splits),
        )
        return _with_densities(found, splits) if found.model in SPARSE else found


LATER = ("data_options", "density", "gate_density", "structure", "sparse_output", "every")


def dense_macs(sizes: Sequence[int]) -> int:
    """MACs of an MLP with these layer sizes."""
    return sum(a * b for a, b in pairwise(sizes))


def settings_hash(settings: Settings, splits: Splits) -> str:
    """Runs are found by what they were asked to do, and to which data."""
    values = asdict(settings)
    for name in LATER:  # runs from before there were such options are found again
        if values[name] == getattr(Settings, name):
            del values[name]
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4)
    for part in (splits.train, splits.valid, splits.test):
        sample = torch.arange(len(part))[:: max(1, len(part) // 1000)]
        digest.update(part.rows(sample).numpy().tobytes())
        digest.update(part.y.numpy().tobytes())
    return digest.hexdigest()


def _with_densities(s: Settings, splits: Splits) -> Settings:
    """Densities that spend the budget, and a period that fits the run."""
    sizes = (splits.train.features, *s.hidden, splits.classes)
    full, output = dense_macs(sizes), 0 if s.sparse_output else sizes[-2] * sizes[-1]
    density, gate_density = s.density, s.gate_density
    if s.model == FUSED:
        gates = sum(a * math.ceil(b / s.block) for a, b in pairwise(sizes[:-1]))
        density = density or min(1.0, FUSED_DENSITY * s.budget)
        gate_density = gate_density or min(1.0, FUSED_GATE_SHARE * s.budget * full / gates)
    elif not density:
        density = min(1.0, (s.budget * full - output) / (full - output))
        if density <= 0.0:
            raise ValueError(f"a budget of {s.budget} does not even pay for the dense output layer: ask for more")
    steps = s.epochs * math.ceil(len(splits.train) / s.batch)
    every = s.every or max(1, min(PERIOD, int(0.75 * steps / UPDATES)))
    return replace(s, density=density, gate_density=gate_density, every=every)


def _affordable_rank(settings: Settings, splits: Splits) -> int:
    sizes = (splits.train.features, *settings.hidden)
    cost_per_rank = sum(a + b for a, b in pairwise(sizes))
    return max(2, min(32, round(GATE_SHARE * settings.budget * dense_macs((*sizes, splits.classes)) / cost_per_rank)))
