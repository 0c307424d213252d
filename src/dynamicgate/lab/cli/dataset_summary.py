"""What `dynamicgate data info` says of a dataset."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.lab.datasets.sources import Source
from dynamicgate.lab.datasets.splits import Splits


def describe(splits: Splits, source: Source | None) -> dict[str, Any]:
    """All there is to say about a loaded dataset, ready for JSON."""
    about = {"licence": source.licence, "citation": source.citation, "homepage": source.homepage} if source else {}
    return {
        **splits.info(),
        "shape": list(splits.train.x.shape[1:]),
        "mean": _constant(splits.mean),
        "std": _constant(splits.std),
        **about,
    }


def _constant(value: torch.Tensor | float) -> Any:
    """A number, or the range of one number for each feature."""
    if isinstance(value, float | int) or value.numel() == 1:
        return float(value)
    return {"features": value.numel(), "least": value.min().item(), "most": value.max().item()}


def as_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    counts = found["class_counts"]
    names = found.get("class_names") or [str(number) for number in range(found["classes"])]
    width = max(len("class"), *map(len, names))
    lines = [
        f"{found['name']}: {found['features']} features of shape {' x '.join(map(str, found['shape']))}, "
        f"{found['classes']} classes",
        f"always answering with the largest class is right in {100 * found['majority']:.1f} % of the test rows",
        f"normalisation: mean {_shown(found['mean'])}, standard deviation {_shown(found['std'])}",
        "",
        f"{'class':<{width}} {'train':>8} {'valid':>8} {'test':>8}",
    ]
    for number, name in enumerate(names):
        lines.append(f"{name:<{width}} " + " ".join(f"{counts[part][number]:>8,}" for part in counts))
    lines.append(f"{'all':<{width}} " + " ".join(f"{found[part]:>8,}" for part in counts))
    if "licence" in found:
        lines += ["", *(f"{key}: {found[key]}" for key in ("licence", "citation", "homepage"))]
    return lines


def _shown(constant: Any) -> str:
    if isinstance(constant, float):
        return f"{constant:.4g}"
    return f"{constant['least']:.4g} to {constant['most']:.4g} over {constant['features']:,} features"
