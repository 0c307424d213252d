"""The summary of a dataset that `dynamicgate data info` prints, as JSON or as text."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.lab.datasets.sources import Source
from dynamicgate.lab.datasets.splits import Splits


def summarise_dataset(splits: Splits, source: Source | None) -> dict[str, Any]:
    """Sizes, shapes, classes, normalisation and origin of a loaded dataset, ready for JSON."""
    origin = {"licence": source.licence, "citation": source.citation, "homepage": source.homepage} if source else {}
    return {
        **splits.info(),
        "shape": list(splits.train.x.shape[1:]),
        "mean": _number_or_range(splits.mean),
        "std": _number_or_range(splits.std),
        **origin,
    }


def as_lines(summary: dict[str, Any]) -> list[str]:
    """The summary as lines of text."""
    if summary.get("task") == "regression":
        return _regression_lines(summary)
    counts = summary["class_counts"]
    names = summary.get("class_names") or [str(number) for number in range(summary["classes"])]
    width = max(len("class"), *map(len, names))
    lines = [
        f"{summary['name']}: {summary['features']} features of shape {' x '.join(map(str, summary['shape']))}, "
        f"{summary['classes']} classes",
        f"always predicting the most frequent class is right for {100 * summary['majority']:.1f} % of the test rows",
        f"normalisation: mean {_as_text(summary['mean'])}, standard deviation {_as_text(summary['std'])}",
        "",
        f"{'class':<{width}} {'train':>8} {'valid':>8} {'test':>8}",
    ]
    for number, name in enumerate(names):
        lines.append(f"{name:<{width}} " + " ".join(f"{counts[part][number]:>8,}" for part in counts))
    lines.append(f"{'all':<{width}} " + " ".join(f"{summary[part]:>8,}" for part in counts))
    if "licence" in summary:
        lines += ["", *(f"{key}: {summary[key]}" for key in ("licence", "citation", "homepage"))]
    return lines


def _regression_lines(summary: dict[str, Any]) -> list[str]:
    target = summary["target"]
    rows = ", ".join(f"{summary[part]:,} {part}" for part in ("train", "valid", "test"))
    return [
        f"{summary['name']}: {summary['features']} features, a measurement for each row",
        f"target: mean {target['mean']:.6g}, standard deviation {target['std']:.6g} in the training rows",
        f"rows: {rows}",
    ]


def _number_or_range(value: torch.Tensor | float) -> Any:
    """One number as it is; one number for each feature as their range."""
    if isinstance(value, float | int) or value.numel() == 1:
        return float(value)
    return {"features": value.numel(), "min": value.min().item(), "max": value.max().item()}


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value['min']:.4g} to {value['max']:.4g} over {value['features']:,} features"
