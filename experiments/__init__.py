"""The runs behind the tables of this repository, started from its root: `python -m experiments.paper all`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
