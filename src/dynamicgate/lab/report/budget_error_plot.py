"""Figure: how far each run landed from its budget."""

from dynamicgate.lab.report.model_markers import colour_class, marker, model_styles
from dynamicgate.lab.report.number_format import shorten, signed_points
from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.run_metrics import relative_of, target_of
from dynamicgate.lab.report.summary import group_runs, has_several_datasets
from dynamicgate.lab.report.svg import WIDE, Scale, axes, decimals, drawing, line, round_ticks, tag, tooltip, words


def budget_figure(results: Results, width: float = WIDE) -> str:
    """The MACs reached minus the budget, in percentage points: one row per model, one mark per seed."""
    differences = budget_differences(results)
    if not differences:
        return ""
    styles = model_styles(run["model"] for run in results["runs"])
    several = has_several_datasets(results)
    furthest = max(1.5, *(abs(difference) * 115 for found in differences.values() for _, difference in found))
    bottom = 28.0 + 40.0 * len(differences)
    is_wide = width >= WIDE
    left, right, letters = (196.0, 118.0, 20) if is_wide else (112.0, 62.0, 12)
    x, y = Scale(-furthest, furthest, left, width - right), Scale(0.0, 1.0, bottom, 18.0)
    ticks = round_ticks(x.low, x.high, round(width / 125))
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
        axes(x, y, ticks, [], lambda tick: f"{tick:+.{digits}f}".replace("-", "−") if tick else "budget", str),
        line(x(0.0), y.end, x(0.0), bottom, class_="target"),
        words(
            x.end,
            bottom + 40,
            "reached − budget, in points of the dense MACs" if is_wide else "reached − budget, in points",
            class_="axis",
            text_anchor="end",
        ),
    ]
    for index, ((dataset, model), found) in enumerate(differences.items()):
        height, style = 40.0 + 40.0 * index, styles[model]
        mean = sum(difference for _, difference in found) / len(found)
        name = f"{model}, {dataset}" if several else model
        body.append(
            words(
                left - 12,
                height + 4.5,
                shorten(name, letters),
                class_="label " + colour_class(style),
                text_anchor="end",
            )
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
        text = f"mean {signed_points(mean)}" if is_wide else signed_points(mean)
        body.append(words(x.end + 14, height + 4.5, text, class_="tick"))
    return drawing(width, bottom + 52, "MACs reached minus budget, per seed", *body)


def budget_differences(results: Results) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """For each (dataset, model): seed, and relative MACs reached minus budget, of every run that has a budget."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for name, runs in group_runs(results).items():
        for run in runs:
            target, reached = target_of(run), relative_of(run)
            if target is not None and reached is not None:
                found.setdefault(name, []).append((run["seed"], reached - target))
    return found
