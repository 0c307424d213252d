"""The gate with one thing changed at a time: the table, and how large a difference must be to mean something."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from dynamicgate.lab.runner import Table
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.language.rows import Rows, bits, counted, finished, mean_bits, spread_on_valid
from experiments.language.tables import GATE

FIRST = "as it is"


class Noise(NamedTuple):
    """The standard deviation of the gate over seeds, on validation text; None where it has less than two."""

    spread: float | None
    seeds: int

    @property
    def text(self) -> str:
        """For the page."""
        if self.spread is None:
            return ""
        return (
            f"The gate as it is has a standard deviation of {self.spread:.4f} bits over {self.seeds} seeds on the same "
            f"text: differences below about twice that, {2 * self.spread:.4f}, are noise where a variant has one seed."
        )


def noise(rows: Rows) -> Noise:
    """From the runs of the gate in the table of results, whose settings are those of the first variant."""
    runs = finished(rows).get(GATE, [])
    return Noise(spread_on_valid(runs), len(runs))


def variants_table(rows: Rows, table: Table, spread: Noise) -> str:
    """Changes of the gate: bits per byte of validation text relative to the gate as it is, what layers open, and
    training cost. Every variant of the table has a row, also before it was run."""
    done = finished(rows)
    if FIRST not in done:
        return ""
    start = {run["seed"]: bits(run) for run in done[FIRST]}
    base = fmean(run["macs"]["training"] for run in done[FIRST])
    body = []
    for name in table.models:
        if name not in done:
            body.append([name, *[ABSENT] * 5, counted(rows, name) if name in rows else "0"])
            continue
        runs = done[name]
        apart = [bits(run) - start[run["seed"]] for run in runs if run["seed"] in start]
        difference = fmean(apart) if apart else None
        training = fmean(run["macs"]["training"] for run in runs) / base
        rates = [rate for run in runs for rate in run["quality"]["valid"].get("open") or []]
        body.append([
            name, f"{mean_bits(runs):.4f}", said_difference(name, difference, spread, len(apart)),
            f"{min(rates):.4f} to {max(rates):.4f}" if rates else ABSENT,
            str(sum(len(run["collapses"]) for run in runs)), f"{training:.2f}", counted(rows, name),
        ])  # fmt: skip
    columns = ["change", "bits per byte", "difference", "layers open", "collapses", "training MACs", "seeds"]
    return markdown(columns, body, numbers=True)


def said_difference(name: str, difference: float | None, spread: Noise, seeds: int) -> str:
    """A difference, and whether one seed can tell it from none."""
    if difference is None:
        return ABSENT
    said = f"{difference:+.4f}"
    if name == FIRST or spread.spread is None or seeds != 1:
        return said
    if difference == 0.0:
        return f"{said} (nothing changed)"
    return f"{said} (noise)" if abs(difference) < 2 * spread.spread else said
