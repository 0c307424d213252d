import json

import pytest
from report_sample import make_log, make_results, make_run

from dynamicgate.report import render_table, summarise, write_report
from dynamicgate.report.read import REQUIRED, read_log


def test_a_missing_results_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"looked for .*results\.json; expected .*runs"):
        write_report(tmp_path)


def test_unreadable_json_is_said_to_be_so(tmp_path):
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
        ({"runs": [3]}, r"runs\[0\]: received a int, expected an object"),
    ],
)
def test_results_of_the_wrong_shape_are_refused_with_what_was_expected(tmp_path, content, message):
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path)
    with pytest.raises(ValueError, match=message):
        summarise(content)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_run_without_a_required_key_is_refused_by_name(key):
    results = make_results(("dense", "gate"), 1)
    del results["runs"][1][key]
    with pytest.raises(ValueError, match=rf"runs\[1\].*'{key}'"):
        render_table(results)


def test_a_quality_that_is_no_object_is_refused():
    run = {**make_run("gate", 0), "quality": 0.97}
    with pytest.raises(ValueError, match=r"runs\[0\]\['quality'\]: received 0\.97, expected a dict"):
        summarise({"runs": [run]})


def test_a_truncated_last_line_of_a_log_is_skipped(tmp_path):
    lines = [json.dumps(entry) for entry in make_log(5)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:40])
    assert [entry["step"] for entry in read_log(tmp_path / "log.jsonl")] == [0, 1, 2, 3]


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert read_log(tmp_path / "log.jsonl") == []


def test_lines_that_are_no_objects_are_skipped(tmp_path):
    (tmp_path / "log.jsonl").write_text('3\nnull\n{"step": 1}\n\n')
    assert read_log(tmp_path / "log.jsonl") == [{"step": 1}]
