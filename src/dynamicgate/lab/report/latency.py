"""Latency against executed MACs, for the runs whose models `dynamicgate bench` has timed: figure and table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.label_placement import LINE_HEIGHT, MARKER_RADIUS, Box, place_labels
from dynamicgate.lab.report.model_markers import colour_class, marker, model_styles
from dynamicgate.lab.report.number_format import ABSENT, counted, plus_minus, shorten
from dynamicgate.lab.report.reading import COMPILED, Results, Run, Timing, get_object, get_objects
from dynamicgate.lab.report.run_metrics import number, ratio, relative_of
from dynamicgate.lab.report.summary import Spread, dataset_names, group_runs, spread
from dynamicgate.lab.report.svg import (
    WIDE,
    Scale,
    axes,
    drawing,
    for_every_screen,
    line,
    log_ticks,
    polyline,
    tooltip,
    words,
)
from dynamicgate.lab.report.tables import Cell, Table, model_cells, model_columns

LOWEST, HIGHEST = 0.02, 2.0  # ends of both axes, unless a point lies beyond
DENSE = "dense"
ASKED_FOR = "dense_as_asked_for"  # in files that timed the dense network of the width asked for


@dataclass(frozen=True)
class TimedRun:
    """One run at one batch size."""

    run: Run
    batch: int
    microseconds: float
    latency: float | None
    """Relative to the dense network's."""
    baseline: str
    """Which dense network that was."""
    threads: int | None


@dataclass(frozen=True)
class Point:
    """A model at one batch size: means over its seeds."""

    model: str
    batch: int
    relative: float
    latency: Spread
    hover_text: str


def timed_runs(results: Results, timings: Sequence[Timing]) -> list[TimedRun]:
    """Every run and batch size that was timed, relative to the fastest dense network of the width asked for: what was
    timed with the run, and the model `dense` of the same dataset, seed and threads. Files of older versions have
    neither: then relative to the model's own layers without gates, which for a narrow model are as narrow.
    """
    known = list(zip(results["runs"], timings, strict=True))
    dense = {
        (run["data"], str(run["seed"]), threads_of(timing), batch): min(times.values())
        for run, timing in known
        if run["model"] == DENSE
        for batch, times in times_by_batch(timing).items()
    }
    found = []
    for run, timing in known:
        threads = threads_of(timing)
        for batch, times in times_by_batch(timing).items():
            trained = dense.get((run["data"], str(run["seed"]), threads, batch))
            is_width_asked_for = timing.get(ASKED_FOR) is True
            below = fastest_dense(times) if is_width_asked_for or trained is None else None
            rivals = [time for time in (trained, below) if time is not None]
            baseline = DENSE if is_width_asked_for or trained is not None else "own dense"
            latency = ratio(times[COMPILED], min(rivals, default=None))
            found.append(TimedRun(run, batch, times[COMPILED], latency, baseline, threads))
    return found


def fastest_dense(times: dict[str, float]) -> float | None:
    """The fastest dense network that was timed with a run."""
    return min((time for name, time in times.items() if name.startswith(DENSE) or name == "compiled"), default=None)


def times_by_batch(timing: Timing) -> dict[int, dict[str, float]]:
    """Microseconds by batch size and candidate; only rows that have the compiled model."""
    found = {}
    for row in get_objects(timing, "rows"):
        times = {name: value for name, given in row.items() if (value := number(given)) is not None and value > 0}
        batch = times.pop("batch", None)
        if batch is not None and COMPILED in times:
            found[round(batch)] = times
    return found


def threads_of(timing: Timing) -> int | None:
    """The number of threads it was timed with."""
    threads = number(get_object(get_object(timing, "meta"), "machine").get("threads"))
    return None if threads is None else round(threads)


def latency_points(timed: list[TimedRun], dataset: str) -> list[Point]:
    """One point for each model and batch size of a dataset that has both ratios."""
    groups: dict[tuple[str, int], list[TimedRun]] = {}
    for one in timed:
        if one.run["data"] == dataset and one.latency is not None and (relative_of(one.run) or 0.0) > 0.0:
            groups.setdefault((one.run["model"], one.batch), []).append(one)
    points = []
    for (model, batch), found in groups.items():
        relative, latency = spread(relative_of(one.run) for one in found), spread(one.latency for one in found)
        microseconds = spread(one.microseconds for one in found)
        text = (
            f"{model}, batch {batch}: {plus_minus(latency, 3)} of the dense latency ({plus_minus(microseconds, 1)} µs) "
            f"at {relative['mean']:.3f} of the dense MACs, {counted(len(found), 'seed')}"
        )
        points.append(Point(model, batch, relative["mean"], latency, text))
    return points


def latency_figure(results: Results, timed: list[TimedRun], dataset: str, width: float = WIDE) -> str:
    """Relative latency against relative MACs, both on one logarithmic range; on the diagonal they are equal."""
    points = latency_points(timed, dataset)
    if not points:
        return ""
    values = [value for point in points for value in (point.relative, point.latency["mean"])]
    low, high = math.log10(min(LOWEST, 0.8 * min(values))), math.log10(max(HIGHEST, 1.25 * max(values)))
    x, y = Scale(low, high, 58.0, width - 12.0), Scale(low, high, 432.0, 34.0)
    ticks = log_ticks(low, high)
    body = [
        axes(x, y, ticks, ticks, lambda tick: f"{10**tick:g}", lambda tick: f"{10**tick:g}"),
        words(x.end, y.start + 40, "executed MACs, relative to dense", class_="axis", text_anchor="end"),
        words(8, 18, "latency, relative to compiled dense", class_="axis"),
        line(x.start, y(0.0), x.end, y(0.0), class_="target"),
        words(x.start + 8, y(0.0) - 7, "as fast as compiled dense", class_="tick") if width >= WIDE else "",
        polyline([(x(low), y(low)), (x(high), y(high))], tooltip("latency falls as much as MACs"), class_="front"),
        words(x(low) + 84, y(low) - 26, "latency falls as much as MACs", class_="tick"),
    ]
    styles = model_styles(run["model"] for run in results["runs"])
    radii = batch_radii(points)
    points.sort(key=lambda point: -radii[point.batch])  # large marks first, so that they do not hide small ones
    places = [(x(math.log10(point.relative)), y(math.log10(point.latency["mean"]))) for point in points]
    body += [
        marker(
            styles[point.model],
            *place,
            radii[point.batch],
            tooltip(point.hover_text),
            class_="mean control" if is_control(results, dataset, point.model) else "mean",
        )
        for point, place in zip(points, places, strict=True)
    ]
    body.append(point_labels(points, places, styles, (x.start, y.end - 10, x.end + 10, y.start)))
    return drawing(width, y.start + 52, f"Latency against executed MACs on {dataset}, by model and batch size", *body)


def batch_radii(points: list[Point]) -> dict[int, float]:
    """The radius of each batch size: the larger the batch, the larger its mark."""
    batches = sorted({point.batch for point in points})
    return {batch: 4.5 + 4.0 * index / max(1, len(batches) - 1) for index, batch in enumerate(batches)}


def point_labels(points: list[Point], places: list[tuple[float, float]], styles: dict[str, int], within: Box) -> str:
    """The batch size beside each point where there is room, and always the model's name at its slowest point: a model's
    points have one cost, so the others are in a column below it."""
    slowest = {point.model: point for point in sorted(points, key=lambda point: point.latency["mean"])}
    named_here = [slowest[point.model] is point for point in points]
    names = [
        f"{shorten(point.model, 24)}, {point.batch}" if is_named else str(point.batch)
        for point, is_named in zip(points, named_here, strict=True)
    ]
    optional = [index for index, is_named in enumerate(named_here) if not is_named]
    drawn = []
    for index, anchor in place_labels(places, names, within, optional).items():
        place, side = places[index], 1.0 if anchor[2] == "start" else -1.0
        colour = colour_class(styles[points[index].model])
        if abs(anchor[1] - place[1]) > LINE_HEIGHT / 2:
            ends = (place[0] + side * MARKER_RADIUS, place[1], anchor[0] - side * 3, anchor[1])
            drawn.append(line(*ends, class_=f"leader {colour}"))
        label = {"text_anchor": anchor[2], "class_": f"label small {colour}"}
        drawn.append(words(anchor[0], anchor[1] + 4.5, names[index], **label))
    return "".join(drawn)


def latency_table(results: Results, timed: list[TimedRun]) -> Table:
    """Both ratios in numbers, one row for each model that was timed."""
    names = model_columns(results)
    batches = sorted({one.batch for one in timed})
    rows = []
    for dataset, model in group_runs(results):
        found = [one for one in timed if one.run["data"] == dataset and one.run["model"] == model]
        if not found:
            continue
        runs = {id(one.run): one.run for one in found}
        relative = spread(relative_of(run) for run in runs.values())
        latencies = [spread(one.latency for one in found if one.batch == batch) for batch in batches]
        baseline = ", ".join(sorted({one.baseline for one in found}))
        threads = ", ".join(map(str, sorted({one.threads for one in found if one.threads is not None}))) or ABSENT
        rows.append(
            [
                *model_cells(results, dataset, model),
                *(Cell(plus_minus(value, 3), value["mean"]) for value in (relative, *latencies)),
                Cell(threads, threads),
                Cell(baseline, baseline),
            ]
        )
    columns = [f"latency, batch {batch}" for batch in batches]
    return Table([*names, "executed MACs", *columns, "threads", "relative to"], rows, len(names))


def latency_section(results: Results, timings: Sequence[Timing]) -> dict[str, object] | None:
    """What the section shows; None where nothing was timed."""
    timed = timed_runs(results, timings)
    if not timed:
        return None
    figures = [
        {"name": dataset, "svg": svg}
        for dataset in dataset_names(results)
        if (svg := for_every_screen(partial(latency_figure, results, timed, dataset)))
    ]
    return {
        "figures": figures,
        "table": latency_table(results, timed),
        "own": sorted({one.run["model"] for one in timed if one.baseline != DENSE}),
    }
