"""Latency against executed MACs: which dense model latency is relative to, figure and table."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.report import write_report
from dynamicgate.lab.report.latency import (
    latency_figure,
    latency_points,
    latency_section,
    latency_table,
    log_ticks,
    timed_runs,
)
from dynamicgate.lab.report.reading import Results, Timing, read_object, read_timings
from tests.lab.report.sample_results import ALL_MODELS, make_results, make_timing, write_sample, write_timings

MARK = r'class="mark c\d+ mean(?: control)?"'


def timings_of(results: Results, **options: Any) -> list[Timing]:
    return [make_timing(run, **options) for run in results["runs"]]


def page_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def test_a_report_without_timings_has_no_latency_section_and_says_how_to_get_one(tmp_path: Path) -> None:
    page = page_of(write_sample(tmp_path, make_results(seeds=1)))
    assert "Latency against" not in page
    assert "<dt>Latency</dt><dd>Not measured." in page
    assert latency_section(make_results(), [{}] * 25) is None


def test_a_report_with_timings_shows_figure_and_table(tmp_path: Path) -> None:
    results = make_results(seeds=2)
    page = page_of(write_timings(write_sample(tmp_path, results), results))
    assert "<h2>Latency against executed MACs</h2>" in page
    assert "latency falls as much as MACs" in page
    assert "latency, batch 256" in page
    assert "Not measured" not in page
    assert "because no such network was timed" not in page


def test_there_is_one_point_for_each_model_and_batch_size_with_the_mean_over_its_seeds() -> None:
    results = make_results(("dense", "gate"), 4)
    timed = timed_runs(results, timings_of(results))
    points = latency_points(timed, "digits")
    assert [(point.model, point.batch) for point in points] == [(m, b) for m in ("dense", "gate") for b in (1, 16, 256)]
    assert all(point.latency["n"] == 4 for point in points)
    gate = [run["macs"]["relative"] for run in results["runs"] if run["model"] == "gate"]
    assert points[3].relative == pytest.approx(sum(gate) / 4)
    assert points[3].latency["mean"] == pytest.approx(sum(gate) / 4 + 0.2)  # not of eager dense


def test_every_point_is_drawn_with_its_numbers_and_larger_batches_are_larger() -> None:
    results = make_results(("dense", "gate"), 2)
    svg = latency_figure(results, timed_runs(results, timings_of(results)), "digits")
    assert len(re.findall(MARK, svg)) == 6
    assert re.search(r"<title>gate, batch 16: 0\.\d{3}[^<]* of the dense latency \([^<]+ µs\) at 0\.\d{3} of", svg)
    radii = [float(radius) for radius in re.findall(r'r="([\d.]+)" class="mark c0 mean"', svg)]  # gates are circles
    assert radii == sorted(radii, reverse=True)  # drawn first, so that the small ones stay visible
    assert len(set(radii)) == 3


def test_a_model_whose_time_falls_as_its_macs_lies_on_the_diagonal() -> None:
    results = make_results(("dense", "gate"), 1)
    results["runs"][1]["macs"]["relative"] = 0.1
    timings = timings_of(results, batches=(1,))
    timings[1]["rows"][0]["ours"] = 0.1 * timings[0]["rows"][0]["dense, compiled"]
    svg = latency_figure(results, timed_runs(results, timings), "digits")
    (gate,) = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)
    (ends,) = re.findall(r'<polyline points="([\d.]+),([\d.]+) ([\d.]+),([\d.]+)" class="front"', svg)
    left, bottom, right, top = map(float, ends)
    along = (float(gate[0]) - left) / (right - left)
    assert float(gate[1]) == pytest.approx(bottom + along * (top - bottom), abs=0.2)


def test_a_small_model_is_compared_with_the_dense_model_of_its_seed_and_not_with_its_own_width() -> None:
    results = make_results(("dense", "small"), 2)
    timed = timed_runs(results, timings_of(results, batches=(256,)))
    assert {one.baseline for one in timed} == {"dense"}
    assert timed[2].latency == pytest.approx(results["runs"][2]["macs"]["relative"] + 0.2 / 256)


@pytest.mark.parametrize("other", ["dense not timed", "another seed", "other threads", "another batch size"])
def test_files_of_older_versions_without_a_dense_model_are_relative_to_their_own_layers_and_the_page_says_so(
    tmp_path: Path, other: str
) -> None:
    results = make_results(("dense", "small"), 1)
    timings = timings_of(results, batches=(1,), as_older_versions=True)
    if other == "dense not timed":
        timings[0] = {}
    elif other == "another seed":
        results["runs"][0]["seed"] = 7
    elif other == "other threads":
        timings[0]["meta"]["machine"]["threads"] = 2
    else:
        timings[0]["rows"][0]["batch"] = 16
    small = next(one for one in timed_runs(results, timings) if one.run["model"] == "small")
    assert small.baseline == "own dense"
    assert small.latency == pytest.approx((results["runs"][1]["macs"]["relative"] + 0.2) / 0.3)
    folder = write_sample(tmp_path, results)
    for run, timing in zip(results["runs"], timings, strict=True):
        (folder / run["folder"] / "timing.json").write_text(json.dumps(timing))
    assert "because no such network was timed" in page_of(folder)


def test_a_run_timed_alone_is_relative_to_the_dense_network_asked_for() -> None:
    results = make_results(("small",), 1)
    (small,) = timed_runs(results, timings_of(results, batches=(1,)))
    assert small.baseline == "dense"
    assert small.latency == pytest.approx(results["runs"][0]["macs"]["relative"] + 0.2)


def test_a_trained_dense_model_that_is_faster_than_the_fresh_one_is_the_one_to_beat() -> None:
    results = make_results(("dense", "gate"), 1)
    timings = timings_of(results, batches=(1,))
    timings[0]["rows"][0]["ours"] = 0.5 * timings[1]["rows"][0]["dense, compiled"]
    gate = timed_runs(results, timings)[1]
    assert gate.latency == pytest.approx(2.0 * (results["runs"][1]["macs"]["relative"] + 0.2))


def test_the_table_has_a_row_for_each_timed_model_and_a_column_for_each_batch_size() -> None:
    results = make_results(("dense", "small", "gate"), 2)
    timings = [
        timing if run["model"] != "gate" else {}
        for run, timing in zip(results["runs"], timings_of(results), strict=True)
    ]
    table = latency_table(results, timed_runs(results, timings))
    assert table.columns == [
        "model",
        "executed MACs",
        *(f"latency, batch {batch}" for batch in (1, 16, 256)),
        "threads",
        "relative to",
    ]
    assert [row[0].text for row in table.rows] == ["dense", "small"]
    assert [cell.text for cell in table.rows[1]][1:4] == ["0.302", "0.502", "0.315"]
    assert table.rows[1][-2].text == "1"


def test_the_table_lists_every_number_of_threads() -> None:
    results = make_results(("gate",), 2)
    timings = [make_timing(results["runs"][0]), make_timing(results["runs"][1], threads=2)]
    assert latency_table(results, timed_runs(results, timings)).rows[0][-2].text == "1, 2"


def test_timings_are_found_in_the_folders_of_their_runs(tmp_path: Path) -> None:
    results = make_results(("dense", "gate"), 1)
    folder = write_timings(write_sample(tmp_path, results), results, ("gate",))
    assert [bool(timing) for timing in read_timings(folder, results)] == [False, True]
    del results["runs"][1]["folder"]
    assert read_timings(folder, results) == [{}, {}]


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"rows": [', '{"rows": 3}', '{"rows": [{"batch": 1}, 4]}'])
def test_a_file_without_timings_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "timing.json").write_text(content)
    results = make_results(("gate",), 1)
    assert latency_section(results, [read_object(tmp_path / "timing.json")]) is None


def test_times_that_are_no_numbers_make_no_points() -> None:
    results = make_results(("gate",), 1)
    rows = [{"batch": 1, "dense": None, "ours": 3.0}, {"batch": 16, "dense": 0.0, "ours": 3.0}]
    timing = {"meta": None, "rows": [*rows, {"batch": 64, "dense": 1.0, "ours": float("nan")}]}
    timed = timed_runs(results, [timing])
    assert [one.latency for one in timed] == [None, None]
    assert latency_points(timed, "digits") == []
    section = latency_section(results, [timing])
    assert section is not None
    assert section["figures"] == []


def test_both_axes_reach_every_point() -> None:
    results = make_results(("dense", "gate"), 1)
    results["runs"][1]["macs"]["relative"] = 0.004
    timings = timings_of(results, batches=(1,))
    timings[1]["rows"][0]["ours"] = 7.0 * timings[0]["rows"][0]["dense, compiled"]
    svg = latency_figure(results, timed_runs(results, timings), "digits")
    ((x, y),) = ((float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg))
    assert 58.0 < x < 748.0
    assert 34.0 < y < 432.0
    for tick in ("0.005", "0.01", "1", "5"):
        assert svg.count(f">{tick}</text>") >= 2


def test_ticks_of_a_logarithmic_axis_are_round() -> None:
    assert [round(10**tick, 9) for tick in log_ticks(-1.7, 0.31)] == [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    assert all(after > before for before, after in pairwise(log_ticks(-3.2, 1.4)))


def test_several_datasets_have_a_figure_each(tmp_path: Path) -> None:
    results = make_results(("dense", "gate"), 1)
    results["runs"] += make_results(("dense", "gate"), 1, "mnist")["runs"]
    for run in results["runs"]:
        run["folder"] += f"-{run['data']}"
    page = page_of(write_timings(write_sample(tmp_path, results), results))
    assert "Latency against MACs, digits" in page
    assert "Latency against MACs, mnist" in page


def test_the_name_of_a_model_appears_once_at_its_slowest_point() -> None:
    results = make_results(ALL_MODELS, 1)
    svg = latency_figure(results, timed_runs(results, timings_of(results)), "digits")
    for model in ALL_MODELS:
        assert svg.count(f">{model}, 1</text>") == 1  # batch 1 has the largest overhead here
        assert f">{model}, 16</text>" not in svg


def test_hostile_names_are_escaped_in_the_figure(tmp_path: Path) -> None:
    results = make_results(("gate",), 1)
    results["runs"][0]["model"] = "gate</text><script>alert(1)</script>"
    page = page_of(write_timings(write_sample(tmp_path, results), results))
    assert "<script>alert" not in page
