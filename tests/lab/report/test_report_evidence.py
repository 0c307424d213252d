import re

import pytest

from dynamicgate.lab.report.classes import class_figure, preferred_order
from dynamicgate.lab.report.costs import class_costs, cost_caption, cost_figure, cost_range
from dynamicgate.lab.report.inputs import safe_picture, shown_inputs
from dynamicgate.lab.report.panels import cost_panels, input_panels
from dynamicgate.lab.report.training import steady, training_figure
from tests.lab.report.report_sample import (
    make_evidence,
    make_log,
    make_picture,
    make_results,
    make_run,
    make_sample,
)


def evidences_of(results):
    return [make_evidence(run) for run in results["runs"]]


def test_costs_are_shares_of_the_dense_network():
    run = make_run("gate", 0)
    low, high = cost_range(run, make_evidence(run))
    assert (low, high) == (pytest.approx(run["macs"]["relative"] - 0.1), pytest.approx(run["macs"]["relative"] + 0.1))


def test_a_model_whose_samples_all_cost_the_same_has_no_histogram():
    run = make_run("static", 0)
    assert cost_range(run, make_evidence(run)) is None
    assert cost_figure("static", 1, run, make_evidence(run), (0.0, 1.0)) == ""
    assert class_costs(run, make_evidence(run)) == []


def test_a_histogram_has_a_bar_for_every_bin_with_samples_and_tells_how_many():
    run = make_run("gate", 0)
    evidence = make_evidence(run)
    evidence["macs"]["counts"][1] = 0
    svg = cost_figure("gate", 0, run, evidence, (0.1, 0.6))
    assert svg.count('class="column"') == 4
    assert re.search(r"<title>0\.\d{3} to 0\.\d{3}: 180 samples, 64\.3%</title>", svg)
    assert f"mean {run['macs']['relative']:.3f}, asked 0.300" in svg


def test_histograms_of_one_data_set_share_their_axis():
    results = make_results(("gate", "gate+rigl", "static"), 2)
    panels = cost_panels(results, evidences_of(results))
    assert [panel["name"] for panel in panels] == ["gate", "gate+rigl"]
    ticks = [re.findall(r'class="tick" text-anchor="middle">([\d.]+)<', panel["svg"]) for panel in panels]
    assert ticks[0] == ticks[1]


def test_the_note_says_whether_hard_inputs_cost_more():
    run = make_run("gate", 0)
    relative = run["macs"]["relative"]
    expected = (
        f"right answers cost {relative:.3f}, wrong ones {relative + 0.02:.3f}; correlation of hardness and cost +0.12"
    )
    assert cost_caption(run, make_evidence(run)) == expected
    assert cost_caption(run, {}) == ""


def test_inputs_are_shown_of_the_models_that_spend_different_amounts_on_them():
    results = make_results(("dense", "static", "gate"), 2)
    (panel,) = input_panels(results, evidences_of(results))
    assert (panel["name"], panel["seed"]) == ("gate", 0)
    assert [group["kind"] for group in panel["groups"]] == ["easiest", "hardest", "cheapest", "dearest"]


def test_where_no_model_does_the_inputs_of_all_are_shown():
    results = make_results(("dense", "static"), 1)
    panels = input_panels(results, evidences_of(results))
    assert [panel["name"] for panel in panels] == ["dense", "static"]
    assert [group["kind"] for group in panels[0]["groups"]] == ["easiest", "hardest"]


def test_an_input_says_what_it_is_what_was_said_and_what_it_cost():
    run = make_run("gate", 0)
    names = [f"letter {index}" for index in range(10)]
    samples = [make_sample(run, 7, 0.25), make_sample(run, 8, 0.5, predicted=4)]
    right, wrong = shown_inputs(run, {"classes": names, "easiest": samples})[0]["samples"]
    assert (right["label"], right["right"], right["cost"], right["sure"]) == ("letter 3", True, "0.250", "75.0 %")
    assert (wrong["predicted"], wrong["right"], wrong["cost"]) == ("letter 4", False, "0.500")


def test_features_that_stand_out_have_bars_as_long_as_they_stand_out():
    run = make_run("gate", 0)
    features = [[12, 4.5, 6.0], [3, -0.25, -3.0], ["wrong"], [4, None, 1.0]]
    (group,) = shown_inputs(run, {"easiest": [make_sample(run, 7, 0.25, features=features)]})
    shown = group["samples"][0]["features"]
    assert [(one["name"], one["deviation"], one["share"], one["below"]) for one in shown] == [
        ("12", "+6.0", 100, False),
        ("3", "−3.0", 50, True),
    ]


@pytest.mark.parametrize("value", [None, 3, "", "no base64!", "aGVsbG8=", "<svg>"])
def test_what_is_no_png_is_no_picture(value):
    assert safe_picture(value) == ""
    assert safe_picture(make_picture(9)) == make_picture(9)


def test_units_stand_in_the_order_of_the_class_that_opens_them_most():
    rates = [
        [0.0, 0.9, 0.0, 1.0, 0.01],
        [0.8, 0.0, 0.0, 1.0, 0.0],
        [0.1, 0.0, 0.7, 0.9, 0.0],
    ]
    assert preferred_order(rates) == [3, 1, 0, 2, 4]
    assert preferred_order([[None, 0.5], [], [0.2, None]]) == [1, 0]


def test_a_heat_map_tells_the_cost_and_the_name_of_each_class():
    gate = make_run("gate", 0)["gates"][0]
    svg = class_figure(gate, 0, [f"letter {index}" for index in range(10)], [0.25] * 9 + [None])
    assert svg.count(">0.250</text>") == 9
    assert ">letter 3</text>" in svg
    assert "<title>class letter 3, block 2: open" in svg


def test_gate_traces_show_accuracy_and_price_under_the_open_rates():
    svg = training_figure("gate", 0, [make_run("gate", 0)], [make_log(200)])
    assert "validation accuracy, %" in svg
    assert "λ, the price of the budget" in svg
    assert "of 199 steps" in svg
    assert "τ and θ" not in svg, "they do not move, so a sentence says it"
    assert steady([make_log(20)]) == "τ = 1, θ = 0.5 throughout"


def test_a_temperature_that_falls_has_a_strip_once_for_all_gates():
    log = make_log(50)
    for entry in log:
        site = {**entry["sites"]["layers.1"], "tau": 2.0 - entry["progress"]}
        entry["sites"] = {"layers.1": site, "layers.2": site}
    svg = training_figure("gate", 0, [make_run("gate", 0)], [log])
    assert "τ and θ" in svg
    assert svg.count(">τ</text>") == 1
    assert steady([log]) == "θ = 0.5 throughout"
    for entry in log:
        entry["sites"] = {**entry["sites"], "layers.2": {**entry["sites"]["layers.2"], "tau": 3.0 - entry["progress"]}}
    svg = training_figure("gate", 0, [make_run("gate", 0)], [log])
    assert svg.count(">τ layers.1</text>") == svg.count(">τ layers.2</text>") == 1
