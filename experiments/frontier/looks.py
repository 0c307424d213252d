"""How often the test rows were looked at, by dataset and method."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dynamicgate.files import write_text
from dynamicgate.lab.runner import Job
from experiments.frontier.datasets import method_of
from experiments.frontier.oracle import ORACLE

LOOKS = Path(__file__).with_name("looks.json")
Looks = dict[str, dict[str, int]]


def read_looks() -> Looks:
    """How many sets of results were recorded on the test rows of a dataset with a method before those stored now."""
    return json.loads(LOOKS.read_text(encoding="utf-8"))


def count_another_look(stale: Iterable[Job]) -> None:
    """Count the results of jobs that are run again with other settings: their test rows were seen."""
    seen = sorted({(job.table.name.removesuffix(f"-{ORACLE}"), method_of(job.model)[0]) for job in stale})
    if not seen:
        return
    looks = read_looks()
    for name, method in seen:
        looks[name][method] = looks[name].get(method, 0) + 1
    write_text(LOOKS, json.dumps(looks, indent=1) + "\n")
