"""The figures: colours and markers, axes, labels, curves, heat maps; and how numbers are written."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import dynamicgate.lab.report
from dynamicgate.lab.report.accuracy_plot import accuracy_figure
from dynamicgate.lab.report.budget_error_plot import budget_figure
from dynamicgate.lab.report.class_heatmap import heatmap_caption, heatmap_figure
from dynamicgate.lab.report.compared_models import MODEL_TABLE
from dynamicgate.lab.report.gate_curves import gate_figure
from dynamicgate.lab.report.label_placement import label_box, place_labels
from dynamicgate.lab.report.line_plot import BINS, binned_curve
from dynamicgate.lab.report.model_markers import COLOURS, colour_class, model_styles, shape_of
from dynamicgate.lab.report.number_format import quantity, signed_points
from dynamicgate.lab.report.reading import SPARSITY_KEY
from dynamicgate.lab.report.sparsity_curves import sparsity_figure
from dynamicgate.lab.report.svg import Scale, decimals, push_apart, round_ticks, tag
from tests.lab.report.sample_results import ALL_MODELS, make_log, make_results, make_run


def test_models_in_the_table_keep_their_colour_and_no_two_models_look_alike() -> None:
    assert model_styles(["dense", "gate"])["gate"] == model_styles(["gate", "x", "small"])["gate"]
    styles = model_styles(["gate", "dense", *(f"model {index}" for index in range(18))])
    assert len({(style % COLOURS, shape_of(style)) for style in styles.values()}) == 20


def test_each_model_in_the_table_has_its_own_colour_and_the_style_sheet_defines_it() -> None:
    styles = model_styles(MODEL_TABLE)
    classes = {colour_class(style) for style in styles.values()}
    assert len(classes) == len(MODEL_TABLE) == COLOURS
    sheet = (Path(dynamicgate.lab.report.__file__).parent / "page.css").read_text(encoding="utf-8")
    for name in classes:
        assert f".{name} {{ --hue: var(--{name}); }}" in sheet
        assert len(re.findall(rf"--{name}: #[0-9a-f]{{6}};", sheet)) == 2  # in light and in dark mode


def test_text_and_marks_have_enough_contrast_in_light_and_in_dark_mode() -> None:
    sheet = (Path(dynamicgate.lab.report.__file__).parent / "page.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", half)) for half in sheet.split("@media screen", 1))
    for paper in (light, dark):
        read = [name for name in paper if name in ("ink", "soft", "wrong") or re.fullmatch(r"c\d+", name)]
        assert len(read) == COLOURS + 3
        assert {name for name in read if contrast(paper[name], paper["paper"]) < 4.5} == set()  # WCAG 2, level AA


def contrast(one: str, two: str) -> float:
    lights = []
    for colour in (one, two):
        channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (96.0, 99.0, [96.0, 96.5, 97.0, 97.5, 98.0, 98.5, 99.0]),
        (-1.5, 1.5, [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert round_ticks(low, high, 6) == pytest.approx(expected)


def test_ticks_are_written_with_the_decimals_they_need() -> None:
    assert [decimals([0.0, step]) for step in (5.0, 1.0, 0.5, 0.05)] == [0, 0, 1, 2]


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(10.0, 20.0, 300.0, 100.0)
    assert (scale(10.0), scale(20.0), scale(15.0)) == (300.0, 100.0, 200.0)


def test_attributes_are_escaped() -> None:
    assert tag("g", class_='"><b>', aria_label="a&b") == '<g class="&quot;&gt;&lt;b&gt;" aria-label="a&amp;b"></g>'


def test_labels_on_one_height_are_pushed_apart_and_stay_inside() -> None:
    moved = push_apart([50.0, 50.0, 99.0, 98.0], 10.0, 0.0, 100.0)
    ordered = sorted(moved)
    assert all(after - before >= 10.0 for before, after in pairwise(ordered))
    assert max(moved) <= 100.0


def test_names_of_points_in_one_place_do_not_cover_each_other() -> None:
    points = [(300.0, 100.0 + 3 * index) for index in range(4)]
    names = ["gate", "static", "small", "dense"]
    boxes = [
        label_box(place, 8.6 * len(name))
        for place, name in zip(place_labels(points, names, (50.0, 0.0, 700.0, 300.0)).values(), names, strict=True)
    ]
    for index, one in enumerate(boxes):
        for two in boxes[index + 1 :]:
            assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]


def test_an_optional_label_without_room_is_left_out() -> None:
    points = [(300.0, 100.0)] * 3
    assert place_labels(points, ["gate", "1", "16"], (50.0, 0.0, 700.0, 300.0), optional=[1, 2]).keys() == {0, 1}


def test_a_name_at_the_right_edge_goes_left() -> None:
    assert place_labels([(690.0, 50.0)], ["dense"], (50.0, 0.0, 700.0, 300.0))[0][2] == "end"


def test_a_name_away_from_its_point_has_a_line_to_it() -> None:
    runs = [{**make_run("dense", 0), "model": name} for name in ALL_MODELS]
    assert (
        accuracy_figure({"runs": runs}, "digits").count('class="leader') == 10
    )  # all but the one that stands beside it
    assert 'class="leader' not in accuracy_figure({"runs": runs[:1]}, "digits")


def test_every_run_and_every_mean_is_drawn() -> None:
    svg = accuracy_figure(make_results(), "digits")
    assert len(re.findall(r'class="mark c\d faint"', svg)) == 25
    assert len(re.findall(r'class="mark c\d mean( control)?"', svg)) == 5


def test_the_means_of_controls_are_hollow_and_say_that_they_are_controls() -> None:
    svg = accuracy_figure(make_results(ALL_MODELS, 2), "digits")
    hollow = re.findall(r"<title>(\S+) \(control\): [^<]+</title>(?:<line [^>]+></line>)*<\w+ [^>]*mean control", svg)
    assert set(hollow) == set(ALL_MODELS) - {"gate", "gate+rigl"}
    assert len(re.findall(r'class="mark c\d+ mean"', svg)) == 2


def test_the_names_of_eleven_models_at_one_cost_all_find_room() -> None:
    points = [(260.0 + 2 * (index % 3), 200.0 - 11 * index) for index in range(len(ALL_MODELS))]
    places = place_labels(points, ALL_MODELS, (58.0, 24.0, 758.0, 372.0)).values()
    boxes = [label_box(place, 8.6 * len(name)) for place, name in zip(places, ALL_MODELS, strict=True)]
    for side in ("start", "end"):
        heights = [height for _, height, anchor in places if anchor == side]
        assert heights == sorted(heights, reverse=True)  # as their points
    for index, one in enumerate(boxes):
        for two in boxes[index + 1 :]:
            assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]


def test_the_pareto_front_goes_through_the_means_that_nothing_beats() -> None:
    runs = [make_run(model, 0) for model in ("small", "static", "dense")]
    for run, (relative, accuracy) in zip(runs, [(0.3, 0.97), (0.4, 0.96), (1.0, 0.98)], strict=True):
        run["macs"]["relative"], run["quality"]["accuracy"] = relative, accuracy
    (points,) = re.findall(r'<polyline points="([^"]+)" class="front"', accuracy_figure({"runs": runs}, "digits"))
    corners = [tuple(map(float, corner.split(","))) for corner in points.split()]
    across = sorted({x for x, _ in corners})
    assert len(across) == 3  # the cheapest, the best, the edge of the plot: the beaten one in between is no corner
    assert all(after[1] <= before[1] for before, after in pairwise(corners))


def test_the_budget_figure_has_one_mark_per_run_with_a_budget() -> None:
    svg = budget_figure(make_results(seeds=4))
    assert len(re.findall(r'class="mark c\d half"', svg)) == 2 * 4
    assert budget_figure(make_results(("dense", "small"))) == ""


def test_a_long_log_becomes_a_short_curve() -> None:
    log = make_log(5000)
    points = binned_curve(log, [entry["relative"] for entry in log])
    assert len(points) <= BINS
    assert (points[0][0], points[-1][0]) == pytest.approx((0.0, 1.0), abs=0.01)


def test_a_curve_without_progress_uses_the_steps() -> None:
    assert binned_curve([{"step": 0}, {"step": 5}, {"step": 10}], [1.0, None, 0.5]) == [(0.0, 1.0), (1.0, 0.5)]


def test_a_training_panel_has_a_line_per_site_and_seed_and_the_target() -> None:
    runs = [make_run("gate", seed) for seed in range(3)]
    svg = gate_figure("gate", 0, runs, [make_log(50, seed) for seed in range(3)])
    assert len(re.findall(r"<title>layers\.1, seed \d: 0\.\d+ at the end</title>", svg)) == 3
    assert svg.count('class="curve relative"') == svg.count('class="curve target"') == 3
    assert gate_figure("gate", 0, runs, [[], [], []]) == ""


def test_a_sparsity_panel_has_exploration_and_churn_of_every_layer_and_seed() -> None:
    runs = [make_run("rigl", seed) for seed in range(3)]
    svg = sparsity_figure("rigl", 5, runs, [make_log(50, seed, sparse_layers=2) for seed in range(3)])
    assert svg.count('class="curve explored c5"') == svg.count('class="curve churn c5"') == 2 * 3
    assert "<title>layers.1 explored, seed 2: 50.0% at the end, density 20.0%</title>" in svg
    assert "<title>layers.0 churn, seed 0: 0.0% at the end, density 20.0%</title>" in svg
    assert svg.count(">layers.0</text>") == 2  # in the strip of what was explored, and in that of churn
    assert 'aria-label="Weights explored and connections replaced over training: rigl"' in svg


def test_lines_of_deeper_layers_are_thinner() -> None:
    svg = sparsity_figure("rigl", 5, [make_run("rigl", 0)], [make_log(50, sparse_layers=3)])
    widths = [float(found) for found in re.findall(r'stroke-width:([\d.]+)"', svg)]
    assert widths[:3] == widths[3:] == sorted(widths[:3], reverse=True)
    assert len(set(widths)) == 3


def test_a_log_with_sparsity_in_some_entries_only_still_makes_lines() -> None:
    log = make_log(50, sparse_layers=1)
    sparse = [{**entry, SPARSITY_KEY: entry[SPARSITY_KEY] if entry["step"] % 10 == 0 else None} for entry in log]
    assert sparsity_figure("set", 6, [make_run("set", 0)], [sparse]).count("<polyline") == 2


@pytest.mark.parametrize("rows", [None, {}, "often", {"layers.0": None}, {"layers.0": {"churn": "much"}}])
def test_a_log_without_sparsity_numbers_has_no_panel(rows: object) -> None:
    log = [{**entry, SPARSITY_KEY: rows} for entry in make_log(20)]
    assert sparsity_figure("rigl", 5, [make_run("rigl", 0)], [log]) == ""
    assert sparsity_figure("rigl", 5, [make_run("rigl", 0)], [make_log(20)]) == ""


def test_a_model_without_gates_has_no_panel_of_open_rates() -> None:
    log = [{**entry, "sites": {}} for entry in make_log(20)]
    assert gate_figure("rigl", 5, [make_run("rigl", 0)], [log]) == ""


def test_a_heat_map_has_a_rectangle_per_class_and_block() -> None:
    gate = make_run("gate", 0)["gates"][0]
    svg = heatmap_figure(gate, 0)
    assert svg.count('class="heat"') == 10 * 8
    assert f"<title>class 3, block 2: open for {gate['open_by_class'][3][2]:.0%}</title>" in svg
    assert heatmap_caption(gate) == "layers.1: 10 classes × 8 blocks of 16 units"


def test_a_huge_heat_map_is_cut_and_says_so() -> None:
    gate = {"name": "wide", "open_by_class": [[0.5] * 1000] * 3}
    assert heatmap_figure(gate, 0).count('class="heat"') == 3 * 256
    assert "the first 256 blocks are shown" in heatmap_caption(gate)


def test_a_class_without_samples_keeps_its_row() -> None:
    svg = heatmap_figure({"name": "layers.1", "open_by_class": [[0.5, 0.5], [], [None, None], [0.1, 0.9]]}, 0)
    assert svg.count('class="heat"') == 4
    assert "class 3, block 1: open for 90%" in svg


@pytest.mark.parametrize("rates", [None, [], [[]], "many", [None]])
def test_a_gate_without_rates_has_no_heat_map(rates: object) -> None:
    assert heatmap_figure({"name": "layers.1", "open_by_class": rates}, 0) == ""


def test_a_quantity_and_its_deviation_share_one_unit() -> None:
    assert quantity({"mean": 9472.0, "std": 0.0, "n": 3}) == "9,472"
    assert quantity({"mean": 172_500.0, "std": 17_300.0, "n": 3}) == "172.5 ± 17.3 k"
    assert quantity({"mean": 1.11e6, "std": 1e4, "n": 3}) == "1.11 ± 0.01 M"


def test_percentage_points_have_a_sign() -> None:
    assert (signed_points(0.012), signed_points(-0.005)) == ("+1.20", "−0.50")
