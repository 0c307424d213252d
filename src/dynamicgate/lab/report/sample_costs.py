"""What single samples cost: histograms, and whether hard inputs cost more."""

from typing import NamedTuple

from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.number_format import signed
from dynamicgate.lab.report.reading import Run, SampleStats, get_object, get_objects
from dynamicgate.lab.report.run_metrics import number, ratio, relative_of, target_of
from dynamicgate.lab.report.svg import Scale, axes, decimals, drawing, line, round_ticks, tag, tooltip, words

WIDTH = 480.0
HEIGHT = 150.0


def cost_range(run: Run, stats: SampleStats) -> tuple[float, float] | None:
    """The least and the greatest cost of a sample, relative to dense; None where all samples cost the same."""
    macs, dense = get_object(stats, "macs"), number(run["macs"].get("dense"))
    low, high = ratio(number(macs.get("low")), dense), ratio(number(macs.get("high")), dense)
    return (low, high) if low is not None and high is not None and high > low else None


def cost_histogram(model: str, style: int, run: Run, stats: SampleStats, within: tuple[float, float]) -> str:
    """How many samples cost how much, on an axis that the models of a dataset share; empty where all cost the same."""
    ends = cost_range(run, stats)
    columns = cost_columns(run, stats, ends) if ends else []
    counts = [column.samples for column in columns]
    if ends is None or not any(counts):
        return ""
    target = target_of(run)
    low, high = min(within[0], target or within[0]), max(within[1], target or within[1])
    margin, total, top, bottom = 0.04 * (high - low), sum(counts), 30.0, 30.0 + HEIGHT
    x, y = Scale(low - margin, high + margin, 44.0, WIDTH - 14.0), Scale(0.0, max(counts) / total, bottom, top)
    x_ticks, y_ticks = round_ticks(x.low, x.high, 5), round_ticks(0.0, y.high, 3)
    digits_x, digits_y = decimals(x_ticks), max(0, decimals(y_ticks) - 2)
    body = [
        axes(x, y, x_ticks, y_ticks, lambda tick: f"{tick:.{digits_x}f}", lambda tick: f"{tick * 100:.{digits_y}f}"),
        words(x.start, 14, "samples, %", class_="axis"),
        words(x.end, bottom + 38, "executed MACs per sample, relative to dense", class_="axis", text_anchor="end"),
    ]
    body += [cost_column(column, total, x, y) for column in columns if column.samples]
    references = [(relative_of(run), "mean", "mean-line"), (target, "budget", "target")]
    known = [(value, name, css) for value, name, css in references if value is not None]
    body += [line(x(value), top - 6, x(value), bottom, class_=css) for value, _, css in known]
    text = ", ".join(f"{name} {value:.3f}" for value, name, _ in known)
    body.append(words(x.end, 14, text, class_="axis", text_anchor="end"))
    label = f"Executed MACs per sample: {model}, seed {run['seed']}"
    return drawing(WIDTH, bottom + 48, label, *body, class_=f"plot panel {colour_class(style)}")


class Column(NamedTuple):
    """Samples of this range of costs; of one cost if it has no width."""

    start: float
    end: float
    samples: float


def cost_columns(run: Run, stats: SampleStats, ends: tuple[float, float]) -> list[Column]:
    """The bins of the histogram; where samples have a few distinct costs, as those of stages, these."""
    dense = number(run["macs"].get("dense"))
    levels = [(ratio(number(level.get("macs")), dense), level) for level in get_objects(stats, "levels")]
    if levels:
        return [Column(cost, cost, number(level.get("count")) or 0.0) for cost, level in levels if cost is not None]
    counts = [number(count) or 0.0 for count in get_object(stats, "macs").get("counts") or []]
    width = (ends[1] - ends[0]) / max(1, len(counts))
    return [Column(ends[0] + at * width, ends[0] + (at + 1) * width, count) for at, count in enumerate(counts)]


def cost_column(column: Column, total: float, x: Scale, y: Scale) -> str:
    """A bar as wide as the range of costs, or a narrow one around a single cost."""
    start, end, count = column
    where = f"{start:.3f} to {end:.3f}" if end > start else f"{start:.3f}"
    left, thick = (x(start), max(3.0, x(end) - x(start) - 0.6)) if end > start else (x(start) - 5.0, 10.0)
    text, up = f"{where}: {count:,.0f} samples, {count / total:.1%}", y(count / total)
    return tag("rect", tooltip(text), x=left, y=up, width=thick, height=y.start - up, class_="column")


def cost_caption(run: Run, stats: SampleStats) -> str:
    """Whether the model spends more on samples it finds hard."""
    dense = number(run["macs"].get("dense"))
    right, wrong = (ratio(number(stats.get(f"macs_if_{kind}")), dense) for kind in ("right", "wrong"))
    found = []
    if right is not None and wrong is not None:
        found.append(f"correctly classified samples cost {right:.3f}, misclassified ones {wrong:.3f}")
    correlation = number(stats.get("correlation"))
    if correlation is not None:
        with_cost = "absolute error" if stats.get("task") == "regression" else "hardness"
        found.append(f"correlation of {with_cost} and cost {signed(correlation)}")
    return "; ".join(found)


def class_costs(run: Run, stats: SampleStats) -> list[float | None]:
    """Mean cost of the samples of each class, relative to dense; empty where all samples cost the same."""
    if cost_range(run, stats) is None:
        return []
    dense, by_class = number(run["macs"].get("dense")), stats.get("macs_by_class")
    return [ratio(number(macs), dense) for macs in by_class] if isinstance(by_class, list) else []
