"""Open rates over training, from the logs."""

from .curves import Line, Log, curve, panel
from .palette import colour_class
from .read import Run, part
from .summary import is_gated, number

DASHES = (None, "7 4", "2 3", "10 3 2 3", "5 2 1 2 1 2")


def training_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: mean g of each site and seed, the executed cost seen in training, and its target."""
    sites = list(dict.fromkeys(site for log in logs for entry in log for site in part(entry, "sites")))
    if not sites and not is_gated(runs):
        return ""
    lines: list[Line] = []
    for run, log in zip(runs, logs, strict=True):
        for index, site in enumerate(sites):
            opened = curve(log, [number(part(part(entry, "sites"), site).get("g")) for entry in log])
            told = f"{site} open, seed {run['seed']}"
            lines.append(Line(site, told, f"open {colour_class(style)}", opened, DASHES[index % len(DASHES)]))
        for key, name, look in (("relative", "executed", "relative"), ("reference", "target", "target")):
            told = f"{name}, seed {run['seed']}"
            lines.append(Line(name, told, look, curve(log, [number(entry.get(key)) for entry in log])))
    return panel(f"Open rate per gate over training: {model}", lines)
