"""Gates over training, from the logs: open rates and executed MACs, validation accuracy, temperature, threshold and the
budget's multiplier."""

from collections.abc import Callable, Sequence

from dynamicgate.lab.report.line_plot import Line, Strip, binned_curve, draw_line_plot, last_step
from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.reading import Log, LogEntry, Run, get_object, sites_of
from dynamicgate.lab.report.run_metrics import number, quality_word
from dynamicgate.lab.report.summary import is_gated

DASHES = (None, "7 4", "2 3", "10 3 2 3", "5 2 1 2 1 2")
LOW_STRIP = 84.0  # pixels: the strips below the main one
SYMBOLS = {"tau": "τ", "theta": "θ"}
Read = Callable[[LogEntry], float | None]


def gate_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: mean g of each site and seed, the executed MACs measured in training and their target; below it the
    validation accuracy and, where they change, tau and theta of the gates and lambda, the multiplier of the budget."""
    sites = site_names(logs)
    if not sites and not is_gated(runs):
        return ""
    css = f"open {colour_class(style)}"
    opened: list[Line] = []
    for index, site in enumerate(sites):
        opened += lines_per_seed(site, css, runs, logs, read_site(site, "g"), DASHES[index % len(DASHES)])
    opened += lines_per_seed("executed", "relative", runs, logs, read_entry("relative"))
    opened += lines_per_seed("target", "target", runs, logs, read_entry("reference"))
    accuracy = lines_per_seed(quality_word(runs), css, runs, logs, validation_accuracy)
    tau_and_theta = [line for line in tau_and_theta_lines(sites, css, runs, logs) if is_varying(line)]
    multiplier = [line for line in lines_per_seed("λ", css, runs, logs, read_entry("lambda")) if is_varying(line)]
    return draw_line_plot(
        f"Gates over training: {model}",
        [
            Strip(opened, "open rate, executed MACs relative to dense", 180.0),
            Strip(accuracy, f"validation {quality_word(runs)}, %", LOW_STRIP, is_fraction=False),
            Strip(tau_and_theta, "τ and θ", LOW_STRIP, is_fraction=False),
            Strip(multiplier, "λ, the weight of the budget penalty", LOW_STRIP, is_fraction=False),
        ],
        last_step(logs),
    )


def site_names(logs: list[Log]) -> list[str]:
    """The sites that any log names."""
    return list(dict.fromkeys(site for log in logs for entry in log for site in sites_of(entry)))


def read_entry(key: str) -> Read:
    """Reads a value of a log entry."""
    return lambda entry: number(entry.get(key))


def read_site(site: str, key: str) -> Read:
    """Reads a value of one site from a log entry."""
    return lambda entry: number(get_object(sites_of(entry), site).get(key))


def validation_accuracy(entry: LogEntry) -> float | None:
    """In percent; of a regression R²."""
    valid = get_object(entry, "valid")
    fraction = number(valid.get("accuracy", valid.get("r2")))
    return None if fraction is None else 100 * fraction


def lines_per_seed(
    name: str, css: str, runs: Sequence[Run], logs: Sequence[Log], read: Read, dash: str | None = None
) -> list[Line]:
    """One line per seed."""
    found = []
    for run, log in zip(runs, logs, strict=True):
        points = binned_curve(log, [read(entry) for entry in log])
        text = f"{name}, seed {run['seed']}" + (f": {points[-1][1]:.3g} at the end" if points else "")
        found.append(Line(name, text, css, points, dash))
    return found


def tau_and_theta_lines(sites: list[str], css: str, runs: list[Run], logs: list[Log]) -> list[Line]:
    """Tau and theta; once for all sites if they agree, as they usually do."""
    found: list[Line] = []
    for index, (key, symbol) in enumerate(SYMBOLS.items()):
        dash = DASHES[index]
        by_site = {
            site: lines_per_seed(f"{symbol} {site}", css, runs, logs, read_site(site, key), dash) for site in sites
        }
        curves = {site: [line.points for line in lines] for site, lines in by_site.items()}
        if sites and all(points == curves[sites[0]] for points in curves.values()):
            found += lines_per_seed(symbol, css, runs, logs, read_site(sites[0], key), dash)
        else:
            found += [line for lines in by_site.values() for line in lines]
    return found


def is_varying(line: Line) -> bool:
    """Whether its values change at all."""
    return len({value for _, value in line.points}) > 1


def constants_note(logs: list[Log]) -> str:
    """Tau and theta where they stay constant, as a sentence."""
    found = []
    for key, symbol in SYMBOLS.items():
        reads = [read_site(site, key) for site in site_names(logs)]
        values = {value for log in logs for entry in log for read in reads if (value := read(entry)) is not None}
        if len(values) == 1:
            found.append(f"{symbol} = {values.pop():g}")
    return f"{', '.join(found)} throughout" if found else ""
