import math

import pytest

from dynamicgate.lab.report import render_table, summarise
from dynamicgate.lab.report.headline import headlines
from dynamicgate.lab.report.models import subjects
from dynamicgate.lab.report.summary import caveats, pareto_front
from dynamicgate.lab.report.tables import summary_table
from tests.lab.report.report_sample import ALL_MODELS, make_results, make_run, split


def runs_with(model, accuracies, relative=0.3):
    runs = [make_run("gate" if model == "gate" else "small", seed) for seed in range(len(accuracies))]
    for run, accuracy in zip(runs, accuracies, strict=True):
        run["model"] = model
        run["quality"]["accuracy"] = accuracy
        run["macs"].update(relative=relative, executed=relative * run["macs"]["dense"])
    return runs


def test_mean_and_deviation_match_numbers_computed_by_hand():
    (row,) = summarise({"runs": runs_with("gate", [0.96, 0.97, 0.98])})
    assert (row["data"], row["model"], row["n"]) == ("digits", "gate", 3)
    assert row["accuracy"]["mean"] == pytest.approx(0.97, abs=1e-12)
    assert row["accuracy"]["std"] == pytest.approx(0.01, abs=1e-12)
    assert row["accuracy"]["n"] == 3
    assert row["executed"]["mean"] == pytest.approx(0.3 * 9472)
    assert row["gate_share"]["mean"] == pytest.approx(512 / (0.3 * 9472))


def test_two_values_have_the_deviation_with_one_degree_of_freedom():
    (row,) = summarise({"runs": runs_with("gate", [0.90, 0.94])})
    assert row["accuracy"]["std"] == pytest.approx(0.04 / math.sqrt(2), abs=1e-12)


def test_one_seed_has_no_deviation():
    (row,) = summarise({"runs": runs_with("gate", [0.9])})
    assert row["accuracy"] == {"mean": 0.9, "std": 0.0, "n": 1}


def test_rows_are_kept_apart_by_data_and_model():
    runs = make_results(seeds=2)["runs"] + make_results(("dense", "gate"), 3, "mnist")["runs"]
    rows = {(row["data"], row["model"]): row["n"] for row in summarise({"runs": runs})}
    assert rows == {
        **{("digits", name): 2 for name in ("dense", "small", "dropout", "static", "gate")},
        ("mnist", "dense"): 3,
        ("mnist", "gate"): 3,
    }


def test_a_diverged_run_is_left_out_of_the_mean_and_said_so():
    results = {"runs": runs_with("gate", [0.9, float("nan"), 0.8])}
    (row,) = summarise(results)
    assert row["accuracy"]["mean"] == pytest.approx(0.85)
    assert (row["accuracy"]["n"], row["n"]) == (2, 3)
    assert any("1 of 3 runs" in caveat for caveat in caveats(results))


def test_relative_cost_is_computed_where_it_is_not_stated():
    (run,) = runs_with("gate", [0.9])
    run["macs"] = {"dense": 200, "executed": 50.0}
    assert summarise({"runs": [run]})[0]["relative"]["mean"] == 0.25


def test_the_front_keeps_what_nothing_beats_cheapest_first():
    points = [(1.0, 0.98), (0.3, 0.97), (0.3, 0.96), (0.5, 0.95), (0.1, 0.90), (0.6, 0.97), (1.2, 0.98)]
    assert pareto_front(points) == [(0.1, 0.90), (0.3, 0.97), (1.0, 0.98)]


def test_the_front_of_nothing_is_nothing():
    assert pareto_front([]) == []


@pytest.mark.parametrize(
    ("gate", "small", "outcome"),
    [
        ([0.980, 0.981, 0.982], [0.970, 0.971, 0.972], "Beats small"),
        ([0.960, 0.961, 0.962], [0.970, 0.971, 0.972], "Loses to small"),
        ([0.960, 0.971, 0.982], [0.961, 0.972, 0.983], "Too close to call against small"),
        ([0.980], [0.970], "Above small"),
        ([0.960], [0.970], "Below small"),
    ],
)
def test_the_headline_says_plainly_who_wins(gate, small, outcome):
    (headline,) = headlines({"runs": runs_with("gate", gate) + runs_with("small", small)})
    assert outcome in [verdict.outcome for verdict in headline.verdicts]


def test_the_headline_states_cost_budget_and_accuracy():
    (headline,) = headlines({"runs": runs_with("gate", [0.96, 0.97, 0.98], relative=0.325)})
    assert headline.claim == "gate reaches 0.325 of dense MACs (asked 0.30) at 97.00 ± 1.00 % accuracy over 3 seeds."
    assert headline.verdicts[0].outcome == "Misses its budget"
    assert headline.verdicts[0].detail.startswith("+2.50 points")


def test_gates_that_never_vary_are_called_static():
    runs = runs_with("gate", [0.9])
    runs[0]["gates"][0]["varying"] = 0.0
    (headline,) = headlines({"runs": runs})
    assert "Ignores the input" in [verdict.outcome for verdict in headline.verdicts]


def test_runs_that_share_a_seed_are_pointed_out():
    results = {"runs": runs_with("gate", [0.9]) + runs_with("gate", [0.8])}
    assert any("share a seed" in caveat for caveat in caveats(results))


def test_a_model_no_better_than_the_majority_is_pointed_out():
    results = {"meta": {"data": {"majority": 0.5}}, "runs": runs_with("gate", [0.4, 0.5])}
    assert any("most frequent class" in caveat for caveat in caveats(results))


def test_the_text_table_is_aligned():
    lines = render_table(make_results()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 2 + 5
    ends = [
        index for index, sign in enumerate(lines[1]) if sign == "-" and lines[1][index + 1 : index + 2] in ("", " ")
    ]
    for line in lines:
        assert all(line[end + 1 : end + 3].strip() == "" for end in ends)
        assert all(line[end] != " " for end in ends[1:])


def test_the_text_table_counts_wide_letters_and_defuses_control_characters():
    results = make_results(("dense", "gate"), 2)
    for run in results["runs"]:
        run["model"] = {"dense": "密集", "gate": "a\x1b[31m\nb"}[run["model"]]
    lines = render_table(results).splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert len(lines[2]) + 2 == len(lines[3]) == len(lines[0])


def test_the_text_table_shows_the_numbers_of_the_summary():
    text = render_table({"runs": runs_with("gate", [0.96, 0.97, 0.98])})
    assert "97.00 ± 1.00" in text
    assert "0.300" in text


def test_structure_part_and_gate_part_stand_beside_the_relative_cost():
    runs = [split(run, 0.2) for run in runs_with("gate", [0.96, 0.97], relative=0.3)]
    table = summary_table({"runs": runs})
    shown = dict(zip(table.columns, [cell.text for cell in table.rows[0]], strict=True))
    assert shown["structure part, %"] == "20.0"
    assert shown["gate part, %"] == f"{(0.5 + 512 / 9472) * 100:.1f}"
    assert table.columns.index("relative") + 1 == table.columns.index("structure part, %")


def test_a_split_that_saves_nothing_or_is_not_there_has_no_columns():
    (run,) = runs_with("small", [0.97], relative=1.0)
    old = summary_table({"runs": [run]}).columns
    assert not any("part" in column for column in old)
    assert summary_table({"runs": [split(run, 0.0)]}).columns == old
    mixed = summary_table({"runs": [run, {**split(run, 0.4), "model": "rigl"}]})
    column = mixed.columns.index("structure part, %")
    assert [row[column].text for row in mixed.rows] == ["–", "40.0"]


def test_a_rounding_error_is_not_shown_as_minus_zero():
    (run,) = runs_with("gate", [0.97], relative=1.0)
    run["macs"].update(structure_saved=-1e-17, gate_saved=0.5)
    table = summary_table({"runs": [run]})
    assert table.rows[0][table.columns.index("structure part, %")].text == "0.0"


def test_gated_models_are_what_the_report_is_about_and_all_others_are_controls():
    assert subjects(make_results(ALL_MODELS, 1)) == {("digits", "gate"), ("digits", "gate+rigl")}


def test_without_gates_the_report_is_about_what_adapts_in_another_way():
    ungated = ("dense", "small", "pruned", "static-sparse", "rigl", "set")
    results = make_results(ungated, 3)
    assert subjects(results) == {("digits", "rigl"), ("digits", "set")}
    (rigl, _) = headlines(results)
    assert [verdict.outcome.split()[-1] for verdict in rigl.verdicts] == ["small", "pruned", "static-sparse", "dense"]


def test_a_report_about_nothing_in_particular_has_no_controls():
    results = make_results(("dense", "small"), 2)
    assert subjects(results) == set()
    assert all(headline.verdicts == [] for headline in headlines(results))


def test_a_combination_is_judged_by_its_parts_too():
    gate, both = headlines(make_results(("dense", "rigl", "gate", "gate+rigl"), 3))
    assert {verdict.outcome.split()[-1] for verdict in both.verdicts} >= {"dense", "rigl", "gate"}
    assert "gate+rigl" not in {verdict.outcome.split()[-1] for verdict in gate.verdicts}
