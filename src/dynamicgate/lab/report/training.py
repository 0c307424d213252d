"""Gate traces over training, from the logs: what was open, how accurate it was, and what steered it."""

from collections.abc import Callable, Sequence
from typing import Any

from dynamicgate.lab.report.curves import Line, Log, Strip, curve, last_step, panel
from dynamicgate.lab.report.palette import colour_class
from dynamicgate.lab.report.reading import Run, part
from dynamicgate.lab.report.summary import is_gated, number

DASHES = (None, "7 4", "2 3", "10 3 2 3", "5 2 1 2 1 2")
LOW = 84.0  # pixels: the strips under the main one
STEERING = {"tau": "τ", "theta": "θ"}
Read = Callable[[dict[str, Any]], float | None]


def training_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: mean g of each site and seed, the executed cost seen in training and its target; under it the
    validation accuracy and, where they move, tau and theta of the gates and lambda, the price of the budget."""
    sites = sites_of(logs)
    if not sites and not is_gated(runs):
        return ""
    colour = colour_class(style)
    opened: list[Line] = []
    for index, site in enumerate(sites):
        opened += lines(site, f"open {colour}", runs, logs, at_site(site, "g"), DASHES[index % len(DASHES)])
    for key, name in (("relative", "executed"), ("reference", "target")):
        opened += lines(name, key if key == "relative" else "target", runs, logs, at_top(key))
    accuracy = lines("accuracy", f"open {colour}", runs, logs, validation_accuracy)
    steered = [line for line in steering(sites, colour, runs, logs) if moves(line)]
    price = [line for line in lines("λ", f"open {colour}", runs, logs, at_top("lambda")) if moves(line)]
    return panel(
        f"Gates over training: {model}",
        [
            Strip(opened, "open rate, and executed MACs relative to dense", 180.0),
            Strip(accuracy, "validation accuracy, %", LOW, is_share=False),
            Strip(steered, "τ and θ", LOW, is_share=False),
            Strip(price, "λ, the price of the budget", LOW, is_share=False),
        ],
        last_step(logs),
    )


def sites_of(logs: list[Log]) -> list[str]:
    """The sites that any log names."""
    return list(dict.fromkeys(site for log in logs for entry in log for site in part(entry, "sites")))


def at_top(key: str) -> Read:
    """Reads a value of a log entry."""
    return lambda entry: number(entry.get(key))


def at_site(site: str, key: str) -> Read:
    """Reads a value of one site from a log entry."""
    return lambda entry: number(part(part(entry, "sites"), site).get(key))


def validation_accuracy(entry: dict[str, Any]) -> float | None:
    """In percent."""
    share = number(part(entry, "valid").get("accuracy"))
    return None if share is None else 100 * share


def lines(
    name: str, look: str, runs: Sequence[Run], logs: Sequence[Log], read: Read, dash: str | None = None
) -> list[Line]:
    """One line per seed."""
    found = []
    for run, log in zip(runs, logs, strict=True):
        points = curve(log, [read(entry) for entry in log])
        told = f"{name}, seed {run['seed']}" + (f": {points[-1][1]:.3g} in the end" if points else "")
        found.append(Line(name, told, look, points, dash))
    return found


def steering(sites: list[str], colour: str, runs: list[Run], logs: list[Log]) -> list[Line]:
    """Tau and theta; once for all sites that share them, as they usually do."""
    found: list[Line] = []
    for index, (key, letter) in enumerate(STEERING.items()):
        dash, look = DASHES[index], f"open {colour}"
        by_site = {site: lines(f"{letter} {site}", look, runs, logs, at_site(site, key), dash) for site in sites}
        curves = {site: [line.points for line in drawn] for site, drawn in by_site.items()}
        if sites and all(points == curves[sites[0]] for points in curves.values()):
            found += lines(letter, look, runs, logs, at_site(sites[0], key), dash)
        else:
            found += [line for drawn in by_site.values() for line in drawn]
    return found


def moves(line: Line) -> bool:
    """Whether its values change at all."""
    return len({value for _, value in line.points}) > 1


def steady(logs: list[Log]) -> str:
    """What stays as it is throughout, in words."""
    told = []
    for key, letter in STEERING.items():
        reads = [at_site(site, key) for site in sites_of(logs)]
        values = {value for log in logs for entry in log for read in reads if (value := read(entry)) is not None}
        if len(values) == 1:
            told.append(f"{letter} = {values.pop():g}")
    return f"{', '.join(told)} throughout" if told else ""
