"""The tables of the report, as cells that a page or a terminal can lay out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.model_markers import model_styles, swatch
from dynamicgate.lab.report.number_format import (
    ABSENT,
    fixed,
    percent,
    plus_minus,
    quantity,
    rounded_percent,
    signed_points,
)
from dynamicgate.lab.report.reading import Results, Run, gates_in, get_object, get_objects
from dynamicgate.lab.report.run_metrics import number, quality_word, relative_of, target_of
from dynamicgate.lab.report.summary import Row, Spread, group_runs, has_several_datasets, spread, summarise

PROXIES = {
    "compute_proxy_p": "ComputeProxy (p)",
    "compute_proxy_g": "ComputeProxy (g)",
    "relmac_p": "RelMAC (p)",
    "relmac_g": "RelMAC (g)",
    "relmac_fuse_p": "RelMAC fuse (p)",
    "relmac_fuse_g": "RelMAC fuse (g)",
}
SAVINGS = {"structure_saved": "sparsity saves, %", "gate_saved": "gates save, %"}


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and the marker before it (trusted SVG)."""

    text: str
    value: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Named columns over rows of cells; the first ``names`` columns are text, the others numbers."""

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    names: int = 1


def model_cells(results: Results, dataset: str, model: str) -> list[Cell]:
    """The cells that name a row's model, and its dataset where there are several."""
    styles = model_styles(run["model"] for run in results["runs"])
    model_cell = Cell(model, model, swatch(styles[model], is_control(results, dataset, model)))
    return [model_cell, Cell(dataset, dataset)] if has_several_datasets(results) else [model_cell]


def model_columns(results: Results) -> list[str]:
    """The headings over ``model_cells``."""
    return ["model", "dataset"] if has_several_datasets(results) else ["model"]


def summary_table(results: Results) -> Table:
    """Quality and cost of every model, controls included: mean ± std over seeds."""
    names = model_columns(results)
    summary = summarise(results)
    shown: list[tuple[str, str, Callable[[Spread], str]]] = [
        ("relative", "relative", lambda value: plus_minus(value, 3)),
        (f"{quality_word(results['runs'])}, %", "accuracy", percent),
        ("RMSE", "rmse", lambda value: plus_minus(value, 4))
        if quality_word(results["runs"]) == "R²"
        else ("macro-F1, %", "macro_f1", percent),
        ("executed MACs", "executed", quantity),
        *((heading, key, rounded_percent) for key, heading in savings_columns(summary).items()),
        *((key, key, lambda value: fixed(value["mean"], 3)) for key in percentile_columns(summary)),
        ("zero-skipping", "relative_zero_skip", lambda value: plus_minus(value, 3)),
        ("gate MACs, %", "gate_fraction", rounded_percent),
        ("parameters", "params", lambda value: plus_minus(value, 0)),
        ("seconds", "seconds", lambda value: plus_minus(value, 1)),
    ]
    rows = [
        [
            *model_cells(results, row["data"], row["model"]),
            *(Cell(text(row[key]), row[key]["mean"]) for _, key, text in shown),
            Cell(str(row["n"]), row["n"]),
        ]
        for row in summary
    ]
    return Table([*names, *(heading for heading, _, _ in shown), "seeds"], rows, len(names))


def savings_columns(summary: list[Row]) -> dict[str, str]:
    """The headings over what sparsity and what gates save; none where nothing is saved, or no run says so."""
    saved = [row[key]["mean"] for row in summary for key in SAVINGS]
    return SAVINGS if any(mean is not None and abs(mean) > 1e-9 for mean in saved) else {}


def percentile_columns(summary: list[Row]) -> tuple[str, ...]:
    """The percentiles of the cost of single samples; none where every model spends the same on all samples."""
    ends = [(row["p5"]["mean"], row["p95"]["mean"]) for row in summary]
    varies = any(low is not None and high is not None and high - low > 1e-9 for low, high in ends)
    return ("p5", "p50", "p95") if varies else ()


def budget_table(results: Results) -> Table:
    """The budget of each run beside what it reached, in percentage points."""
    names = model_columns(results)
    rows = []
    for (dataset, model), runs in group_runs(results).items():
        for run in runs:
            target, reached = target_of(run), relative_of(run)
            if target is None or reached is None:
                continue
            rows.append(
                [
                    *model_cells(results, dataset, model),
                    Cell(str(run["seed"]), number(run["seed"])),
                    Cell(fixed(target, 3), target),
                    Cell(fixed(reached, 3), reached),
                    Cell(signed_points(reached - target), reached - target),
                ]
            )
    return Table([*names, "seed", "budget", "reached", "difference, points"], rows, len(names))


def layer_table(runs: list[Run]) -> Table:
    """Each layer's open rate, density and executed MACs, mean over seeds."""
    layers: dict[str, list[Run]] = {}
    for run in runs:
        for layer in get_objects(run, "layers"):
            layers.setdefault(str(layer.get("name", ABSENT)), []).append(layer)
    macs = {name: spread(number(layer.get("macs")) for layer in found) for name, found in layers.items()}
    total = sum(value["mean"] or 0.0 for value in macs.values())
    rows = []
    for name, found in layers.items():
        opened = spread(number(layer.get("open")) for layer in found)
        density = spread(number(layer.get("density")) for layer in found)
        fraction = macs[name]["mean"] / total if macs[name]["mean"] is not None and total else None
        rows.append(
            [
                Cell(name, name),
                Cell(plus_minus(opened, 3), opened["mean"]),
                Cell(plus_minus(density, 3), density["mean"]),
                Cell(quantity(macs[name]), macs[name]["mean"]),
                Cell(fixed(None if fraction is None else fraction * 100, 1), fraction),
            ]
        )
    return Table(["layer", "open rate", "density", "MACs", "of all MACs, %"], rows)


def input_dependence_table(results: Results) -> Table:
    """Whether decisions change with the input, gate by gate, mean over seeds; and the cost from sample to sample."""
    names = model_columns(results)
    columns = [
        *names,
        "gate",
        "blocks",
        "always open, %",
        "always closed, %",
        "varying, %",
        "variance",
        "cost, 5th percentile",
        "cost, median",
        "cost, 95th percentile",
    ]
    rows = []
    for (dataset, model), runs in group_runs(results).items():
        costs = [spread(number(get_object(run, "samples").get(key)) for run in runs) for key in ("p5", "p50", "p95")]
        gates: dict[str, list[Run]] = {}
        for run in runs:
            for gate in gates_in(run):
                gates.setdefault(str(gate.get("name", ABSENT)), []).append(gate)
        for name, found in gates.items():
            fractions = [
                spread(number(gate.get(key)) for gate in found) for key in ("always_on", "always_off", "varying")
            ]
            variance = spread(number(gate.get("variance")) for gate in found)
            blocks = spread(number(gate.get("blocks")) for gate in found)
            rows.append(
                [
                    *model_cells(results, dataset, model),
                    Cell(name, name),
                    Cell(plus_minus(blocks, 0), blocks["mean"]),
                    *(Cell(rounded_percent(fraction), fraction["mean"]) for fraction in fractions),
                    Cell(plus_minus(variance, 4), variance["mean"]),
                    *(Cell(fixed(cost["mean"], 3), cost["mean"]) for cost in costs),
                ]
            )
    return Table(columns, rows, len(names) + 1)


def proxy_table(results: Results) -> Table:
    """The paper's proxies, beside the relative executed MACs they approximate."""
    names = model_columns(results)
    rows = []
    for (dataset, model), runs in group_runs(results).items():
        values = [spread(number(get_object(run, "proxies").get(key)) for run in runs) for key in PROXIES]
        if any(value["n"] for value in values):
            executed = spread(relative_of(run) for run in runs)
            rows.append(
                [
                    *model_cells(results, dataset, model),
                    *(Cell(plus_minus(value, 3), value["mean"]) for value in [executed, *values]),
                ]
            )
    return Table([*names, "executed, relative", *PROXIES.values()], rows, len(names))
