"""A results table on disk: complete runs go in and come out, and nothing is stored twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.report import read_results
from dynamicgate.lab.result_file import read_runs, write_runs


def run_of(model: str, seed: int, created: str = "2026-01-01", **rest: Any) -> dict[str, Any]:
    meta = {"created": created, "commit": rest.pop("commit", "abc"), "data": {"train": 3}}
    settings = {"lr": 0.1, "clip": None, "scale": False, "seed": seed} | rest.pop("settings", {})
    return {"model": model, "seed": seed, "hash": f"{model}{seed}", "accuracy": 0.5, **rest, "settings": settings,
            "meta": meta}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equal as JSON, which tells 1 from 1.0 and from true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def test_runs_come_back_as_they_went_in_sorted_by_model_and_seed(tmp_path: Path) -> None:
    runs = [
        run_of("rigl", 10, settings={"lr": 1}),
        run_of("rigl", 9, commit="def", settings={"lr": 1.0, "newer": "x"}),
        run_of("dense", 1, settings={"scale": 0}),
        run_of("dense", 0, unreachable="too small"),
    ]
    del runs[3]["settings"]
    write_runs(tmp_path / "table.jsonl", runs)
    found = read_runs(tmp_path / "table.jsonl")
    assert same(found, [runs[3], runs[2], runs[1], runs[0]])


def test_what_runs_share_stands_once_in_the_header(tmp_path: Path) -> None:
    runs = [run_of("gate", seed, created=f"2026-01-0{9 - seed}", commit="b" if seed < 2 else "a") for seed in range(5)]
    write_runs(tmp_path / "table.jsonl", runs)
    header, first, *_ = map(json.loads, (tmp_path / "table.jsonl").read_text().splitlines())
    assert [meta["commit"] for meta in header["provenance"]] == ["a", "b"], "in the order in which they were used"
    assert header["settings"] == {"lr": 0.1, "clip": None, "scale": False}
    assert first["settings"] == {"seed": 0}, "only what differs; no seed is that of most runs"
    assert (first["provenance"], first["created"], first["hash"]) == (1, "2026-01-09", "gate0")


def test_writing_what_was_read_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    write_runs(path, [run_of("gate", 1), run_of("gate", 0, commit="x"), run_of("dense", 0, settings={"lr": 3})])
    before = path.read_bytes()
    write_runs(path, reversed(read_runs(path)))
    assert path.read_bytes() == before


def test_two_runs_of_a_model_and_seed_are_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    write_runs(path, [run_of("gate", 0)])
    with pytest.raises(ValueError, match="one run for each model and seed, received several of"):
        write_runs(path, [run_of("gate", 0), run_of("gate", 0)])
    assert len(read_runs(path)) == 1


def test_a_table_without_a_file_is_empty(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "none.jsonl") == []


def test_a_report_reads_tables_and_leaves_out_runs_without_results(tmp_path: Path) -> None:
    result = {"data": "clouds", "quality": {"accuracy": 0.5}, "macs": {"relative": 1.0}, "params": 3, "seconds": 1.0}
    runs = [run_of("dense", seed, **result) for seed in (0, 1)]
    runs.append(run_of("gate", 0, unreachable="the budget is too small"))
    write_runs(tmp_path / "small" / "table.jsonl", runs)
    found = read_results(tmp_path)
    assert [(run["model"], run["data"]) for run in found["runs"]] == [("dense", "small/table")] * 2
    assert found["meta"]["commit"] == "abc"
