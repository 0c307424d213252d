"""Which blocks the gate opens, as figures: by layer, and by kind of token in every layer. A mark for each seed."""

from __future__ import annotations

from collections.abc import Sequence

from dynamicgate.lab.report.svg import (
    Scale,
    axes,
    axes_of_picture,
    line,
    picture,
    polyline,
    round_ticks,
    tag,
    tooltip,
    words,
)
from dynamicgate.lab.result_file import Run
from experiments.language.opened import kinds_of, token_runs
from experiments.language.rows import Rows, finished, last_part
from experiments.language.shown import always_open
from experiments.language.tables import GATE

SEEDS = ("#d11a2a", "#0067b0", "#00857a", "#c05000", "#4f3fa8", "#4f7f00")
STYLE = "polyline{fill:none;stroke-width:1.6}.always{stroke:#444;stroke-dasharray:5 4}.small{font-size:11px}"
WIDTH, HEIGHT = 760.0, 360.0
ACROSS, PANEL = 3, 210.0  # panels beside each other, and the height of one
SHORT = {"first letter": "first", "later letter": "later"}


def plot_layers(name: str, rows: Rows) -> str:
    """The open blocks of each layer, a line for each seed. The dashed line is what is open for every token."""
    runs = finished(rows).get(GATE, [])
    if not runs:
        return ""
    rates = {run["seed"]: run["quality"][last_part(run)]["open"] for run in runs}
    layers = len(next(iter(rates.values())))
    always = always_open(runs[0])
    x = Scale(1.0, float(layers), 84.0, WIDTH - 130.0)
    high = max(rate for one in rates.values() for rate in one)
    y = Scale(0.0, 1.08 * high, HEIGHT - 52.0, 30.0)
    ticks = [float(number + 1) for number in range(layers)]
    body = [axes_of_picture(x, y, ticks, lambda tick: f"{tick:.0f}", "layer", "open blocks, as a fraction of all")]
    if always:
        body += [line(x.start, y(always), x.end, y(always), class_="always")]
        body.append(words(x.end + 8, y(always) + 4, "always open", class_="small"))
    for seed, one in rates.items():
        drawn = [(x(number + 1.0), y(rate)) for number, rate in enumerate(one)]
        body.append(polyline(drawn, tooltip(f"seed {seed}"), stroke=colour(seed)))
        body += [tag("circle", cx=px, cy=py, r=3.0, fill=colour(seed)) for px, py in drawn]
    body.append(legend(list(rates), WIDTH - 122.0, 40.0))
    return picture(WIDTH, HEIGHT, f"Open blocks by layer on {name}", *body, style=STYLE)


def plot_kinds(name: str, rows: Rows) -> str:
    """A panel for each layer: the open blocks for each kind of token, a mark for each seed."""
    runs, kinds = token_runs(rows), kinds_of(rows)
    if not runs:
        return ""
    layers = len(runs[0]["token_costs"]["kinds"][kinds[0]]["layers"])
    high = max(rate for run in runs for one in run["token_costs"]["kinds"].values() for rate in one["layers"])
    body = [panel(runs, kinds, number, 1.08 * high) for number in range(layers)]
    height = 52.0 + PANEL * (-(-layers // ACROSS))
    body.append(words(8, 16, "open blocks, as a fraction of all"))
    body.append(legend([run["seed"] for run in runs], 260.0, 16.0, across=True))
    return picture(WIDTH, height, f"Open blocks by kind of token on {name}", *body, style=STYLE)


def panel(runs: Sequence[Run], kinds: Sequence[str], number: int, high: float) -> str:
    """One layer."""
    left, top = (number % ACROSS) * (WIDTH / ACROSS), 40.0 + PANEL * (number // ACROSS)
    x = Scale(-0.5, len(kinds) - 0.5, left + 46.0, left + WIDTH / ACROSS - 6.0)
    y = Scale(0.0, high, top + PANEL - 40.0, top + 14.0)
    names = [SHORT.get(kind, kind) for kind in kinds]
    ticks = round_ticks(0.0, high, 4)
    drawn = [
        axes(x, y, range(len(kinds)), ticks, lambda tick: names[round(tick)], lambda tick: f"{tick:g}"),
        words(x.start + 4, top + 8, f"layer {number + 1}", style="font-weight:600"),
    ]  # fmt: skip
    for order, run in enumerate(runs):
        beside = 0.09 * (order - (len(runs) - 1) / 2)  # seeds that agree would hide each other
        for at, kind in enumerate(kinds):
            found = run["token_costs"]["kinds"].get(kind)
            if found is not None:
                rate, seed = found["layers"][number], run["seed"]
                said = tooltip(f"seed {seed}, {kind}: {rate:.3f}")
                drawn.append(tag("circle", said, cx=x(at + beside), cy=y(rate), r=3.2, fill=colour(seed)))
    return "".join(drawn)


def legend(seeds: Sequence[int], left: float, top: float, *, across: bool = False) -> str:
    """Which colour is which seed."""
    drawn = []
    for number, seed in enumerate(seeds):
        x, y = (left + 76.0 * number, top) if across else (left, top + 18.0 * number)
        drawn += [tag("circle", cx=x, cy=y - 4.0, r=4.0, fill=colour(seed)), words(x + 9.0, y, f"seed {seed}")]
    return "".join(drawn)


def colour(seed: int) -> str:
    """The same in all figures."""
    return SEEDS[seed % len(SEEDS)]
