"""The inputs a model found easiest and hardest, cheapest and dearest: how they look and what they cost."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from dynamicgate.lab.report.costs import Evidence
from dynamicgate.lab.report.number_format import fixed
from dynamicgate.lab.report.reading import Run, parts
from dynamicgate.lab.report.summary import number, ratio

KINDS = {"easiest": "most sure", "hardest": "least sure", "cheapest": "fewest MACs", "dearest": "most MACs"}
MOST_SHOWN = 3
MOST_FEATURES = 8


def shown_inputs(run: Run, evidence: Evidence) -> list[dict[str, Any]]:
    """The groups of inputs that a page shows, each with what they cost."""
    names = class_names(evidence)
    groups = []
    for kind, what in KINDS.items():
        samples = [shown_input(sample, run, names) for sample in parts(evidence, kind)[:MOST_SHOWN]]
        if samples:
            groups.append({"kind": kind, "what": what, "samples": samples})
    return groups


def shown_input(sample: dict[str, Any], run: Run, names: Sequence[str]) -> dict[str, Any]:
    """One input: how it looks, what it is, what it was taken for, how sure, and what it cost."""
    cost = ratio(number(sample.get("macs")), number(run["macs"].get("dense")))
    hardness = number(sample.get("hardness"))
    label, predicted = (class_of(sample.get(key), names) for key in ("label", "predicted"))
    return {
        "picture": safe_picture(sample.get("picture")),
        "features": shown_features(sample.get("features")),
        "row": str(sample.get("row", "?")),
        "label": label,
        "predicted": predicted,
        "right": label == predicted,
        "sure": "" if hardness is None else f"{(1 - hardness) * 100:.1f} %",
        "cost": fixed(cost, 3),
    }


def class_of(value: object, names: Sequence[str]) -> str:
    """The name of a class, or its number."""
    index = number(value)
    if index is None:
        return "?"
    return names[int(index)] if 0 <= index < len(names) else str(int(index))


def safe_picture(value: object) -> str:
    """A PNG in base64, and nothing else."""
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return ""
    return str(value) if content.startswith(b"\x89PNG\r\n") else ""


def shown_features(value: object) -> list[dict[str, Any]]:
    """The features that stand out, with the length of their bar: full at the largest deviation."""
    rows = [
        (str(row[0]), number(row[1]), number(row[2]))
        for row in (value if isinstance(value, list) else [])
        if isinstance(row, list) and len(row) == 3
    ]
    known = [(name, value, deviation) for name, value, deviation in rows if value is not None and deviation is not None]
    furthest = max((abs(deviation) for _, _, deviation in known), default=0.0) or 1.0
    return [
        {
            "name": name,
            "value": f"{value:.3g}".replace("-", "−"),
            "deviation": f"{deviation:+.1f}".replace("-", "−"),
            "share": round(100 * abs(deviation) / furthest),
            "below": deviation < 0,
        }
        for name, value, deviation in known[:MOST_FEATURES]
    ]


def class_names(evidence: Evidence) -> list[str]:
    """The names of the classes where they have names."""
    names = evidence.get("classes")
    return [str(name) for name in names] if isinstance(names, list) else []
