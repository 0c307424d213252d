"""Reading results, logs and the files beside a run; results of the wrong shape are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.report import render_table, summarise, write_report
from dynamicgate.lab.report.reading import REQUIRED, read_logs, read_results, read_sample_stats
from tests.lab.report.sample_results import make_log, make_results, make_run, write_sample


def test_a_missing_results_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"looked for .*results\.json and for results files below it; expected .*runs"):
        write_report(tmp_path)


def test_unreadable_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"runs": [')
    with pytest.raises(ValueError, match=r"results\.json is not readable as JSON .*expected"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "received a list, expected an object"),
        ({"meta": {}}, "received the keys .*'meta'.*expected a list of runs"),
        ({"runs": {}}, "expected a list of runs"),
        ({"runs": []}, "expected at least one finished run"),
        ({"runs": [3]}, r"runs\[0\]: received 3, expected an object"),
    ],
)
def test_results_of_the_wrong_shape_are_refused_with_what_was_expected(
    tmp_path: Path, content: Any, message: str
) -> None:
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path)
    with pytest.raises(ValueError, match=message):
        summarise(content)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_run_without_a_required_key_is_refused_by_name(key: str) -> None:
    results = make_results(("dense", "gate"), 1)
    del results["runs"][1][key]
    with pytest.raises(ValueError, match=rf"runs\[1\].*'{key}'"):
        render_table(results)


def test_a_quality_that_is_not_an_object_is_refused() -> None:
    run = {**make_run("gate", 0), "quality": 0.97}
    with pytest.raises(ValueError, match=r"runs\[0\]\['quality'\]: received 0\.97, expected a dict"):
        summarise({"runs": [run]})


def test_a_log_is_read_up_to_a_last_line_that_was_cut_short(tmp_path: Path) -> None:
    results = make_results(("gate",), 1)
    log = write_sample(tmp_path, results) / results["runs"][0]["folder"] / "log.jsonl"
    lines = [json.dumps(entry) for entry in make_log(5)]
    log.write_text("\n".join(lines[:4]) + "\n" + lines[4][:40])
    assert [entry["step"] for entry in read_logs(tmp_path, results)[0]] == [0, 1, 2, 3]


def test_a_log_that_is_damaged_is_named(tmp_path: Path) -> None:
    results = make_results(("gate",), 1)
    log = write_sample(tmp_path, results) / results["runs"][0]["folder"] / "log.jsonl"
    log.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=rf"{log}, line 2: expected a JSON object"):
        write_report(tmp_path)


def test_a_run_without_a_log_or_a_folder_has_an_empty_log(tmp_path: Path) -> None:
    results = make_results(("dense", "gate"), 1)
    log = write_sample(tmp_path, results) / results["runs"][0]["folder"] / "log.jsonl"
    log.unlink()
    del results["runs"][1]["folder"]
    assert read_logs(tmp_path, results) == [[], []]


def test_a_folder_of_results_folders_is_one_report_and_keeps_them_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_sample(tmp_path / name, make_results(("dense", "gate"), 1))
    results = read_results(tmp_path)
    assert [(run["data"], run["model"]) for run in results["runs"]] == [
        (name, model) for name in ("one", "two") for model in ("dense", "gate")
    ]
    assert all(read_sample_stats(tmp_path, results)), "folders of runs are relative to the folder of the report"
    assert write_report(tmp_path) == tmp_path / "report.html"


def test_files_with_one_run_each_belong_to_their_folder(tmp_path: Path) -> None:
    for model in ("dense", "gate"):
        for kind in ("ours", "published"):
            path = tmp_path / "mnist" / kind / f"{model}-s0.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            meta = {"commit": "abc", "created": f"{model} {kind}"}
            path.write_text(json.dumps({"meta": meta, "runs": [make_run(model, 0)]}))
    results = read_results(tmp_path)
    assert {run["data"] for run in results["runs"]} == {"mnist/ours", "mnist/published"}
    assert results["meta"] == {"commit": "abc"}, "what all files agree on"
    assert {run["data"] for run in read_results(tmp_path / "mnist" / "ours")["runs"]} == {"digits"}


def test_files_with_many_runs_are_experiments_of_their_own(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.json").write_text(json.dumps(make_results(("dense", "gate"), 1)))
    for name, content in (("number", '{"runs": 3}'), ("timing", '{"runs": [{"model": "dense", "seconds": 3}]}')):
        (tmp_path / f"{name}.json").write_text(content)
    assert {run["data"] for run in read_results(tmp_path)["runs"]} == {"first", "second"}
