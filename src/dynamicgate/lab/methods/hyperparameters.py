"""What decides the result of a run, and the defaults of each data set."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import torch

from dynamicgate import presets
from dynamicgate.gating.gate import Policy
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.sparsity import Distribution


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
SPARSE_LR = 5 / 3  # times the usual rate: few connections bear larger steps
PERIOD = 100
UPDATES = 10  # in a short run, at least


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """How models are made and trained, as far as a word says it; 0 means: the default for this data set."""

    budget: float = 0.3
    """Executed MACs relative to the dense network: hard gates, gate networks and output layer included."""
    epochs: int = 0
    """Passes over the training data; 0 is the default of the data set."""
    batch: int = 0
    """Rows per optimizer step, over all processes; 0 is the default of the data set."""
    lr: float = 0.0
    """Peak learning rate of AdamW, with warm-up and a cosine to zero; 0 is the default of the data set, 5/3 of that for
    models with sparse layers."""
    gate_rate: float = 1.0
    """Learning rate of gate networks relative to that."""
    weight_decay: float = 0.05
    """Decay of weight matrices."""
    dropout: float = 0.1
    """Dropout of all models but dense and small."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    """What follows each hidden layer; only relu leaves zeros that can be skipped."""
    block: int = 0
    """Units that open and close together; 0 is 1 for static, random and gate, 16 for gate+rigl."""
    net: Literal["auto", "linear", "low-rank", "two-layer"] = "auto"
    """Shape of the gate network; auto is low-rank for gate, linear (and sparse) for gate+rigl."""
    rank: int = 0
    """Inner width of the gate network; 0 takes what its share of the budget pays for."""
    gate_share: float = 0.0
    """Share of the budget that gate networks take; 0 is 0.28 for gate, and for gate+rigl 0.02 (0.05 at budgets below
    0.1)."""
    open_rate: float = 0.0
    """Share of the units that gate+rigl has open on average; the fewer, the more connections may exist. 0 is 0.95 (0.85
    at budgets below 0.1)."""
    policy: Policy | Literal["auto"] = "auto"
    """What multiplies units in training: hard, soft, bernoulli, concrete, gumbel (hard with noise, so that closed gates
    are tried again); auto is hard for gate+rigl, gumbel for gate and static. At test time gates are hard."""
    tau: float = 1.0
    """Temperature of the gates."""
    theta: float = 0.5
    """Threshold of the gates."""
    scale: bool = False
    """Multiply open units by their gate's probability."""
    ramp: float = 0.0
    """How far above its threshold a gate's logit opens its units in full; 0: at once."""
    accumulate: int = 1
    """Work a batch off in this many pieces."""
    clip: float | None = None
    """Largest gradient norm."""
    bf16: bool = False
    """Train under bfloat16 autocast."""
    balanced: bool = False
    """Weight classes by inverse frequency."""
    distill: float = 0.0
    """Share of the loss for imitating the dense network with dropout, which is then trained first; 0 does without."""
    patience: int | None = None
    """Stop after this many epochs without a better validation accuracy, and keep the best."""
    density: float = 0.0
    """Share of the connections that exist in the hidden layers of pruned, static-sparse, set, rigl and gate+rigl; 0 is
    what the budget pays for (in gate+rigl what it pays for at its open rate, after the gate networks)."""
    start: float = 0.0
    """Share of the connections that exist at first in the hidden layers of set, rigl and gate+rigl; 0 is all of them in
    gate+rigl, the density in the others."""
    settled: float = 0.0
    """Share of training by which what is too many at first is gone; 0 is when rewiring ends, 0.75."""
    gate_density: float = 0.0
    """As `density`, for the gate networks of gate+rigl; 0 is what their share of the budget pays for, and no gates
    where the default share pays for fewer than four inputs for each of them."""
    structure: str = "unstructured"
    """Pattern of the masks: unstructured, fan-in (every output has as many inputs), or cells of outputs x inputs that
    come and go together, like 16x1 or 32x32."""
    distribution: Distribution | Literal["auto"] = "auto"
    """How the density is spread over sparse layers: uniform, or erk (denser where a layer is small); auto is erk for
    gate+rigl, uniform for others."""
    widen: float = 0.0
    """Hidden widths of models with sparse layers relative to those asked for, at the same cost: wider is sparser. 0 is
    1 but for gate+rigl: 1.25 at budgets from 0.1 on, 1.5 from 0.2 on."""
    output: Literal["auto", "dense", "sparse"] = "auto"
    """The output layer of models with sparse layers; auto leaves it dense, unless that would take more than half of the
    budget."""
    every: int = 0
    """Optimizer steps between two rewirings; 0 is 100, or less in a short run."""


@dataclass(frozen=True)
class Settings(Knobs):
    """What decides the result of one run; zero or empty means: the default for this data set."""

    data: str = "digits"
    model: str = "gate"
    seed: int = 0
    hidden: tuple[int, ...] = ()
    data_options: tuple[tuple[str, str], ...] = ()

    def resolved(self, splits: Splits) -> Settings:
        """With the defaults of the data set filled in."""
        if not 0.0 < self.budget <= 1.0:
            raise ValueError(f"a budget is a share of the dense MACs: expected 0 < budget <= 1, received {self.budget}")
        usual = DEFAULTS.get(splits.name, Defaults())
        fused = self.model == FUSED
        found = replace(
            self,
            widen=self.widen or (presets.spending(self.budget).widen if fused else 1.0),
            hidden=self.hidden or usual.hidden,
            epochs=self.epochs or usual.epochs,
            batch=self.batch or min(usual.batch, len(splits.train)),
            lr=self.lr or usual.lr * (SPARSE_LR if self.model in SPARSE else 1.0),
        )
        if any(width < 1 for width in (*found.hidden, *found.widths)):
            raise ValueError(f"hidden widths must be 1 or more, received {found.hidden} widened by {found.widen}")
        found = replace(
            found,
            block=found.block or (presets.BLOCK if fused else 1),
            net=("linear" if fused else "low-rank") if found.net == "auto" else found.net,
            policy=("hard" if fused else "gumbel") if found.policy == "auto" else found.policy,
            rank=found.rank or _affordable_rank(found, splits),
        )
        if found.model in SPARSE:
            return _with_densities(found, splits)
        return replace(found, output="dense", distribution="uniform", widen=1.0)

    @property
    def widths(self) -> tuple[int, ...]:
        """The hidden widths of the model; those of the network it is compared with are `hidden`."""
        return tuple(round((self.widen or 1.0) * width) for width in self.hidden)


LATER = {
    "data_options": (), "density": 0.0, "start": 0.0, "gate_density": 0.0, "gate_share": 0.0, "open_rate": 0.0,
    "structure": "unstructured", "distill": 0.0, "output": "dense", "every": 0, "activation": "relu",
    "distribution": "uniform", "widen": 1.0, "gate_rate": 1.0, "ramp": 0.0,
    "settled": 0.0,
}  # fmt: skip


def dense_macs(sizes: Sequence[int]) -> int:
    """MACs of an MLP with these layer sizes."""
    return sum(a * b for a, b in pairwise(sizes))


def own_budget(s: Settings, splits: Splits) -> float:
    """The budget relative to the model's own dense MACs: wider than what it is compared with, it has more of them."""
    asked, own = ((splits.train.features, *widths, splits.classes) for widths in (s.hidden, s.widths))
    return s.budget * dense_macs(asked) / dense_macs(own)


def settings_hash(settings: Settings, splits: Splits) -> str:
    """Runs are found by what they were asked to do, and to which data."""
    values = asdict(settings)
    for name, value in LATER.items():  # runs from before there were such options are found again
        if values[name] == value:
            del values[name]
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4)
    for part in (splits.train, splits.valid, splits.test):
        sample = torch.arange(len(part))[:: max(1, len(part) // 1000)]
        digest.update(part.rows(sample).numpy().tobytes())
        digest.update(part.y.numpy().tobytes())
    return digest.hexdigest()


def _with_densities(s: Settings, splits: Splits) -> Settings:
    """Densities that spend the budget, and a period that fits the run."""
    sizes = (splits.train.features, *s.widths, splits.classes)
    full, last = dense_macs(sizes), sizes[-2] * sizes[-1]
    affordable = own_budget(s, splits) * full
    thin = presets.sparse_output(last, affordable) if s.output == "auto" else s.output == "sparse"
    density, gate_density = s.density, s.gate_density
    if s.model == FUSED or not density:
        blocks = [math.ceil(width / s.block) for width in s.widths] if s.model == FUSED else []
        gates = sum(a * b for a, b in zip(sizes, blocks, strict=False))
        usual = presets.spending(s.budget)
        spend = usual._replace(
            gate_fraction=s.gate_share or usual.gate_fraction, open_rate=s.open_rate or usual.open_rate
        )
        found = presets.affordable_densities(
            affordable, full, 0 if thin else last, gates, sum(blocks), spend,
            always=s.model == FUSED and bool(gate_density or s.gate_share),
        )  # fmt: skip
        density, gate_density = density or found.layers, gate_density or found.gates
    steps = s.epochs * math.ceil(len(splits.train) / s.batch)
    every = s.every or max(1, min(PERIOD, int(0.75 * steps / UPDATES)))
    start = s.start or (presets.INITIAL_DENSITY if s.model == FUSED else 0.0)
    spread: Distribution = presets.DISTRIBUTION if s.model == FUSED else "uniform"
    return replace(
        s, density=density, start=start, gate_density=gate_density, every=every,
        output="sparse" if thin else "dense",
        distribution=spread if s.distribution == "auto" else s.distribution,
    )  # fmt: skip


def _affordable_rank(settings: Settings, splits: Splits) -> int:
    sizes = (splits.train.features, *settings.hidden)
    cost_per_rank = sum(a + b for a, b in pairwise(sizes))
    share = settings.gate_share or GATE_SHARE
    return max(2, min(32, round(share * settings.budget * dense_macs((*sizes, splits.classes)) / cost_per_rank)))
