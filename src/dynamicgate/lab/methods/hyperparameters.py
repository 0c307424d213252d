"""Everything that decides the result of a run, the defaults for each dataset, and the hash a run is found by."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch

from dynamicgate.choices import Distribution, PlanName
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.fields import SPARSIFY as SPARSIFY
from dynamicgate.lab.methods.fields import STAGED as STAGED
from dynamicgate.lab.methods.fields import Hyperparameters as Hyperparameters
from dynamicgate.lab.methods.ranges import check_memory, check_ranges, check_sizes, check_task
from dynamicgate.presets import PLANS, stage_costs
from dynamicgate.presets import sparsify as presets
from dynamicgate.presets.stages import INITIAL_DENSITY
from dynamicgate.training.fingerprint import hash_data

T = TypeVar("T")


class Defaults(NamedTuple):
    """What suits a dataset: chosen on validation data, the same for every model except for `SPARSE_LR_SCALE`."""

    hidden: tuple[int, ...] = (256,)
    epochs: int = 30
    batch: int = 128
    lr: float = 3e-3


DEFAULTS = {
    "digits": Defaults((128,), epochs=60, batch=32, lr=4e-3),
    "mnist": Defaults((256,), epochs=20),
    **dict.fromkeys(("cifar10", "tiny-imagenet", "speech-commands", "pbmc3k"), Defaults()),
}
LEAST_STEPS = 500  # of any training by default: sparse models have hardly moved a connection in 30
LEAST_BATCH, LEAST_STEPS_OF_EPOCH = 16, 16
GATE_FRACTION = 0.1  # of the budget: a higher rank reads the input better, but leaves fewer MACs for the units
ALWAYS_OPEN = 0.5  # of what the budget pays for
SPARSE = ("pruned", "static-sparse", "set", "rigl", "gate+rigl", *STAGED)
GATED_SPARSE = "gate+rigl"
SPARSE_LR_SCALE = 5 / 3  # sparse layers tolerate larger steps
PERIOD = 100  # optimizer steps between two mask updates
MIN_UPDATES = 10  # of the mask, in a short run


@dataclass(frozen=True)
class Settings(Hyperparameters):
    """One run: its hyperparameters, its data, its model and its seed."""

    data: str = "digits"
    model: str = "gate"
    seed: int = 0
    hidden: tuple[int, ...] | None = None
    data_options: tuple[tuple[str, str], ...] = ()

    def resolved(self, splits: Splits) -> Settings:
        """With the defaults of the dataset and the model filled in."""
        if not 0.0 < self.budget <= 1.0:
            raise ValueError(
                f"a budget is a fraction of the dense MACs: expected 0 < budget <= 1, received {self.budget}"
            )
        check_ranges(asdict(self))
        check_task(asdict(self), splits.is_regression)
        usual = usual_for(splits)
        fused = self.model == GATED_SPARSE
        batch = _or(self.batch, min(usual.batch, len(splits.train)))
        found = replace(self, hidden=_or(self.hidden, usual.hidden), batch=batch, epochs=_or(self.epochs, usual.epochs))
        check_memory((splits.train.features, *given(found.hidden), splits.classes))
        if self.model == SPARSIFY:  # the rest depends on which recipe is chosen
            check_sizes(asdict(found), (splits.train.features, *given(found.hidden), splits.classes))
            return found
        found = replace(
            found,
            widen=_or(self.widen, self._usual_widen()),
            lr=_or(self.lr, usual.lr * (SPARSE_LR_SCALE if self.model in SPARSE else 1.0)),
        )
        if any(width < 1 for width in (*given(found.hidden), *found.widths)):
            raise ValueError(f"hidden widths must be 1 or more, received {found.hidden} widened by {found.widen}")
        check_memory((splits.train.features, *found.widths, splits.classes))
        check_sizes(asdict(found), (splits.train.features, *found.widths, splits.classes))
        found = replace(
            found,
            block=_or(found.block, presets.BLOCK if fused else 1),
            net=("linear" if fused else "low-rank") if found.net == "auto" else found.net,
            policy="hard" if found.policy == "auto" else found.policy,
            always_open=_or(found.always_open, ALWAYS_OPEN if found.model == "gate" and not found.soft_width else 0.0),
            rank=_or(found.rank, _affordable_rank(found, splits)),
        )
        if found.model in STAGED:
            return _with_stages(found, splits)
        if found.model in SPARSE:
            return _with_densities(found, splits)
        return replace(found, output="dense", distribution="uniform", widen=1.0)

    def _usual_widen(self) -> float:
        if self.model == GATED_SPARSE:
            return presets.spending(self.budget).widen
        if self.model in STAGED:  # as wide as a network that costs as much as all stages together
            return presets.spending(sum(stage_costs(PLANS[_or(self.stages, "three")], self.budget))).widen
        return 1.0

    @property
    def widths(self) -> tuple[int, ...]:
        """The hidden widths of the model; those of the network it is compared with are `hidden`."""
        return tuple(round(_or(self.widen, 1.0) * width) for width in given(self.hidden))

    def to_json(self) -> dict[str, Any]:
        """As JSON stores it."""
        return json.loads(json.dumps(asdict(self)))

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


def usual_for(splits: Splits) -> Defaults:
    """The defaults of a known dataset. Those of any other make sure that small tables are trained long enough: batches
    small enough for 16 steps an epoch, and epochs enough for 500 steps, the same for every model."""
    if splits.name in DEFAULTS:
        return DEFAULTS[splits.name]
    usual, rows, batch = Defaults(), len(splits.train), Defaults().batch
    while batch > LEAST_BATCH and math.ceil(rows / batch) < LEAST_STEPS_OF_EPOCH:
        batch //= 2
    return usual._replace(batch=batch, epochs=max(usual.epochs, math.ceil(LEAST_STEPS / math.ceil(rows / batch))))


def given(value: T | None) -> T:
    """A setting that has a value once settings are resolved."""
    if value is None:
        raise ValueError("a setting has no value yet: expected resolved settings, call Settings.resolved(splits) first")
    return value


def no_gates_note(s: Settings) -> str:
    """Why gate+rigl has no gates at its budget."""
    return f"no gates: a budget of {s.budget:g} pays for fewer than {presets.MIN_GATE_INPUTS} inputs for each of them"


def dense_macs(sizes: Sequence[int]) -> int:
    """MACs of an MLP with these layer sizes."""
    return sum(a * b for a, b in pairwise(sizes))


def own_budget(s: Settings, splits: Splits) -> float:
    """The budget relative to the model's own dense MACs, which are more where it is wider than what it is compared
    with."""
    asked, own = ((splits.train.features, *widths, splits.classes) for widths in (given(s.hidden), s.widths))
    return s.budget * dense_macs(asked) / dense_macs(own)


def settings_hash(settings: Settings, splits: Splits) -> str:
    """Identifies a run: the settings that differ from their defaults, and all rows of the data. A new field with a
    default leaves the hash of earlier runs as it was."""
    digest = hashlib.blake2b(json.dumps(settings.changed(), sort_keys=True).encode(), digest_size=4)
    for part in (splits.train, splits.valid, splits.test):
        digest.update(hash_data(part).encode())
    for constants in (splits.mean, splits.std):
        digest.update(repr(torch.as_tensor(constants).tolist()).encode())
    return digest.hexdigest()


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _with_densities(s: Settings, splits: Splits) -> Settings:
    """Densities that use up the budget, and a period that fits the run."""
    fused = s.model == GATED_SPARSE
    if s.gate_density is not None and not s.gate_density > 0.0:
        raise ValueError(
            f"gate_density must be positive, received {s.gate_density}: leave it out for the default, and for no gates "
            "train rigl with an initial_density of 1"
        )
    sizes = (splits.train.features, *s.widths, splits.classes)
    full, last = dense_macs(sizes), sizes[-2] * sizes[-1]
    affordable = own_budget(s, splits) * full
    sparse_output = presets.sparse_output(last, affordable) if s.output == "auto" else s.output == "sparse"
    density, gate_density = s.density, s.gate_density
    if fused or density is None:
        blocks = [math.ceil(width / given(s.block)) for width in s.widths] if fused else []
        gates = sum(a * b for a, b in zip(sizes, blocks, strict=False))
        usual = presets.spending(s.budget)
        spend = usual._replace(
            gate_fraction=_or(s.gate_fraction, usual.gate_fraction), open_rate=_or(s.open_rate, usual.open_rate)
        )
        found = presets.affordable_densities(
            affordable, full, 0 if sparse_output else last, gates, sum(blocks), spend,
            always=fused and bool(gate_density or s.gate_fraction),
        )  # fmt: skip
        density, gate_density = _or(density, found.layers), _or(gate_density, found.gates)
    steps = given(s.epochs) * math.ceil(len(splits.train) / given(s.batch))
    distribution: Distribution = presets.DISTRIBUTION if fused else "uniform"
    return replace(
        s,
        density=density,
        initial_density=_or(s.initial_density, presets.INITIAL_DENSITY if fused else 0.0),
        gate_density=gate_density,
        every=_or(s.every, max(1, min(PERIOD, int(0.75 * steps / MIN_UPDATES)))),
        output="sparse" if sparse_output else "dense",
        distribution=distribution if s.distribution == "auto" else s.distribution,
    )


def _with_stages(s: Settings, splits: Splits) -> Settings:
    """The division of the budget, and a period that fits the run. The networks of a cascade are trained one by one and
    decide by their margin, whatever is asked of the stages beside it."""
    plan: PlanName = _or(s.stages, "three")
    if s.model == "cascade":
        s = replace(s, focus=None, decide="margin")
    steps = given(s.epochs) * math.ceil(len(splits.train) / given(s.batch))
    return replace(
        s,
        stages=plan,
        focus=_or(s.focus, PLANS[plan].focus),
        initial_density=_or(s.initial_density, INITIAL_DENSITY),
        every=_or(s.every, max(1, min(PERIOD, int(0.75 * steps / MIN_UPDATES)))),
        distribution=presets.DISTRIBUTION,
        output="sparse" if s.output == "auto" else s.output,
    )


def _affordable_rank(s: Settings, splits: Splits) -> int:
    sizes = (splits.train.features, *given(s.hidden))
    cost_per_rank = sum(a + b for a, b in pairwise(sizes))
    macs = _or(s.gate_fraction, GATE_FRACTION) * s.budget * dense_macs((*sizes, splits.classes))
    return max(1, min(32, round(macs / cost_per_rank)))
