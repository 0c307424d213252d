"""The tables of the report, as cells that a page or a terminal can lay out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from dynamicgate.lab.report.models import is_control
from dynamicgate.lab.report.number_format import (
    ABSENT,
    fixed,
    percent,
    plus_minus,
    quantity,
    signed_points,
    tenths_of_percent,
)
from dynamicgate.lab.report.palette import model_styles, swatch
from dynamicgate.lab.report.reading import Results, Run, part, parts
from dynamicgate.lab.report.summary import (
    Row,
    Spread,
    asked_of,
    group_runs,
    number,
    relative_of,
    spread,
    summarise,
)

PROXIES = {
    "compute_proxy_p": "ComputeProxy (p)",
    "compute_proxy_g": "ComputeProxy (g)",
    "relmac_p": "RelMAC (p)",
    "relmac_g": "RelMAC (g)",
    "relmac_fuse_p": "RelMAC fuse (p)",
    "relmac_fuse_g": "RelMAC fuse (g)",
}


SPLIT = {"structure_saved": "structure part, %", "gate_saved": "gate part, %"}


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and the marker before it (trusted SVG)."""

    text: str
    value: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Named columns over rows of cells; the first ``names`` columns are words, the others numbers."""

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    names: int = 1


def named(results: Results, data: str, model: str) -> list[Cell]:
    """The cells that say which model a row is about, and on which data where there are several."""
    styles = model_styles(run["model"] for run in results["runs"])
    model_cell = Cell(model, model, swatch(styles[model], is_control(results, data, model)))
    return [model_cell, Cell(data, data)] if has_several_data(results) else [model_cell]


def name_columns(results: Results) -> list[str]:
    """The headings over ``named``."""
    return ["model", "data"] if has_several_data(results) else ["model"]


def has_several_data(results: Results) -> bool:
    """Whether the runs are on more than one data set."""
    return len({run["data"] for run in results["runs"]}) > 1


def summary_table(results: Results) -> Table:
    """Quality and cost of every model, controls among them: mean ± std over seeds."""
    names = name_columns(results)
    summary = summarise(results)
    shown: list[tuple[str, str, Callable[[Spread], str]]] = [
        ("accuracy, %", "accuracy", percent),
        ("macro-F1, %", "macro_f1", percent),
        ("executed MACs", "executed", quantity),
        ("relative", "relative", lambda value: plus_minus(value, 3)),
        *((heading, key, tenths_of_percent) for key, heading in split_columns(summary).items()),
        ("with zero-skip", "relative_zero_skip", lambda value: plus_minus(value, 3)),
        ("gate share, %", "gate_share", tenths_of_percent),
        ("parameters", "params", lambda value: plus_minus(value, 0)),
        ("seconds", "seconds", lambda value: plus_minus(value, 1)),
    ]
    rows = [
        [
            *named(results, row["data"], row["model"]),
            Cell(str(row["n"]), row["n"]),
            *(Cell(text(row[key]), row[key]["mean"]) for _, key, text in shown),
        ]
        for row in summary
    ]
    return Table([*names, "seeds", *(heading for heading, _, _ in shown)], rows, len(names))


def split_columns(summary: list[Row]) -> dict[str, str]:
    """The headings over what structure and what gates save; none where nothing saves anything, or no run says so."""
    saved = [row[key]["mean"] for row in summary for key in SPLIT]
    return SPLIT if any(mean is not None and abs(mean) > 1e-9 for mean in saved) else {}


def budget_table(results: Results) -> Table:
    """The budget each run was asked for beside what it reached, in points."""
    names = name_columns(results)
    rows = []
    for (data, model), runs in group_runs(results).items():
        for run in runs:
            asked, reached = asked_of(run), relative_of(run)
            if asked is None or reached is None:
                continue
            rows.append(
                [
                    *named(results, data, model),
                    Cell(str(run["seed"]), number(run["seed"])),
                    Cell(fixed(asked, 3), asked),
                    Cell(fixed(reached, 3), reached),
                    Cell(signed_points(reached - asked), reached - asked),
                ]
            )
    return Table([*names, "seed", "asked", "reached", "difference, points"], rows, len(names))


def layer_table(runs: list[Run]) -> Table:
    """Each layer's open rate, density and executed MACs, mean over seeds."""
    layers: dict[str, list[Run]] = {}
    for run in runs:
        for layer in parts(run, "layers"):
            layers.setdefault(str(layer.get("name", ABSENT)), []).append(layer)
    macs = {name: spread(number(layer.get("macs")) for layer in seen) for name, seen in layers.items()}
    total = sum(value["mean"] or 0.0 for value in macs.values())
    rows = []
    for name, seen in layers.items():
        opened = spread(number(layer.get("open")) for layer in seen)
        density = spread(number(layer.get("density")) for layer in seen)
        share = macs[name]["mean"] / total if macs[name]["mean"] is not None and total else None
        rows.append(
            [
                Cell(name, name),
                Cell(plus_minus(opened, 3), opened["mean"]),
                Cell(plus_minus(density, 3), density["mean"]),
                Cell(quantity(macs[name]), macs[name]["mean"]),
                Cell(fixed(None if share is None else share * 100, 1), share),
            ]
        )
    return Table(["layer", "open", "density", "MACs", "of all, %"], rows)


def dependence_table(results: Results) -> Table:
    """Whether decisions change with the input, gate by gate, mean over seeds; and the cost from sample to sample."""
    names = name_columns(results)
    columns = [
        *names,
        "gate",
        "blocks",
        "always on, %",
        "always off, %",
        "varying, %",
        "variance",
        "sample p5",
        "sample p50",
        "sample p95",
    ]
    rows = []
    for (data, model), runs in group_runs(results).items():
        samples = [spread(number(part(run, "samples").get(key)) for run in runs) for key in ("p5", "p50", "p95")]
        gates: dict[str, list[Run]] = {}
        for run in runs:
            for gate in parts(run, "gates"):
                gates.setdefault(str(gate.get("name", ABSENT)), []).append(gate)
        for name, seen in gates.items():
            shares = [spread(number(gate.get(key)) for gate in seen) for key in ("always_on", "always_off", "varying")]
            variance = spread(number(gate.get("variance")) for gate in seen)
            blocks = spread(number(gate.get("blocks")) for gate in seen)
            rows.append(
                [
                    *named(results, data, model),
                    Cell(name, name),
                    Cell(plus_minus(blocks, 0), blocks["mean"]),
                    *(Cell(tenths_of_percent(share), share["mean"]) for share in shares),
                    Cell(plus_minus(variance, 4), variance["mean"]),
                    *(Cell(fixed(sample["mean"], 3), sample["mean"]) for sample in samples),
                ]
            )
    return Table(columns, rows, len(names) + 1)


def proxy_table(results: Results) -> Table:
    """The paper's proxies, beside the executed share they stand in for."""
    names = name_columns(results)
    rows = []
    for (data, model), runs in group_runs(results).items():
        values = [spread(number(part(run, "proxies").get(key)) for run in runs) for key in PROXIES]
        if any(value["n"] for value in values):
            executed = spread(relative_of(run) for run in runs)
            rows.append(
                [
                    *named(results, data, model),
                    *(Cell(plus_minus(value, 3), value["mean"]) for value in [executed, *values]),
                ]
            )
    return Table([*names, "executed, relative", *PROXIES.values()], rows, len(names))
