"""Figure: accuracy against executed MACs, every run and every model's mean, with the Pareto front."""

from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.label_placement import LINE_HEIGHT, MARKER_RADIUS, place_labels
from dynamicgate.lab.report.model_markers import colour_class, marker, model_styles
from dynamicgate.lab.report.number_format import percent, plus_minus, shorten
from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.run_metrics import accuracy_of, quality_word, relative_of
from dynamicgate.lab.report.summary import Row, pareto_front, summarise
from dynamicgate.lab.report.svg import (
    WIDE,
    Scale,
    axes,
    decimals,
    drawing,
    line,
    polyline,
    round_ticks,
    tag,
    tooltip,
    words,
)


def accuracy_figure(results: Results, dataset: str, width: float = WIDE) -> str:
    """Every run as a faint mark, every model's mean with its standard deviation, and the Pareto front of the means."""
    on_dataset = [run for run in results["runs"] if run["data"] == dataset]
    runs = [
        (run, cost, quality)
        for run in on_dataset
        if (cost := relative_of(run)) is not None and (quality := accuracy_of(run)) is not None
    ]
    if not runs:
        return ""
    rows = [row for row in summarise({"runs": on_dataset}) if row["relative"]["n"] and row["accuracy"]["n"]]
    styles, word = model_styles(run["model"] for run in results["runs"]), quality_word(on_dataset)
    x, y = plot_scales(rows, [cost for _, cost, _ in runs], [quality for _, _, quality in runs], width)
    x_ticks, y_ticks = (
        round_ticks(x.low, x.high, round(width / 120)),
        round_ticks(y.low * 100, min(y.high, 1.0) * 100, 5),
    )
    digits_x, digits_y = decimals(x_ticks), decimals(y_ticks)
    body = [
        axes(
            x,
            y,
            x_ticks,
            [tick / 100 for tick in y_ticks],
            lambda tick: f"{tick:.{digits_x}f}",
            lambda tick: f"{tick * 100:.{digits_y}f}",
        ),
        words(x.end, y.start + 40, "executed MACs, relative to dense", class_="axis", text_anchor="end"),
        words(8, 18, f"{word}, %", class_="axis"),
        front_line(rows, x, y),
    ]
    body += [
        marker(
            styles[run["model"]],
            x(cost),
            y(quality),
            4.5,
            tooltip(f"{run['model']}, seed {run['seed']}: {quality:.2%} at {cost:.3f}"),
            class_="faint",
        )
        for run, cost, quality in runs
    ]
    controls = [row for row in rows if is_control(results, dataset, row["model"])]
    body += [mean_point(row, styles[row["model"]], x, y, control=True) for row in controls]
    body += [mean_point(row, styles[row["model"]], x, y, control=False) for row in rows if row not in controls]
    body.append(mean_labels(rows, styles, x, y))
    return drawing(
        width, y.start + 52, f"{word[0].upper()}{word[1:]} against executed MACs on {dataset}, one point per run", *body
    )


def plot_scales(rows: list[Row], costs: list[float], qualities: list[float], width: float) -> tuple[Scale, Scale]:
    """Cost starts at zero; accuracy covers its range, error bars included, and at least half a percentage point."""
    low = min([*qualities, *(row["accuracy"]["mean"] - row["accuracy"]["std"] for row in rows)])
    high = max([*qualities, *(row["accuracy"]["mean"] + row["accuracy"]["std"] for row in rows)])
    margin = max(0.08 * (high - low), 0.0025)
    furthest = max([1.0, *costs, *(row["relative"]["mean"] + row["relative"]["std"] for row in rows)])
    return Scale(0.0, furthest * 1.04, 58.0, width - 12.0), Scale(low - margin, high + margin, 372.0, 34.0)


def front_line(rows: list[Row], x: Scale, y: Scale) -> str:
    """The Pareto front as steps: what can be reached at each cost without interpolating between models."""
    front = pareto_front((row["relative"]["mean"], row["accuracy"]["mean"]) for row in rows)
    corners = [(x(front[0][0]), y.start)]
    for (cost, quality), (_, before) in zip(front, [(0.0, None), *front], strict=False):
        corners += [(x(cost), corners[-1][1] if before is None else y(before)), (x(cost), y(quality))]
    corners.append((x.end, corners[-1][1]))
    return polyline(corners, tooltip("Pareto front of the means"), class_="front")


def mean_point(row: Row, style: int, x: Scale, y: Scale, control: bool) -> str:
    """A model's mean with one standard deviation either way; hollow if the model is a control."""
    cost, quality = row["relative"], row["accuracy"]
    across, up = x(cost["mean"]), y(quality["mean"])
    bars = ""
    if quality["n"] > 1:
        bars = line(
            x(max(cost["mean"] - cost["std"], 0.0)), up, x(cost["mean"] + cost["std"]), up, class_="bar"
        ) + line(across, y(quality["mean"] - quality["std"]), across, y(quality["mean"] + quality["std"]), class_="bar")
    name = f"{row['model']} (control)" if control else row["model"]
    text = f"{name}: {percent(quality)} % at {plus_minus(cost, 3)} of the dense MACs, n = {row['n']}"
    drawn = marker(style, across, up, 7.5, class_="mean control" if control else "mean")
    return tag("g", tooltip(text), bars, drawn, class_=colour_class(style))


def mean_labels(rows: list[Row], styles: dict[str, int], x: Scale, y: Scale) -> str:
    """The models' names beside their means, with a line to the name where there was no room beside the mean."""
    points = [(x(row["relative"]["mean"]), y(row["accuracy"]["mean"])) for row in rows]
    names = [shorten(row["model"], 28) for row in rows]
    places = place_labels(points, names, (x.start, y.end - 10, x.end + 10, y.start))
    drawn = []
    for row, name, (x_point, y_point), (across, up, anchor) in zip(rows, names, points, places.values(), strict=True):
        colour, side = colour_class(styles[row["model"]]), 1.0 if anchor == "start" else -1.0
        if abs(up - y_point) > LINE_HEIGHT / 2:
            start, end = x_point + side * MARKER_RADIUS, across - side * 3
            drawn.append(line(start, y_point, end, up, class_=f"leader {colour}"))
        drawn.append(words(across, up + 4.5, name, text_anchor=anchor, class_=f"label {colour}"))
    return "".join(drawn)
