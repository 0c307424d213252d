"""Single samples: cost histograms, example inputs, heat maps by class; and gates over training."""

from __future__ import annotations

import re

import pytest

from dynamicgate.lab.report.class_heatmap import Rates, block_order, heatmap_figure
from dynamicgate.lab.report.example_inputs import example_groups, png_or_empty
from dynamicgate.lab.report.gate_curves import constants_note, gate_figure
from dynamicgate.lab.report.model_panels import cost_panels, example_panels
from dynamicgate.lab.report.reading import Results, SampleStats
from dynamicgate.lab.report.sample_costs import class_costs, cost_caption, cost_histogram, cost_range
from tests.lab.report.sample_results import (
    make_log,
    make_picture,
    make_results,
    make_run,
    make_sample,
    make_sample_stats,
)


def stats_of(results: Results) -> list[SampleStats]:
    return [make_sample_stats(run) for run in results["runs"]]


def test_costs_are_fractions_of_the_dense_network() -> None:
    run = make_run("gate", 0)
    relative = run["macs"]["relative"]
    assert cost_range(run, make_sample_stats(run)) == pytest.approx((relative - 0.1, relative + 0.1))


def test_a_model_whose_samples_all_cost_the_same_has_no_histogram() -> None:
    run = make_run("static", 0)
    assert cost_range(run, make_sample_stats(run)) is None
    assert cost_histogram("static", 1, run, make_sample_stats(run), (0.0, 1.0)) == ""
    assert class_costs(run, make_sample_stats(run)) == []


def test_a_histogram_has_a_bar_for_every_bin_with_samples_and_says_how_many() -> None:
    run = make_run("gate", 0)
    stats = make_sample_stats(run)
    stats["macs"]["counts"][1] = 0
    svg = cost_histogram("gate", 0, run, stats, (0.1, 0.6))
    assert svg.count('class="column"') == 4
    assert re.search(r"<title>0\.\d{3} to 0\.\d{3}: 180 samples, 64\.3%</title>", svg)
    assert f"mean {run['macs']['relative']:.3f}, budget 0.300" in svg


def test_histograms_of_one_dataset_share_their_axis() -> None:
    results = make_results(("gate", "gate+rigl", "static"), 2)
    panels = cost_panels(results, stats_of(results))
    assert [panel["name"] for panel in panels] == ["gate", "gate+rigl"]
    ticks = [re.findall(r'class="tick" text-anchor="middle">([\d.]+)<', panel["svg"]) for panel in panels]
    assert ticks[0] == ticks[1]


def test_the_note_says_whether_hard_inputs_cost_more() -> None:
    run = make_run("gate", 0)
    relative = run["macs"]["relative"]
    expected = (
        f"correctly classified samples cost {relative:.3f}, misclassified ones {relative + 0.02:.3f}; "
        "correlation of hardness and cost +0.12"
    )
    assert cost_caption(run, make_sample_stats(run)) == expected
    assert cost_caption(run, {}) == ""


def test_inputs_are_shown_of_the_models_that_spend_different_amounts_on_them() -> None:
    results = make_results(("dense", "static", "gate"), 2)
    (panel,) = example_panels(results, stats_of(results))
    assert (panel["name"], panel["seed"]) == ("gate", 0)
    assert [group["kind"] for group in panel["groups"]] == ["easiest", "hardest", "cheapest", "most expensive"]


def test_where_every_model_spends_the_same_the_inputs_of_all_are_shown() -> None:
    results = make_results(("dense", "static"), 1)
    panels = example_panels(results, stats_of(results))
    assert [panel["name"] for panel in panels] == ["dense", "static"]
    assert [group["kind"] for group in panels[0]["groups"]] == ["easiest", "hardest"]


def test_an_example_has_its_class_the_prediction_its_confidence_and_its_cost() -> None:
    run = make_run("gate", 0)
    names = [f"letter {index}" for index in range(10)]
    samples = [make_sample(run, 7, 0.25), make_sample(run, 8, 0.5, predicted=4)]
    right, wrong = example_groups(run, {"classes": names, "easiest": samples})[0]["samples"]
    assert (right["label"], right["correct"], right["cost"], right["confidence"]) == (
        "letter 3",
        True,
        "0.250",
        "75.0 %",
    )
    assert (wrong["predicted"], wrong["correct"], wrong["cost"]) == ("letter 4", False, "0.500")


def test_features_have_bars_as_long_as_their_deviation() -> None:
    run = make_run("gate", 0)
    features = [[12, 4.5, 6.0], [3, -0.25, -3.0], ["wrong"], [4, None, 1.0]]
    (group,) = example_groups(run, {"easiest": [make_sample(run, 7, 0.25, features=features)]})
    shown = group["samples"][0]["features"]
    assert [(one["name"], one["deviation"], one["bar"], one["below"]) for one in shown] == [
        ("12", "+6.0", 100, False),
        ("3", "−3.0", 50, True),
    ]


@pytest.mark.parametrize("value", [None, 3, "", "no base64!", "aGVsbG8=", "<svg>"])
def test_a_value_that_is_no_png_is_not_shown(value: object) -> None:
    assert png_or_empty(value) == ""
    assert png_or_empty(make_picture(9)) == make_picture(9)


def test_blocks_are_sorted_by_the_class_that_opens_them_most() -> None:
    rates: Rates = [
        [0.0, 0.9, 0.0, 1.0, 0.01],
        [0.8, 0.0, 0.0, 1.0, 0.0],
        [0.1, 0.0, 0.7, 0.9, 0.0],
    ]
    assert block_order(rates) == [3, 1, 0, 2, 4]
    assert block_order([[None, 0.5], [], [0.2, None]]) == [1, 0]


def test_a_heat_map_shows_the_cost_and_the_name_of_each_class() -> None:
    gate = make_run("gate", 0)["gates"][0]
    svg = heatmap_figure(gate, 0, [f"letter {index}" for index in range(10)], [0.25] * 9 + [None])
    assert svg.count(">0.250</text>") == 9
    assert ">letter 3</text>" in svg
    assert "<title>class letter 3, block 2: open for" in svg


def test_gate_curves_show_accuracy_and_the_budget_multiplier_below_the_open_rates() -> None:
    svg = gate_figure("gate", 0, [make_run("gate", 0)], [make_log(200)])
    assert "validation accuracy, %" in svg
    assert "λ, the weight of the budget penalty" in svg
    assert "of 199 steps" in svg
    assert "τ and θ" not in svg, "they are constant, so a note says so"
    assert constants_note([make_log(20)]) == "τ = 1, θ = 0.5 throughout"


def test_a_temperature_that_falls_has_a_strip_once_for_all_gates() -> None:
    log = make_log(50)
    for entry in log:
        site = {**entry["sites"]["layers.1"], "tau": 2.0 - entry["progress"]}
        entry["sites"] = {"layers.1": site, "layers.2": site}
    svg = gate_figure("gate", 0, [make_run("gate", 0)], [log])
    assert "τ and θ" in svg
    assert svg.count(">τ</text>") == 1
    assert constants_note([log]) == "θ = 0.5 throughout"
    for entry in log:
        entry["sites"] = {**entry["sites"], "layers.2": {**entry["sites"]["layers.2"], "tau": 3.0 - entry["progress"]}}
    svg = gate_figure("gate", 0, [make_run("gate", 0)], [log])
    assert svg.count(">τ layers.1</text>") == svg.count(">τ layers.2</text>") == 1
