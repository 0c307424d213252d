"""The committed record of the long fuzz: enough cases, nothing wrong, at a commit that can be found."""

from __future__ import annotations

import re

import pytest

from tests.fuzz import record

WANTED = {
    "programs": 20_000,
    "plan": 20_000,
    "plan, sanitized": 20_000,
    "model": 5000,
    "checkpoint": 5000,
    "h5ad": 5000,
    "archive": 5000,
    "chains": 20_000,
    "decoders": 2000,
    "models": 3000,
    "kills": 200,
    "threads": 500,
}


def test_every_fuzz_is_recorded_with_enough_cases_and_nothing_wrong() -> None:
    runs = record.read()
    assert runs.keys() == WANTED.keys() == record.SOURCES.keys()
    for name, run in runs.items():
        assert run["wrong"] == 0, f"{name}: {run['said']}"
        assert run["count"] >= WANTED[name], name
        assert re.fullmatch("[0-9a-f]{12}", run["commit"]), f"{name} ran with changes that are in no commit"
        assert run["command"].startswith("python -m tests.fuzz")
        assert run["versions"]["torch"]
        assert run["machine"]["kernels"].startswith("c++")


def test_the_summary_names_what_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {name: {"wrong": 0} for name in record.SOURCES}
    monkeypatch.setattr(record, "read", lambda: everything)
    monkeypatch.setattr(record, "changed", dict)
    assert record.summary().endswith("nothing that they test has changed since")
    monkeypatch.setattr(record, "changed", lambda: {"chains": ["csrc"]})
    assert record.summary().endswith("WARNING: chains ran before changes in csrc; run `make fuzz`")
    del everything["models"]
    assert "no record of models" in record.summary()


def test_places_that_are_tested_exist_and_a_change_in_them_shows() -> None:
    for name in record.SOURCES:
        assert all((record.ROOT / place).exists() for place in record.SOURCES[name]), name
        assert len(set(record.digests(name).values())) == len(record.SOURCES[name]), "each place has files to digest"
