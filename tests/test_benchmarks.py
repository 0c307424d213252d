"""The benchmarks: every result is listed with what it measures, and its age is said, never an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import pages, run_all

from tests.places import ROOT

EARLIER = {"benchmarks/results/gpu_plan_between.json", "benchmarks/results/gpu_plan_compiled.json"}  # of other ways


def git(root: Path, *words: str) -> str:
    asked = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def test_every_result_has_an_entry_and_everything_it_measures_exists() -> None:
    table = json.loads(run_all.MEASURED.read_text(encoding="utf-8"))
    stored = {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert stored - EARLIER <= table.keys()
    assert {benchmark.result for benchmark in run_all.BENCHMARKS.values()} == table.keys()
    assert {table.results for table in pages.TABLES.values()} <= table.keys()
    for name, places in table.items():
        assert places, name
        # after :! stands what it does not measure, in git's way of writing
        assert [place for place in places if not any(ROOT.glob(place.removeprefix(":!")))] == [], name
    for name, benchmark in run_all.BENCHMARKS.items():
        assert benchmark.words[0] == "-m" or (ROOT / benchmark.words[0]).is_file(), name


def test_the_targets_on_the_page_are_those_of_the_benchmark() -> None:
    text = (ROOT / "benchmarks" / "gpu_decode.py").read_text(encoding="utf-8")  # importing it needs a GPU
    assert f"\nTARGETS = {pages.DECODE_TARGETS}  #" in text


def test_a_result_is_older_than_what_changed_after_its_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name in ("measured.py", "other.py"):
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one")
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"meta": {"commit": git(tmp_path, "rev-parse", "--short=12", "HEAD")}}))
    assert run_all.changed_since(result, ["measured.py"], tmp_path) == []
    for name, expected in (("other.py", []), ("measured.py", ["measured.py"])):
        (tmp_path / name).write_text("2\n")
        git(tmp_path, "commit", "-q", "-a", "-m", name)
        assert run_all.changed_since(result, ["measured.py"], tmp_path) == expected
    (tmp_path / "page.md").write_text("made from results\n")
    git(tmp_path, "add", "page.md")
    git(tmp_path, "commit", "-q", "-m", "page")
    assert run_all.changed_since(result, ["."], tmp_path) == ["measured.py", "other.py"]
    rows = tmp_path / "rows.jsonl"
    old, new = json.loads(result.read_text())["meta"], {"commit": git(tmp_path, "rev-parse", "--short=12", "HEAD")}
    for metas, expected in (([new], []), ([old, new], ["measured.py"])):
        rows.write_text(json.dumps({"provenance": metas}) + "\n")
        assert run_all.changed_since(rows, ["measured.py"], tmp_path) == expected, "the oldest row counts"


@pytest.mark.parametrize("commit", [None, "unknown", "0123456789ab", "a3cf709db989, changed"])
def test_without_a_history_that_has_the_commit_nothing_is_claimed(tmp_path: Path, commit: str | None) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "cpu.json").write_text(json.dumps({"meta": {"commit": commit}}))
    assert run_all.ages(tmp_path) == {"benchmarks/results/cpu.json": None}
    assert run_all.summary(tmp_path) == (
        "benchmarks: 0 of 1 results are of the code as it is; 1 cannot be dated without the git history"
    )


def test_a_benchmark_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = {"bad": "raise SystemExit(3)", "good": "import os; assert os.environ['OMP_NUM_THREADS'] == '1'"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    made = {name: run_all.Benchmark((f"{name}.py",), f"{name}.json", one_thread=True) for name in scripts}
    monkeypatch.setattr(run_all, "BENCHMARKS", made)
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    assert run_all.run_all(list(scripts)) == ["bad"]
    printed = capsys.readouterr().out
    assert "[1/2] bad: FAILED after " in printed
    assert "[2/2] good: wrote good.json after " in printed


def test_an_unknown_benchmark_is_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run_all.py", "cpu", "gpus"])
    with pytest.raises(SystemExit, match="2"):
        run_all.main()
    assert "unknown benchmarks gpus: expected some of cpu, cpu_ops, latency" in capsys.readouterr().err


def test_the_list_is_printed_without_running_anything() -> None:
    asked = [sys.executable, "benchmarks/run_all.py", "--list"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split(":")[0].removesuffix(" (GPU)") for line in done.stdout.splitlines()] == list(run_all.BENCHMARKS)


def language_row(*, threads: int, sequences: int, **others: float) -> dict[str, Any]:
    """A row of `cpu_language.py` in short."""
    ratios = {"over our dense plan": 2.0, "over eager": 5.0, **others}
    return {
        "case": "GPT", "open": 0.25, "rates": [0.2, 0.3], "threads": threads, "sequences": sequences, "past": 512,
        "prompt": 256, "us": {what: {"ours": 1000.0} for what in ("decode", "prompt")},
        "ratios": {"decode": ratios, "prompt": {"over our dense plan": 1.5}},
        "float64": {
            "tokens": 256, "largest_error": 1e-6, "bound": 1e-4, "other_tokens": 0, "too_close_to_call": 0,
            "near_threshold": 0,
        },
    }  # fmt: skip


def test_the_table_of_language_models_has_all_threads_and_sequences() -> None:
    shapes = [(1, 1), (1, 4), (2, 1), (2, 4)]
    results = {"rows": [language_row(threads=threads, sequences=sequences) for threads, sequences in shapes]}
    head, _, *lines = (line.split(" | ") for line in pages.language(results).splitlines())
    found = {tuple(line[head.index(name)] for name in ("threads", "sequences")) for line in lines}
    assert found == {(f"{threads}", f"{sequences}") for threads, sequences in shapes}
    assert len(lines) == 2 * len(shapes)
    assert "max-autotune" not in head
    assert len(pages.language_exact(results).splitlines()) == 2 + len(shapes)
    results["rows"].append(language_row(threads=1, sequences=1, **{"over torch.compile max-autotune": 3.0}))
    with_rival = pages.language(results).splitlines()
    assert "max-autotune" in with_rival[0]
    assert "3.00" in with_rival[-2]
    assert "3.00" not in with_rival[-1]


def test_the_table_of_encoders_has_every_rival_and_what_runs() -> None:
    row = {
        "case": "MiniLM", "open": 0.5, "rates": [0.4, 0.6], "sequences": 8, "tokens": 16, "chosen": "whole model",
        "us": {"ours": 1500.0}, "ratios": {"over our dense plan": 1.25, "over eager": 2.0},
    }  # fmt: skip
    head, _, line = (row.split(" | ") for row in pages.encoders({"rows": [row]}).splitlines())
    assert line[head.index("sequences x tokens")] == "8 x 16"
    assert line[head.index("our dense plan")] == "1.25"
    assert line[head.index("onnxruntime")] == "-"
    assert "whole model" in line[-1]
