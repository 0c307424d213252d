"""The training log: rows in memory and in log.jsonl."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from dynamicgate.display import ShownAsText
from dynamicgate.files import read_json_lines, write_text
from dynamicgate.gating.recording import Usage, named_gates


@dataclass(repr=False)
class History(ShownAsText):
    """The result of `fit`: log rows, validation results of the best epoch and of the final model, time and steps."""

    log: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    final: dict[str, float] | None = None
    seconds: float = 0.0
    steps: int = 0
    stopped_early: bool = False

    def _brief(self) -> str:
        found = [f"{self.steps:,} steps in {self.seconds:.1f} s", f"{len(self.log)} log rows"]
        return ", ".join([*found, *(_in_words("final", self.final) if self.final else [])])

    def __str__(self) -> str:
        best = f"best (epoch {self.best['epoch']})" if self.best else ""
        return "\n".join(
            [
                f"{self.steps:,} steps in {self.seconds:.1f} s" + (", stopped early" if self.stopped_early else ""),
                *(_in_words(best, self.best) if self.best else []),
                *(_in_words("final", self.final) if self.final else []),
                f"{len(self.log)} rows in .log",
            ]
        )


def _in_words(name: str, found: dict[str, Any]) -> list[str]:
    numbers = {key: value for key, value in found.items() if key != "epoch" and isinstance(value, float)}
    return [f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())]


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def rewrite_log(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the log by `rows`: what was logged after the checkpoint will be logged again."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log.jsonl; none where there is no file.

    A last line that was cut short is left out, as is, with a warning, any other that is damaged: the log tells what
    happened, nothing is computed from it.
    """
    if not path.exists():
        return []
    damaged: list[int] = []
    rows = read_json_lines(path, damaged)
    whole = [row for row in rows if isinstance(row.get("step"), int)]
    if damaged or len(whole) < len(rows):
        count = len(damaged) + len(rows) - len(whole)
        warnings.warn(f"{path}: {count} damaged lines were left out, {len(whole)} rows were read", stacklevel=2)
    return whole


def site_stats(model: nn.Module, used: Usage) -> dict[str, dict[str, float]]:
    """Mean p and g, tau, theta and the logit threshold (`cut`) of every site (sec 4.1(1))."""
    return {
        name: {
            "p": float(used[name].p.detach().mean()),
            "g": float(used[name].open.mean()),
            "tau": float(gate.tau),
            "theta": float(gate.theta),
            "cut": float(gate.logit_threshold),
        }
        for name, gate in named_gates(model).items()
    }


def stage_stats(used: Usage | None) -> list[float] | None:
    """The fraction of rows that would open each stage at the present cut; None for a model without stages."""
    if used is None or used.stages is None:
        return None
    return used.stages.open.flatten(0, -2).mean(0).tolist()
