"""The defaults on data that was not used for tuning: which character follows sixteen others, as a user's own .npz file.

python -m experiments.transfer             # make the file, train what is missing
python -m experiments.transfer --jobs 8

The text is tinyshakespeare/input.txt in the folder of DYNAMICGATE_DATA; its last eighth is test data, so that no test
row shares characters with a training row. Every method has its defaults, at three budgets; docs/why-it-works.md shows
the results, see `python -m experiments.frontier page`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from dynamicgate.lab.datasets import default_data_dir
from dynamicgate.lab.runner import Experiment, Table, train_settings
from experiments import ROOT
from experiments.command import asked_experiment, exit_code, parser_of, run_asked

MODULE = "experiments.transfer"
FILE = "runs/transfer/characters.npz"  # relative to the checkout, because it is part of what identifies a run
TEXT = Path("tinyshakespeare") / "input.txt"
CONTEXT, ROWS, TEST_ROWS = 16, 30_000, 5_000
BUDGETS = (0.05, 0.1, 0.2)
METHODS = ("dense", "small", "pruned", "static", "random", "rigl", "set", "gate", "gate+rigl", "switch")
CHARACTERS = Table(
    name="characters",
    data=FILE,
    models={f"{method} {budget:g}": {"model": method, "budget": budget} for budget in BUDGETS for method in METHODS},
    train=train_settings,
    seeds=(0, 1, 2),
)
TRANSFER = Experiment("transfer", (CHARACTERS,), ROOT)


def write_characters(path: Path, data_dir: Path | None = None) -> None:
    """One-hot contexts and the character behind each, drawn from two parts of the text; written once."""
    if path.exists():
        return
    text = np.frombuffer(((data_dir or default_data_dir()) / TEXT).read_bytes(), dtype=np.uint8)
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


def main() -> None:
    """Make the file and train what is missing."""
    args = parser_of(MODULE, __doc__).parse_args()
    write_characters(ROOT / FILE, args.data_dir)
    experiment = asked_experiment(TRANSFER, args)
    run_asked(experiment, experiment.jobs(seeds=args.seeds, device=args.device), args, f"python -m {MODULE}")


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
