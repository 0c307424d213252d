"""How much better the gate is than every other model, paired by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dynamicgate.lab.language.corpora import PLAIN
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.statistics import holm, paired
from experiments.language.rows import Rows, bits, finished
from experiments.language.tables import GATE


class Lead(NamedTuple):
    """How many bits per byte the gate is better than a model, and p, corrected; None for one seed."""

    difference: float
    p: float | None

    @property
    def text(self) -> str:
        """As tables have it."""
        return f"{self.difference:+.4f}" + ("" if self.p is None else f" ({self.p:.2g})")


def bits_on_plain(run: Run) -> float:
    """Bits per byte on the text that no model was trained on."""
    return float(run["quality"][PLAIN]["bits_per_byte"])


def leads(rows: Rows, bits: Callable[[Run], float] = bits) -> dict[str, Lead]:
    """The lead of the gate over each model, paired by seed, p corrected for the number of models."""
    done = finished(rows)
    ours = {run["seed"]: bits(run) for run in done.get(GATE, [])}
    found = {}
    for name, runs in done.items():
        shared = [run for run in runs if run["seed"] in ours]
        if name != GATE and shared:
            found[name] = paired([bits(run) for run in shared], [ours[run["seed"]] for run in shared])
    tested = [name for name, result in found.items() if result.p is not None]
    corrected = dict(zip(tested, holm([found[name].p or 0.0 for name in tested]), strict=True))
    return {name: Lead(result.difference, corrected.get(name)) for name, result in found.items()}
