"""Options for runs of a second, and small data files, good and bad."""

from __future__ import annotations

from pathlib import Path

import numpy as np

QUICK = ["--epochs", "3", "--hidden", "24", "--batch", "64"]


def write_npz(path: Path, kind: str) -> Path:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)), np.arange(60) % 3
    if kind == "nan":
        x[7, 2] = np.nan
    elif kind == "one class":
        y[:] = 1
    elif kind == "negative label":
        y[5] = -1
    elif kind == "empty":
        x, y = x[:0], y[:0]
    parts = {"x_test": x[:6], "y_test": y[:6] + 3} if kind == "label out of range" else {}
    np.savez(path, x=x, y=y, **parts)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:900])
    elif kind == "no bytes":
        path.write_bytes(b"")
    return path


def write_table(path: Path, rows: int = 60) -> Path:
    random = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'abc'[k % 3]}" for k, (a, b) in enumerate(random.normal(size=(rows, 2)))]
    path.write_text("one,two,kind\n" + "\n".join(lines) + "\n")
    return path
