"""Two figures over all runs: accuracy against cost, and the budget asked against the cost reached."""

from dynamicgate.lab.report.label_placement import LINE, MARKER, place_labels
from dynamicgate.lab.report.models import is_control
from dynamicgate.lab.report.number_format import percent, plus_minus, shorten, signed_points
from dynamicgate.lab.report.palette import colour_class, marker, model_styles
from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.summary import (
    Row,
    accuracy_of,
    asked_of,
    group_runs,
    pareto_front,
    relative_of,
    summarise,
)
from dynamicgate.lab.report.svg import (
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

WIDTH = 760.0


def accuracy_figure(results: Results, data: str) -> str:
    """Every run faintly, every model's mean with its spread, and the Pareto front of the means."""
    runs = [
        (run, cost, quality)
        for run in results["runs"]
        if run["data"] == data and (cost := relative_of(run)) is not None and (quality := accuracy_of(run)) is not None
    ]
    rows = [row for row in summarise(results) if row["data"] == data and row["relative"]["n"] and row["accuracy"]["n"]]
    if not runs:
        return ""
    styles = model_styles(run["model"] for run in results["runs"])
    x, y = plot_scales(rows, [cost for _, cost, _ in runs], [quality for _, _, quality in runs])
    x_ticks, y_ticks = round_ticks(x.low, x.high, 6), round_ticks(y.low * 100, min(y.high, 1.0) * 100, 5)
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
        words(8, 18, "accuracy, %", class_="axis"),
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
    controls = [row for row in rows if is_control(results, data, row["model"])]
    body += [mean_point(row, styles[row["model"]], x, y, control=True) for row in controls]
    body += [mean_point(row, styles[row["model"]], x, y, control=False) for row in rows if row not in controls]
    body.append(mean_labels(rows, styles, x, y))
    return drawing(WIDTH, y.start + 52, f"Accuracy against executed MACs on {data}, one point per run", *body)


def plot_scales(rows: list[Row], costs: list[float], qualities: list[float]) -> tuple[Scale, Scale]:
    """Cost from zero; accuracy over the range seen, error bars included, and never less than half a point."""
    low = min([*qualities, *(row["accuracy"]["mean"] - row["accuracy"]["std"] for row in rows)])
    high = max([*qualities, *(row["accuracy"]["mean"] + row["accuracy"]["std"] for row in rows)])
    margin = max(0.08 * (high - low), 0.0025)
    furthest = max([1.0, *costs, *(row["relative"]["mean"] + row["relative"]["std"] for row in rows)])
    return Scale(0.0, furthest * 1.04, 58.0, WIDTH - 12.0), Scale(low - margin, high + margin, 372.0, 34.0)


def front_line(rows: list[Row], x: Scale, y: Scale) -> str:
    """The front as steps: what is reachable at each cost without interpolating between models."""
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
    told = f"{name}: {percent(quality)} % at {plus_minus(cost, 3)} of the dense MACs, n = {row['n']}"
    drawn = marker(style, across, up, 7.5, class_="mean control" if control else "mean")
    return tag("g", tooltip(told), bars, drawn, class_=colour_class(style))


def mean_labels(rows: list[Row], styles: dict[str, int], x: Scale, y: Scale) -> str:
    """The models' names beside their means, with a line to those that found no room there."""
    points = [(x(row["relative"]["mean"]), y(row["accuracy"]["mean"])) for row in rows]
    names = [shorten(row["model"], 28) for row in rows]
    places = place_labels(points, names, (x.start, y.end - 10, x.end + 10, y.start))
    drawn = []
    for row, name, (x_point, y_point), (across, up, anchor) in zip(rows, names, points, places.values(), strict=True):
        colour, side = colour_class(styles[row["model"]]), 1.0 if anchor == "start" else -1.0
        if abs(up - y_point) > LINE / 2:
            drawn.append(line(x_point + side * MARKER, y_point, across - side * 3, up, class_=f"leader {colour}"))
        drawn.append(words(across, up + 4.5, name, text_anchor=anchor, class_=f"label {colour}"))
    return "".join(drawn)


def budget_figure(results: Results) -> str:
    """How far each run landed from the budget it was asked for, in points; one line per model."""
    missed = {
        name: found
        for name, runs in group_runs(results).items()
        if (
            found := [
                (run["seed"], reached - asked)
                for run in runs
                if (asked := asked_of(run)) is not None and (reached := relative_of(run)) is not None
            ]
        )
    }
    if not missed:
        return ""
    styles = model_styles(run["model"] for run in results["runs"])
    several = len({data for data, _ in group_runs(results)}) > 1
    furthest = max(1.5, *(abs(difference) * 115 for found in missed.values() for _, difference in found))
    bottom = 28.0 + 40.0 * len(missed)
    x, y = Scale(-furthest, furthest, 196.0, WIDTH - 118.0), Scale(0.0, 1.0, bottom, 18.0)
    ticks = round_ticks(x.low, x.high, 6)
    digits = decimals(ticks)
    body = [
        tag(
            "rect",
            tooltip("within one point of the budget"),
            x=x(-1.0),
            y=y.end,
            width=x(1.0) - x(-1.0),
            height=bottom - y.end,
            class_="band",
        ),
        axes(x, y, ticks, [], lambda tick: f"{tick:+.{digits}f}".replace("-", "−") if tick else "asked", str),
        line(x(0.0), y.end, x(0.0), bottom, class_="target"),
        words(x.end, bottom + 40, "reached − asked, in points of the dense MACs", class_="axis", text_anchor="end"),
    ]
    for index, ((data, model), found) in enumerate(missed.items()):
        height, style = 40.0 + 40.0 * index, styles[model]
        mean = sum(difference for _, difference in found) / len(found)
        name = f"{model}, {data}" if several else model
        body.append(
            words(184, height + 4.5, shorten(name, 20), class_="label " + colour_class(style), text_anchor="end")
        )
        body += [
            marker(
                style,
                x(difference * 100),
                height,
                5.5,
                tooltip(f"{name}, seed {seed}: {signed_points(difference)} points"),
                class_="half",
            )
            for seed, difference in found
        ]
        body.append(words(WIDTH - 104, height + 4.5, f"mean {signed_points(mean)}", class_="tick"))
    return drawing(WIDTH, bottom + 52, "Budget reached minus budget asked, per seed", *body)
