"""The committed record of the long fuzz: enough cases, nothing wrong, at a commit that can be found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
    "gpu": 2000,
    "gpu, sanitized": 40,
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
        if name.startswith("gpu"):
            assert run["machine"]["gpu"], f"{name} ran without a GPU"
            assert run["versions"]["triton"]
        else:
            assert run["machine"]["kernels"].startswith("c++")


def test_the_summary_names_what_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {name: {"wrong": 0} for name in record.SOURCES}
    monkeypatch.setattr(record, "read", lambda: everything)
    monkeypatch.setattr(record, "changed", dict)
    assert record.summary().endswith("nothing that they test has changed since")
    monkeypatch.setattr(record, "changed", lambda: {"chains": ["csrc"]})
    assert record.summary().endswith("WARNING: chains ran before changes in csrc; run `make fuzz`")
    monkeypatch.setattr(record, "changed", lambda: {"chains": ["csrc"], "gpu": ["src"]})
    assert record.summary().endswith("chains, gpu ran before changes in csrc, src; run `make fuzz` and `make fuzz-gpu`")
    del everything["models"]
    assert "no record of models" in record.summary()


def test_runs_of_another_machine_are_taken_over(tmp_path: Path) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    result: dict[str, Any] = {"count": 3, "seed": 0, "wrong": 0}
    record.write("chains", {}, **result, said="here", path=own)
    record.write("gpu", {}, **result, said="before", path=own)
    record.write("gpu", {}, **result, said="there", path=other)
    assert record.merge(other, own) == ["gpu"]
    assert {name: run["said"] for name, run in record.read(own).items()} == {"chains": "here", "gpu": "there"}
    record.write("cpu", {}, **result, said="there", path=other)
    with pytest.raises(ValueError, match="records cpu, which is no fuzz here"):
        record.merge(other, own)


def test_places_that_are_tested_exist_and_a_change_in_them_shows() -> None:
    for name in record.SOURCES:
        assert all((record.ROOT / place).exists() for place in record.SOURCES[name]), name
        assert len(set(record.digests(name).values())) == len(record.SOURCES[name]), "each place has files to digest"
