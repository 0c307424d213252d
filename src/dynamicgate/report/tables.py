"""The tables of the report, as cells that a page or a terminal can lay out."""

from dataclasses import dataclass, field

from .palette import model_styles, swatch
from .read import Results, Run, part, parts
from .summary import asked_of, group_runs, number, relative_of, spread, summarise
from .wording import ABSENT, fixed, percent, plus_minus, quantity, signed_points

PROXIES = {
    "compute_proxy_p": "ComputeProxy (p)",
    "compute_proxy_g": "ComputeProxy (g)",
    "relmac_p": "RelMAC (p)",
    "relmac_g": "RelMAC (g)",
    "relmac_fuse_p": "RelMAC fuse (p)",
    "relmac_fuse_g": "RelMAC fuse (g)",
}


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
    model_cell = Cell(model, model, swatch(styles[model]))
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
    columns = [
        *names,
        "seeds",
        "accuracy, %",
        "macro-F1, %",
        "executed MACs",
        "relative",
        "with zero-skip",
        "gate share, %",
        "parameters",
        "seconds",
    ]
    rows = []
    for row in summarise(results):
        shown = [
            (percent(row["accuracy"]), "accuracy"),
            (percent(row["macro_f1"]), "macro_f1"),
            (quantity(row["executed"]), "executed"),
            (plus_minus(row["relative"], 3), "relative"),
            (plus_minus(row["relative_zero_skip"], 3), "relative_zero_skip"),
            (plus_minus(row["gate_share"], 1, 100), "gate_share"),
            (plus_minus(row["params"], 0), "params"),
            (plus_minus(row["seconds"], 1), "seconds"),
        ]
        rows.append(
            [
                *named(results, row["data"], row["model"]),
                Cell(str(row["n"]), row["n"]),
                *(Cell(text, row[key]["mean"]) for text, key in shown),
            ]
        )
    return Table(columns, rows, len(names))


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
                    *(Cell(plus_minus(share, 1, 100), share["mean"]) for share in shares),
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
