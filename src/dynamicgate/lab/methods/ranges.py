"""Which values hyperparameters may have, and whether a network with them fits into memory: asked before any is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from dynamicgate.lab.datasets.limits import memory_bytes
from dynamicgate.lab.methods.fields import STAGED
from dynamicgate.sparsity.patterns import parse_pattern


class Range(NamedTuple):
    """From `low` to `high`; `above` leaves out `low`, `below` leaves out `high`."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
        least = value > self.low if self.above else value >= self.low
        return least and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        least, most = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{least} {self.low:g} and {most} {self.high:g}"


FRACTION, SOME = Range(0, 1), Range(0, 1, above=True)
# What no other place refuses already.
RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "gate_lr_scale": Range(0, math.inf, above=True),
        "weight_decay": Range(0, math.inf),
        "gate_fraction": Range(0, 1, above=True, below=True),
        "always_open": FRACTION,
        "anneal": Range(0, 0.95, above=True),
        "open_rate": SOME,
        "clip": Range(0, math.inf, above=True),
        "distill_weight": FRACTION,
        "initial_density": FRACTION,
        "prune_until": SOME,
        "widen": Range(0, math.inf, above=True),
        "stage_distill": FRACTION,
        "first_stage_weight": Range(0, math.inf),
    }
)
COPIES = 4  # of every weight while a network is trained: itself, its gradient, and two averages of AdamW


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise ValueError for a hyperparameter outside of its range; None stands for a default."""
    for name, allowed in RANGES.items():
        value = values.get(name)
        if value is not None and value not in allowed:
            raise ValueError(f"{name} must be {allowed}, received {value}")


def check_task(values: Mapping[str, Any], regression: bool) -> None:
    """Raise ValueError for settings that mean nothing for the task of the data."""
    if not regression:
        if values["loss"] != "auto":
            raise ValueError(f"--loss {values['loss']} is for a regression: give --task regression, or leave it out")
        return
    if values["model"] in STAGED:
        raise ValueError(f"{values['model']} stops by how sure it is of a class: choose another model for a regression")
    for name, option in (("distill_weight", "--distill-weight"), ("balanced", "--balanced")):
        if values[name]:
            raise ValueError(f"{option} is for classes, and means nothing for a regression: leave it out")


def check_sizes(values: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Raise ValueError for a block, a tile or a division of the batch that is larger than what it divides. sizes: of
    the model's layers, inputs and outputs included."""
    inputs, *hidden, _ = sizes
    block, batch, accumulate = (values[name] for name in ("block", "batch", "accumulate"))
    if block is not None and hidden and block > max(hidden):
        raise ValueError(f"block={block}: the widest hidden layer has {max(hidden)} units, which is the largest block")
    if batch is not None and accumulate > batch >= 1:
        raise ValueError(f"accumulate={accumulate}: a batch of {batch} rows has at most {batch} pieces")
    tile = parse_pattern(values["pattern"])
    outputs, read = max(sizes[1:]), max(inputs, *hidden)
    if tile.rows > outputs or tile.columns > read:
        raise ValueError(
            f"pattern={tile.name}: no layer has so many outputs or inputs; the largest tile that fits any is "
            f"{outputs}x{read}, and one that prunes something is smaller than the layers"
        )


def check_memory(sizes: Sequence[int]) -> None:
    """Raise ValueError if a dense network with these layer sizes cannot be trained in the memory of this machine."""
    needed = 4 * COPIES * sum(a * b for a, b in pairwise(sizes))
    found = memory_bytes()
    if found is not None and needed > found:
        raise ValueError(
            f"a network of {' x '.join(f'{size:,}' for size in sizes)} needs {needed / 1e9:,.1f} GB to be trained, and "
            f"this machine has {found / 1e9:,.1f} GB: choose smaller hidden widths"
        )
