"""A results table on disk: one .jsonl file, a header line and then one run a line.

The header lists what runs share: where they come from (`provenance`: commit, command, versions, machine, data), and the
settings that most of them have (`settings`). A run names its provenance by position and spells out only the settings
that differ. Readers get complete runs.

The bytes are a function of the runs alone: reading a file and writing it again changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from dynamicgate.files import write_text

Run = dict[str, Any]
KEY = ("model", "seed")


def read_runs(path: Path) -> list[Run]:
    """The runs of a table in the order of the file, each with all its settings and with `meta`; none without a file."""
    if not path.exists():
        return []
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    header = json.loads(first)
    runs = []
    for line in lines:
        stored = json.loads(line)
        meta = {"created": stored.pop("created"), **deepcopy(header["provenance"][stored.pop("provenance")])}
        if "settings" in stored:
            stored["settings"] = {**header["settings"], **stored["settings"]}
        runs.append({**stored, "meta": meta})
    return runs


def write_runs(path: Path, runs: Iterable[Run], key: Sequence[str] = KEY) -> None:
    """Write a table in one move, sorted by `key`, which must tell its runs apart."""
    ordered = sorted(runs, key=lambda run: tuple(run[name] for name in key))
    count = Counter(tuple(run[name] for name in key) for run in ordered)
    twice = [identity for identity, times in count.items() if times > 1]
    if twice:
        raise ValueError(f"{path.name}: expected one run for each {' and '.join(key)}, received several of {twice}")
    provenance = _provenance(ordered)
    shared = _shared_settings(ordered)
    lines = [json.dumps({"provenance": [json.loads(text) for text in provenance], "settings": shared})]
    for run in ordered:
        meta = dict(run["meta"])
        created = meta.pop("created")
        where = {"provenance": provenance.index(_text(meta)), "created": created}
        first = {name: run[name] for name in (*key, "hash")}
        rest = {name: value for name, value in run.items() if name not in (*key, "hash", "meta")}
        if "settings" in run:
            rest["settings"] = {
                name: value
                for name, value in sorted(run["settings"].items())
                if name not in shared or _text(value) != _text(shared[name])
            }
        lines.append(json.dumps({**first, **where, **rest}))
    write_text(path, "\n".join(lines) + "\n")


def _provenance(runs: Sequence[Run]) -> list[str]:
    """The distinct origins of runs, without the time, in the order in which they were first used."""
    first: dict[str, str] = {}
    for run in runs:
        meta = dict(run["meta"])
        created = meta.pop("created")
        text = _text(meta)
        first[text] = min(created, first.get(text, created))
    return sorted(first, key=lambda text: (first[text], text))


def _shared_settings(runs: Sequence[Run]) -> dict[str, Any]:
    """The settings that every run has, where more than half of the runs have the same value."""
    settings = [run["settings"] for run in runs if "settings" in run]
    shared = {}
    for name in sorted(settings[0]) if settings else ():
        if all(name in one for one in settings):
            text, count = Counter(_text(one[name]) for one in settings).most_common(1)[0]
            if 2 * count > len(settings):
                shared[name] = json.loads(text)
    return shared


def _text(value: Any) -> str:
    """JSON tells 1 from 1.0 and from true, which Python's == does not."""
    return json.dumps(value)
