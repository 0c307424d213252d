"""The section of the page about models in stages: their curves, their controls, and a panel for each model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from dynamicgate.lab.report.label_placement import place_labels
from dynamicgate.lab.report.model_markers import colour_class, marker, model_styles
from dynamicgate.lab.report.model_panels import Panel, panel_title
from dynamicgate.lab.report.number_format import fixed, percent, plus_minus, rounded_percent, signed_points
from dynamicgate.lab.report.reading import Results, Run, SampleStats
from dynamicgate.lab.report.run_metrics import accuracy_of, number
from dynamicgate.lab.report.stage_curves import stage_figure
from dynamicgate.lab.report.stage_runs import Stage, cost_error, dealt_at_random, describe_stages, gain, staged_groups
from dynamicgate.lab.report.summary import Spread, dataset_names, spread
from dynamicgate.lab.report.svg import (
    Scale,
    axes,
    decimals,
    drawing,
    for_every_screen,
    line,
    round_ticks,
    tooltip,
    words,
)
from dynamicgate.lab.report.tables import Cell, Table, model_cells, model_columns

WIDTH = 480.0
HEIGHT = 170.0
LARGEST = 13.0  # radius of the mark of a stage at which all rows stop


def stage_section(results: Results, all_stats: Sequence[SampleStats]) -> dict[str, Any] | None:
    """Everything the section shows; None where no run has stages."""
    groups = staged_groups(results)
    if not groups:
        return None
    stats_of = {id(run): stats for run, stats in zip(results["runs"], all_stats, strict=True)}
    figures = [
        {"name": name, "svg": svg}
        for name in dataset_names(results)
        if (svg := for_every_screen(partial(stage_figure, results, name)))
    ]
    panels = [
        stage_panel(results, dataset, model, runs, [stats_of[id(run)] for run in runs])
        for (dataset, model), runs in groups.items()
    ]
    return {"figures": figures, "controls": control_table(results, stats_of), "panels": panels}


def control_table(results: Results, stats_of: dict[int, SampleStats]) -> Table:
    """The accuracy of each model beside that of the same stops dealt at random, and what its cost goes along with."""
    names = model_columns(results)
    rows = []
    for (dataset, model), runs in staged_groups(results).items():
        accuracy, dealt = spread(accuracy_of(run) for run in runs), spread(dealt_at_random(run) for run in runs)
        gained = spread(gain(run) for run in runs)
        with_error = spread(cost_error(run) for run in runs)
        with_hardness = spread(number(stats_of[id(run)].get("correlation")) for run in runs)
        rows.append(
            [
                *model_cells(results, dataset, model),
                Cell(percent(accuracy), accuracy["mean"]),
                Cell(percent(dealt), dealt["mean"]),
                Cell("–" if gained["mean"] is None else signed_points(gained["mean"]), gained["mean"]),
                Cell(plus_minus(with_error, 2), with_error["mean"]),
                Cell(plus_minus(with_hardness, 2), with_hardness["mean"]),
            ]
        )
    headings = [
        "accuracy, %",
        "same stops dealt at random, %",
        "difference, points",
        "correlation of cost and error",
        "correlation of cost and hardness",
    ]
    return Table([*names, *headings], rows, len(names))


def stage_panel(results: Results, dataset: str, model: str, runs: list[Run], stats: list[SampleStats]) -> Panel:
    """What each stage of a model costs and how its rows fared, as a figure, a table and a sentence."""
    style = model_styles(run["model"] for run in results["runs"])[model]
    described = [describe_stages(run, one) for run, one in zip(runs, stats, strict=True)]
    by_stage = list(zip(*(found for found in described if len(found) == len(described[0])), strict=True))
    return {
        **panel_title(results, dataset, model),
        "svg": error_figure(model, style, runs, described),
        "table": stage_table(by_stage),
        "note": stage_note(by_stage),
    }


def of_stage(stages: Sequence[Stage], read: Callable[[Stage], float | None]) -> Spread:
    """A number of one stage over seeds."""
    return spread(read(stage) for stage in stages)


def stage_table(by_stage: Sequence[Sequence[Stage]]) -> Table:
    """For each stage who opened it, what it costs, and how those that stopped there fared; mean over seeds."""
    shown: list[tuple[str, Callable[[Stage], float | None], Callable[[Spread], str]]] = [
        ("opened by, %", lambda stage: stage.opened, rounded_percent),
        ("cost if stopped there", lambda stage: stage.cost, lambda value: plus_minus(value, 3)),
        ("accuracy if all stopped there, %", lambda stage: stage.accuracy, percent),
        ("stopped there, %", lambda stage: stage.stopped, rounded_percent),
        ("wrong among these, %", lambda stage: stage.error, rounded_percent),
        ("their mean hardness", lambda stage: stage.hardness, lambda value: plus_minus(value, 3)),
    ]
    rows = []
    for index, stages in enumerate(by_stage, start=1):
        values = [(of_stage(stages, read), text) for _, read, text in shown]
        rows.append([Cell(str(index), index), *(Cell(text(value), value["mean"]) for value, text in values)])
    return Table(["stage", *(heading for heading, _, _ in shown)], rows)


def stage_note(by_stage: Sequence[Sequence[Stage]]) -> str:
    """How many rows stop first and last, and how many of them are wrong."""
    parts = []
    for stages, where in ((by_stage[0], "stop after the first stage"), (by_stage[-1], "open all stages")):
        stopped = of_stage(stages, lambda stage: stage.stopped)["mean"]
        error = of_stage(stages, lambda stage: stage.error)["mean"]
        if stopped is not None and error is not None:
            parts.append(f"{stopped * 100:.1f} % of the samples {where}, {error * 100:.1f} % of these are wrong")
    return "; ".join(parts)


def error_figure(model: str, style: int, runs: list[Run], described: list[list[Stage]]) -> str:
    """What a sample costs against how often such samples are wrong: a mark for each stage, as large as the part of the
    samples that stop there, and a small one for each seed. Empty where no run says who was wrong."""
    known = [
        (run["seed"], index, stage)
        for run, stages in zip(runs, described, strict=True)
        for index, stage in enumerate(stages, start=1)
        if stage.cost is not None and stage.error is not None and stage.stopped
    ]
    if not known:
        return ""
    top, bottom = 34.0, 34.0 + HEIGHT
    x = Scale(0.0, 1.12 * max(stage.cost or 0.0 for _, _, stage in known), 44.0, WIDTH - 14.0)
    y = Scale(0.0, 1.1 * max([0.01, *(stage.error or 0.0 for _, _, stage in known)]), bottom, top)
    x_ticks, y_ticks = round_ticks(x.low, x.high, 5), round_ticks(0.0, y.high * 100, 4)
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
        words(x.start, 14, "wrong, % of the samples of this cost", class_="axis"),
        words(x.end, bottom + 38, "executed MACs per sample, relative to dense", class_="axis", text_anchor="end"),
    ]
    overall = spread(None if (found := accuracy_of(run)) is None else 1 - found for run in runs)["mean"]
    if overall is not None and overall <= y.high:
        body.append(line(x.start, y(overall), x.end, y(overall), class_="target"))
        text = f"all samples {overall * 100:.1f} %"
        body.append(words(x.end, y(overall) - 6, text, class_="tick", text_anchor="end"))
    indices = sorted({index for _, index, _ in known})
    marks = [stage_mark(index, [(seed, stage) for seed, at, stage in known if at == index]) for index in indices]
    for mark in marks:
        body += draw_stage(style, mark, x, y)
    places = place_labels(
        [(x(m.cost), y(m.error)) for m in marks], [m.name for m in marks], (x.start, top - 12, WIDTH, bottom)
    )
    for mark, (across, up, anchor) in zip(marks, places.values(), strict=True):
        body.append(words(across, up + 4.5, mark.name, class_=f"small label {colour_class(style)}", text_anchor=anchor))
    label = f"Cost of a sample against its error: {model}"
    return drawing(WIDTH, bottom + 48, label, *body, class_=f"plot panel {colour_class(style)}")


class StageMark(NamedTuple):
    """One stage in the figure: means over seeds, and each seed."""

    number: int
    cost: float
    error: float
    stopped: float
    hardness: float | None
    seeds: list[tuple[int, Stage]]

    @property
    def name(self) -> str:
        """The words beside the mark."""
        return f"stage {self.number}, {self.stopped * 100:.0f} %"


def stage_mark(index: int, seeds: list[tuple[int, Stage]]) -> StageMark:
    """The means of one stage over seeds."""
    cost, error, stopped, hardness = (
        spread(getattr(stage, key) for _, stage in seeds)["mean"] for key in ("cost", "error", "stopped", "hardness")
    )
    return StageMark(index, cost, error, stopped, hardness, seeds)


def draw_stage(style: int, mark: StageMark, x: Scale, y: Scale) -> list[str]:
    """The mark of one stage, and a small one for each seed where there are several."""
    text = (
        f"stage {mark.number}: {mark.stopped * 100:.1f} % of the samples stop here at {mark.cost:.3f}, "
        f"{mark.error * 100:.1f} % of these are wrong, mean hardness {fixed(mark.hardness, 3)}"
    )
    radius = max(3.5, LARGEST * mark.stopped**0.5)
    drawn = [marker(style, x(mark.cost), y(mark.error), radius, tooltip(text), class_="half")]
    for seed, stage in mark.seeds if len(mark.seeds) > 1 else []:
        assert stage.cost is not None
        assert stage.error is not None
        hint = tooltip(f"stage {mark.number}, seed {seed}: {stage.error * 100:.1f} % wrong")
        drawn.append(marker(style, x(stage.cost), y(stage.error), 2.5, hint, class_="faint"))
    return drawn
