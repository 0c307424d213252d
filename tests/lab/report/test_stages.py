"""Models in stages on the page: curves, stages and controls, and nothing of it where no run has stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.report import render_table, write_report
from dynamicgate.lab.report.controls import subjects
from dynamicgate.lab.report.example_inputs import example_groups
from dynamicgate.lab.report.model_panels import cost_panels, example_panels
from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.stage_curves import stage_figure
from dynamicgate.lab.report.stage_panels import stage_section
from dynamicgate.lab.report.stage_runs import describe_stages, mean_curve
from dynamicgate.lab.report.svg import LogScale
from dynamicgate.lab.report.verdicts import headlines, stage_verdict
from tests.lab.report.sample_results import (
    IN_STAGES,
    STAGE_COSTS,
    make_results,
    make_run,
    make_sample_stats,
    write_sample,
)
from tests.lab.report.test_page import Outline, page_of

TITLE = "Stages: how much of the network an input gets"
MODELS = ("dense", "rigl", *IN_STAGES)


def section_of(results: Results) -> dict[str, Any]:
    found = stage_section(results, [make_sample_stats(run) for run in results["runs"]])
    assert found is not None
    return found


def shown(table: Any, row: int) -> dict[str, str]:
    return dict(zip(table.columns, [cell.text for cell in table.rows[row]], strict=True))


def test_a_page_with_stages_has_their_section_and_its_numbers(tmp_path: Path) -> None:
    text = re.sub(r"\s+", " ", " ".join(Outline(page_of(tmp_path, make_results(MODELS, 2))).text))
    assert TITLE in text
    for words in ("same stops dealt at random, %", "opened by, %", "cost if stopped there", "their mean hardness"):
        assert words in text
    assert "60.0 % of the samples stop after the first stage, 0.9 % of these are wrong" in text
    assert "0.900 of dense" in text
    assert "stage 3 of 3" in text


def test_a_page_without_stages_has_none_of_it(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_results(("dense", "rigl", "gate"), 2))
    for absent in (TITLE, "stage", "of the samples stop"):
        assert absent not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_every_staged_model_has_a_curve_and_every_model_a_mark() -> None:
    results = make_results(MODELS, 2)
    svg = stage_figure(results, "digits")
    assert svg.count('class="curve seed') == 2 * 3
    assert svg.count('class="curve average') == 3
    assert svg.count("stroke-dasharray") == 2 * 3, "cascade and staged-random are controls"
    assert all(f">{model}</text>" in svg for model in MODELS)
    runs = [run for run in results["runs"] if run["model"] == "staged"]
    ends = [sum(run["curve"][at]["accuracy"] for run in runs) / 2 for at in (0, -1)]
    assert f"staged, mean over 2 seeds: {ends[0]:.2%} at 0.120 to {ends[1]:.2%} at 0.900 of the dense MACs" in svg


def test_curves_of_different_lengths_have_no_mean() -> None:
    assert mean_curve([[(0.1, 0.8), (0.3, 0.9)], [(0.3, 0.6), (0.5, 0.7)]]) == [
        pytest.approx((0.2, 0.7)),
        pytest.approx((0.4, 0.8)),
    ]
    assert mean_curve([[(0.1, 0.8)], [(0.1, 0.8), (0.2, 0.9)]]) == []


def test_a_logarithmic_scale_gives_equal_factors_equal_room() -> None:
    x = LogScale(0.01, 1.0, 0.0, 200.0)
    assert [x(value) for value in (0.01, 0.1, 1.0, 0.0)] == pytest.approx([0.0, 100.0, 200.0, 0.0])


def test_each_stage_has_its_rows_their_error_and_their_hardness() -> None:
    run = make_run("staged", 0)
    first, _, last = describe_stages(run, make_sample_stats(run))
    assert (first.opened, first.cost, first.stopped) == (1.0, STAGE_COSTS[0], pytest.approx(0.6))
    assert (first.error, first.hardness) == (pytest.approx(2 / 216), pytest.approx(0.1))
    assert (last.stopped, last.error, last.hardness) == (
        pytest.approx(0.1),
        pytest.approx(6 / 36),
        pytest.approx(0.5),
    )
    assert [stage.error for stage in describe_stages(run, {})] == [None] * 3, "old statistics have no levels"


def test_the_tables_show_what_the_runs_say() -> None:
    results = make_results(MODELS, 1)
    section = section_of(results)
    assert [panel["name"] for panel in section["panels"]] == list(IN_STAGES)
    staged = results["runs"][2]
    row = shown(section["panels"][0]["table"], 1)
    assert row == {
        "stage": "2",
        "opened by, %": "40.0",
        "cost if stopped there": "0.420",
        "accuracy if all stopped there, %": f"{staged['stages']['accuracy'][1] * 100:.2f}",
        "stopped there, %": "30.0",
        "wrong among these, %": f"{400 / 108:.1f}",
        "their mean hardness": "0.300",
    }
    controls = shown(section["controls"], 0)
    assert controls["accuracy, %"] == f"{staged['quality']['accuracy'] * 100:.2f}"
    assert controls["same stops dealt at random, %"] == f"{staged['stages']['random'] * 100:.2f}"
    assert controls["difference, points"] == "+1.00"
    assert (controls["correlation of cost and error"], controls["correlation of cost and hardness"]) == ("0.25", "0.12")
    svg = section["panels"][0]["svg"]
    assert "stage 1: 60.0 % of the samples stop here at 0.120, 0.9 % of these are wrong, mean hardness 0.100" in svg


def test_samples_of_stages_have_bars_where_their_costs_are() -> None:
    results = make_results(("staged",), 1)
    (panel,) = cost_panels(results, [make_sample_stats(run) for run in results["runs"]])
    assert panel["svg"].count('class="column"') == 3
    assert "<title>0.420: 108 samples, 30.0%</title>" in panel["svg"]


def test_inputs_are_shown_with_the_stage_at_which_they_stopped() -> None:
    results = make_results(("dense", "staged"), 1)
    stats = [make_sample_stats(run) for run in results["runs"]]
    (panel,) = example_panels(results, stats)
    assert panel["name"] == "staged"
    samples = panel["groups"][0]["samples"]
    assert [(sample["cost"], sample["stage"]) for sample in samples] == [
        ("0.120", "stage 1 of 3"),
        ("0.420", "stage 2 of 3"),
        ("0.900", "stage 3 of 3"),
    ]
    assert example_groups(results["runs"][0], stats[0])[0]["samples"][0]["stage"] == ""


@pytest.mark.parametrize(
    "change",
    [
        {"curve": None},
        {"curve": []},
        {"stages": None},
        {"stages": {"open": [1.0, None], "relative": [0.1, 0.2]}},
        {"stages": {"relative": [0.1, None, "much"]}, "curve": [{"relative": 0.1}, 7]},
        {"stages": {"open": [1.0, 0.5], "relative": [0.1, 0.3], "accuracy": [float("nan"), 0.9]}},
    ],
)
def test_a_page_is_written_from_whatever_a_run_says_about_stages(change: dict[str, Any], tmp_path: Path) -> None:
    results = make_results(("rigl", "staged"), 2)
    results["runs"][-1].update(change)
    page = page_of(tmp_path, results)
    Outline(page)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))


def test_a_page_is_written_from_stages_without_sample_statistics(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, make_results(MODELS, 2))
    for path in folder.glob("runs/*/samples.json"):
        path.unlink()
    text = " ".join(Outline(write_report(folder).read_text(encoding="utf-8")).text)
    assert TITLE in text
    assert "of the samples stop" not in text


def test_staged_is_compared_with_each_control_and_with_rigl() -> None:
    results = make_results(MODELS, 3)
    assert subjects(results) == {("digits", "staged")}
    (headline,) = headlines(results)
    assert {verdict.outcome.split()[-1] for verdict in headline.verdicts} >= {"rigl", "cascade", "staged-random"}
    both = headlines(make_results((*MODELS, "gate+rigl"), 3))
    staged = next(headline for headline in both if headline.model == "staged")
    assert any(verdict.outcome.endswith(" gate+rigl") for verdict in staged.verdicts)


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [
        ((0.010, 0.012, 0.011), "Opens stages for the inputs that need them"),
        ((-0.010, -0.012, -0.011), "Opens stages for the wrong inputs"),
        ((0.020, -0.015, 0.001), "Too close to call against stops dealt at random"),
        ((0.004,), "Opens stages for the inputs that need them"),
    ],
)
def test_the_verdict_on_stages_is_against_the_same_stops_dealt_at_random(
    gains: tuple[float, ...], outcome: str
) -> None:
    runs = [make_run("staged", seed) for seed in range(len(gains))]
    for run, gain in zip(runs, gains, strict=True):
        run["stages"]["random"] = run["quality"]["accuracy"] - gain
    verdict = stage_verdict(runs)
    assert verdict is not None
    assert verdict.outcome == outcome
    assert "if the same stops were dealt at random; correlation of cost and error +0.25" in verdict.detail
    assert stage_verdict([make_run("rigl", 0)]) is None


def test_the_table_has_percentiles_where_samples_differ_in_cost() -> None:
    results = make_results(("rigl", "staged"), 2)
    for run in results["runs"]:
        cost = run["macs"]["relative"]
        run["samples"] = {"p5": cost, "p50": cost, "p95": cost}
    assert "p95" not in render_table(results)
    results["runs"][-1]["samples"] = {"p5": 0.12, "p50": 0.12, "p95": 0.9}
    assert {"p5", "p50", "p95"} <= set(render_table(results).splitlines()[0].split())
    for run in results["runs"]:
        del run["samples"]
    assert "p95" not in render_table(results)
