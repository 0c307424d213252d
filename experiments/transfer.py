"""The defaults on data that nobody tuned on: which character follows sixteen others, as a user's own .npz file.

    python experiments/transfer.py              # make the file, compare, write results/transfer.json
    python experiments/transfer.py --jobs 8     # models side by side, each in a process with one thread

The text is tinyshakespeare/input.txt in the folder of DYNAMICGATE_DATA; the last eighth of it is test data, so that no
test row shares characters with a training row. The comparison is `dynamicgate compare --data characters.npz` with three
budgets and nothing else said.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from comparisons import side_by_side

from dynamicgate.lab.datasets import default_data_dir
from dynamicgate.lab.methods import Settings, compare

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "runs" / "transfer"
TEXT = Path("tinyshakespeare") / "input.txt"
CONTEXT, ROWS, TEST_ROWS = 16, 30_000, 5_000
BUDGETS = (0.05, 0.1, 0.2)
MODELS = ("dense", "small", "pruned", "static", "random", "rigl", "set", "gate", "gate+rigl", "switch")
SEEDS = 3


def characters(path: Path) -> Path:
    """One-hot contexts and the character behind each, drawn from two parts of the text; written once."""
    if path.exists():
        return path
    text = np.frombuffer((default_data_dir() / TEXT).read_bytes(), dtype=np.uint8)
    known, numbers = np.unique(text, return_inverse=True)
    cut = len(text) * 7 // 8
    draw = np.random.default_rng(0)
    parts = {}
    for name, first, last, rows in (("", 0, cut, ROWS), ("_test", cut, len(text), TEST_ROWS)):
        start = draw.choice(last - first - CONTEXT, rows, replace=False) + first
        windows = numbers[start[:, None] + np.arange(CONTEXT)]
        parts[f"x{name}"] = np.eye(len(known), dtype=np.float32)[windows].reshape(rows, -1)
        parts[f"y{name}"] = numbers[start + CONTEXT]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **parts)
    return path


def run(budget: float, models: tuple[str, ...]) -> Path:
    """The comparison at one budget; its folder."""
    out = FOLDER / f"{budget:g}"
    settings = Settings(str(characters(FOLDER / "characters.npz")), budget=budget)
    compare(settings, models, range(SEEDS), out, command="python experiments/transfer.py")
    return out


def main() -> None:
    """Every budget; with all models, keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="models trained side by side")
    parser.add_argument("--budget", type=float, help="only this one; leaves no results")
    parser.add_argument("--model", help="only this one; leaves no results")
    args = parser.parse_args()
    characters(FOLDER / "characters.npz")
    if args.budget is not None:
        run(args.budget, (args.model,) if args.model else MODELS)
        return
    if args.jobs > 1:
        calls = [["--budget", f"{budget:g}", "--model", model] for budget in BUDGETS for model in MODELS]
        side_by_side(__file__, calls, args.jobs)
    for budget in BUDGETS:
        shutil.copyfile(run(budget, MODELS) / "results.json", HERE / "results" / f"transfer-{budget:g}.json")


if __name__ == "__main__":
    main()
