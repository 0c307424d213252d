"""What runs of models in stages say: how often each stage opened, what it costs, and how its rows fared."""

import math
from dataclasses import dataclass

from dynamicgate.lab.report.reading import Results, Run, SampleStats, get_object, get_objects
from dynamicgate.lab.report.run_metrics import accuracy_of, number, ratio
from dynamicgate.lab.report.summary import group_runs

SAME_COST = 1e-6  # relative: two counts of the same MACs


@dataclass(frozen=True)
class Stage:
    """One stage of one run, all as fractions; None where the run does not say.

    opened: of the rows. cost: of stopping after it, relative to dense. accuracy: if all rows stopped after it.
    stopped: the rows that stopped after it. error, hardness: of those rows.
    """

    opened: float | None
    cost: float | None
    accuracy: float | None
    stopped: float | None
    error: float | None
    hardness: float | None


def staged_groups(results: Results) -> dict[tuple[str, str], list[Run]]:
    """The runs with stages of each (dataset, model) that has any."""
    groups = {name: [run for run in runs if stage_costs(run)] for name, runs in group_runs(results).items()}
    return {name: runs for name, runs in groups.items() if runs}


def stage_numbers(run: Run, key: str) -> list[float | None]:
    """A number of each stage."""
    values = get_object(run, "stages").get(key)
    return [number(value) for value in values] if isinstance(values, list) else []


def stage_costs(run: Run) -> list[float | None]:
    """What a row costs that stops after each stage, relative to dense; empty for a run without stages."""
    return stage_numbers(run, "relative")


def describe_stages(run: Run, stats: SampleStats) -> list[Stage]:
    """Each stage of a run; how its rows fared is known where the sample statistics have levels of cost."""
    costs = stage_costs(run)
    count = len(costs)
    opened, accuracy = ((stage_numbers(run, key) + [None] * count)[:count] for key in ("open", "accuracy"))
    found = []
    for index, cost in enumerate(costs):
        this, later = opened[index], opened[index + 1] if index + 1 < count else 0.0
        stopped = None if this is None or later is None else this - later
        level = find_level(run, stats, cost)
        error = ratio(number(level.get("wrong")), number(level.get("count")))
        found.append(Stage(this, cost, accuracy[index], stopped, error, number(level.get("hardness"))))
    return found


def find_level(run: Run, stats: SampleStats, cost: float | None) -> dict[str, object]:
    """What the statistics say about the samples of this cost; nothing where there are none."""
    dense = number(run["macs"].get("dense"))
    for level in get_objects(stats, "levels"):
        found = ratio(number(level.get("macs")), dense)
        if found is not None and cost is not None and math.isclose(found, cost, rel_tol=SAME_COST):
            return level
    return {}


def stage_of_cost(run: Run, cost: float | None) -> int | None:
    """The stage at which a sample of this cost stopped, counted from 1."""
    for index, known in enumerate(stage_costs(run), start=1):
        if cost is not None and known is not None and math.isclose(cost, known, rel_tol=SAME_COST):
            return index
    return None


def curve_of(run: Run) -> list[tuple[float, float]]:
    """The accuracy-cost curve of a run: cost relative to dense, and accuracy."""
    points = [(number(point.get("relative")), number(point.get("accuracy"))) for point in get_objects(run, "curve")]
    return [(cost, accuracy) for cost, accuracy in points if cost is not None and cost > 0 and accuracy is not None]


def mean_curve(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean over seeds, point by point: those of one number are equally far between the cheapest and the most
    expensive. Empty where runs have different numbers of points."""
    if len({len(curve) for curve in curves}) != 1:
        return []
    return [
        (sum(cost for cost, _ in points) / len(points), sum(accuracy for _, accuracy in points) / len(points))
        for points in zip(*curves, strict=True)
    ]


def dealt_at_random(run: Run) -> float | None:
    """The accuracy if the same stops were dealt to rows at random."""
    return number(get_object(run, "stages").get("random"))


def cost_error(run: Run) -> float | None:
    """The correlation of what a row costs with being wrong."""
    return number(get_object(run, "stages").get("cost_error"))


def gain(run: Run) -> float | None:
    """How much more accurate a run is than with the same stops dealt at random."""
    accuracy, dealt = accuracy_of(run), dealt_at_random(run)
    return None if accuracy is None or dealt is None else accuracy - dealt
