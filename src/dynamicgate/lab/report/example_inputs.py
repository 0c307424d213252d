"""The inputs that a model found easiest and hardest, cheapest and most expensive: how they look and what they cost."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from dynamicgate.lab.report.number_format import fixed
from dynamicgate.lab.report.reading import EXAMPLE_KINDS, Run, SampleStats, get_objects
from dynamicgate.lab.report.run_metrics import number, ratio
from dynamicgate.lab.report.stage_runs import stage_costs, stage_of_cost

EXPLAINED = {
    "easiest": "highest confidence",
    "hardest": "lowest confidence",
    "cheapest": "fewest MACs",
    "most expensive": "most MACs",
}
MAX_EXAMPLES = 3
MAX_FEATURES = 8


def example_groups(run: Run, stats: SampleStats) -> list[dict[str, Any]]:
    """The groups of inputs that a page shows: of each kind a few."""
    names = class_names(stats)
    groups = []
    for kind, explained in EXPLAINED.items():
        samples = get_objects(stats, EXAMPLE_KINDS[kind])[:MAX_EXAMPLES]
        if samples:
            examples = [describe_example(sample, run, names) for sample in samples]
            groups.append({"kind": kind, "explained": explained, "samples": examples})
    return groups


def describe_example(sample: dict[str, Any], run: Run, names: Sequence[str]) -> dict[str, Any]:
    """One input: how it looks, its class, the predicted class, with which confidence, and what it cost."""
    cost = ratio(number(sample.get("macs")), number(run["macs"].get("dense")))
    stage = stage_of_cost(run, cost)
    hardness = number(sample.get("hardness"))
    label, predicted = (class_name(sample.get(key), names) for key in ("label", "predicted"))
    return {
        "picture": png_or_empty(sample.get("picture")),
        "features": notable_features(sample.get("features")),
        "row": str(sample.get("row", "?")),
        "label": label,
        "predicted": predicted,
        "correct": label == predicted,
        "confidence": "" if hardness is None else f"{(1 - hardness) * 100:.1f} %",
        "cost": fixed(cost, 3),
        "stage": "" if stage is None else f"stage {stage} of {len(stage_costs(run))}",
    }


def class_name(value: object, names: Sequence[str]) -> str:
    """The name of a class, or its number."""
    index = number(value)
    if index is None:
        return "?"
    return names[int(index)] if 0 <= index < len(names) else str(int(index))


def png_or_empty(value: object) -> str:
    """The value if it is a PNG in base64, else nothing."""
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return ""
    return str(value) if content.startswith(b"\x89PNG\r\n") else ""


def notable_features(value: object) -> list[dict[str, Any]]:
    """The features that stand out, with the length of their bar: 100 % at the largest deviation."""
    rows = [
        (str(row[0]), number(row[1]), number(row[2]))
        for row in (value if isinstance(value, list) else [])
        if isinstance(row, list) and len(row) == 3
    ]
    known = [(name, value, deviation) for name, value, deviation in rows if value is not None and deviation is not None]
    largest = max((abs(deviation) for _, _, deviation in known), default=0.0) or 1.0
    return [
        {
            "name": name,
            "deviation": f"{deviation:+.1f}".replace("-", "−"),
            "bar": round(100 * abs(deviation) / largest),
            "below": deviation < 0,
        }
        for name, _, deviation in known[:MAX_FEATURES]
    ]


def class_names(stats: SampleStats) -> list[str]:
    """The names of the classes where they have names."""
    names = stats.get("classes")
    return [str(name) for name in names] if isinstance(names, list) else []
