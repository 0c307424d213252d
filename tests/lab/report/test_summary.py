"""Means over seeds, caveats, verdicts, controls, and the summary table in the terminal."""

from __future__ import annotations

import math

import pytest

from dynamicgate.lab.report import render_table, summarise
from dynamicgate.lab.report.caveats import find_caveats
from dynamicgate.lab.report.number_format import shorten_middle
from dynamicgate.lab.report.reading import Run
from dynamicgate.lab.report.summary import pareto_front
from dynamicgate.lab.report.tables import summary_table
from dynamicgate.lab.report.verdicts import bottom_lines, headlines
from tests.lab.report.sample_results import make_results, make_run, make_timing, with_savings


def runs_with(model: str, accuracies: list[float], relative: float = 0.3) -> list[Run]:
    runs = [make_run("gate" if model == "gate" else "small", seed) for seed in range(len(accuracies))]
    for run, accuracy in zip(runs, accuracies, strict=True):
        run["model"] = model
        run["quality"]["accuracy"] = accuracy
        run["macs"].update(relative=relative, executed=relative * run["macs"]["dense"])
    return runs


def test_mean_and_deviation_match_numbers_computed_by_hand() -> None:
    (row,) = summarise({"runs": runs_with("gate", [0.96, 0.97, 0.98])})
    assert (row["data"], row["model"], row["n"]) == ("digits", "gate", 3)
    assert row["accuracy"]["mean"] == pytest.approx(0.97, abs=1e-12)
    assert row["accuracy"]["std"] == pytest.approx(0.01, abs=1e-12)
    assert row["accuracy"]["n"] == 3
    assert row["executed"]["mean"] == pytest.approx(0.3 * 9472)
    assert row["gate_fraction"]["mean"] == pytest.approx(512 / (0.3 * 9472))


def test_two_values_have_the_deviation_with_one_degree_of_freedom() -> None:
    (row,) = summarise({"runs": runs_with("gate", [0.90, 0.94])})
    assert row["accuracy"]["std"] == pytest.approx(0.04 / math.sqrt(2), abs=1e-12)


def test_one_seed_has_no_deviation() -> None:
    (row,) = summarise({"runs": runs_with("gate", [0.9])})
    assert row["accuracy"] == {"mean": 0.9, "std": 0.0, "n": 1}


def test_rows_are_kept_apart_by_data_and_model() -> None:
    runs = make_results(seeds=2)["runs"] + make_results(("dense", "gate"), 3, "mnist")["runs"]
    rows = {(row["data"], row["model"]): row["n"] for row in summarise({"runs": runs})}
    assert rows == {
        **{("digits", name): 2 for name in ("dense", "small", "dropout", "static", "gate")},
        ("mnist", "dense"): 3,
        ("mnist", "gate"): 3,
    }


def test_a_diverged_run_is_left_out_of_the_mean_and_a_caveat_says_so() -> None:
    results = {"runs": runs_with("gate", [0.9, float("nan"), 0.8])}
    (row,) = summarise(results)
    assert row["accuracy"]["mean"] == pytest.approx(0.85)
    assert (row["accuracy"]["n"], row["n"]) == (2, 3)
    assert any("1 of 3 runs" in caveat for caveat in find_caveats(results))


def test_relative_cost_is_computed_where_it_is_not_stated() -> None:
    (run,) = runs_with("gate", [0.9])
    run["macs"] = {"dense": 200, "executed": 50.0}
    assert summarise({"runs": [run]})[0]["relative"]["mean"] == 0.25


def test_the_pareto_front_has_the_points_that_nothing_beats_cheapest_first() -> None:
    points = [(1.0, 0.98), (0.3, 0.97), (0.3, 0.96), (0.5, 0.95), (0.1, 0.90), (0.6, 0.97), (1.2, 0.98)]
    assert pareto_front(points) == [(0.1, 0.90), (0.3, 0.97), (1.0, 0.98)]


def test_the_pareto_front_of_no_points_is_empty() -> None:
    assert pareto_front([]) == []


@pytest.mark.parametrize(
    ("gate", "small", "outcome"),
    [
        ([0.980, 0.981, 0.982], [0.970, 0.971, 0.972], "Beats small"),
        ([0.960, 0.961, 0.962], [0.970, 0.971, 0.972], "Loses to small"),
        ([0.960, 0.971, 0.982], [0.961, 0.972, 0.983], "Too close to call against small"),
        ([0.980, 0.990], [0.960, 0.970], "Too close to call against small"),  # two seeds: t is 4.3 at best
        ([0.980], [0.970], "Above small"),
        ([0.960], [0.970], "Below small"),
    ],
)
def test_the_headline_says_plainly_who_wins(gate: list[float], small: list[float], outcome: str) -> None:
    (headline,) = headlines({"runs": runs_with("gate", gate) + runs_with("small", small)})
    assert outcome in [verdict.outcome for verdict in headline.verdicts]


def test_a_verdict_shows_its_interval() -> None:
    (headline,) = headlines(
        {"runs": runs_with("gate", [0.980, 0.981, 0.982]) + runs_with("small", [0.97, 0.971, 0.972])}
    )
    (beats,) = [verdict for verdict in headline.verdicts if verdict.kind == "Beats"]
    # Welch by hand: a standard error of 0.1 * sqrt(2 / 3) points, 4 degrees of freedom, t = 2.7764
    assert beats.detail.startswith("+1.00 points (95 % interval +0.77 to +1.23) against")


@pytest.mark.parametrize(("seeds", "said"), [(1, "One run per model"), (2, "Two runs of some models"), (3, "")])
def test_fewer_than_three_seeds_are_a_caveat(seeds: int, said: str) -> None:
    found = " ".join(find_caveats(make_results(("dense", "gate"), seeds)))
    assert found.startswith(said) if said else not found


@pytest.mark.parametrize(
    ("speed", "outcome"),
    [(2.0, "Faster than"), (0.5, "Slower than"), (1.0, "As fast as")],
)
def test_the_headline_speaks_of_time_when_it_was_measured(speed: float, outcome: str) -> None:
    results = make_results(("dense", "gate"), 2)
    timings = [make_timing(run, batches=(1, 16)) for run in results["runs"]]
    for timing in timings[:2]:  # the dense model as fast compiled as its rivals say
        for row in timing["rows"]:
            row["ours"] = row["dense, compiled"]
    for timing in timings[2:]:
        for row in timing["rows"]:
            row["ours"] = row["dense, compiled"] / speed
    (headline,) = headlines(results, timings)
    (found,) = [verdict for verdict in headline.verdicts if "compiled dense" in verdict.outcome]
    assert found.outcome == f"{outcome} compiled dense"
    assert found.detail == f"{speed:.2f} x at batch 1, {speed:.2f} x at batch 16; 2 seeds"
    assert not any("compiled dense" in verdict.outcome for verdict in headlines(results)[0].verdicts)


def test_the_first_sentence_names_the_best_model_at_the_budget_and_what_is_level_with_it() -> None:
    runs = runs_with("gate", [0.980, 0.981, 0.982]) + runs_with("small", [0.970, 0.971, 0.972])
    runs += runs_with("rigl", [0.979, 0.981, 0.982]) + runs_with("dense", [0.99, 0.99, 0.99], relative=1.0)
    ((dataset, sentence),) = bottom_lines({"runs": runs})
    assert dataset == "digits"
    assert sentence == (
        "Most accurate at 0.30 of the dense MACs: gate, 98.10 ± 0.10 %; these runs cannot tell it apart from rigl."
    )
    assert bottom_lines({"runs": runs_with("small", [0.97, 0.98])}) == []


def test_the_headline_has_cost_budget_and_accuracy() -> None:
    (headline,) = headlines({"runs": runs_with("gate", [0.96, 0.97, 0.98], relative=0.325)})
    expected = "gate executes 0.325 of the dense MACs (budget 0.30) at 97.00 ± 1.00 % accuracy, over 3 seeds."
    assert headline.sentence == expected
    assert headline.verdicts[0].outcome == "Misses its budget"
    assert headline.verdicts[0].detail.startswith("+2.50 points")


def test_gates_that_never_vary_are_called_static() -> None:
    runs = runs_with("gate", [0.9])
    runs[0]["gates"][0]["varying"] = 0.0
    (headline,) = headlines({"runs": runs})
    assert "Ignores the input" in [verdict.outcome for verdict in headline.verdicts]


def test_runs_that_share_a_seed_are_a_caveat() -> None:
    results = {"runs": runs_with("gate", [0.9]) + runs_with("gate", [0.8])}
    assert any("share a seed" in caveat for caveat in find_caveats(results))


def test_a_model_no_better_than_the_most_frequent_class_is_a_caveat() -> None:
    results = {"meta": {"data": {"majority": 0.5}}, "runs": runs_with("gate", [0.4, 0.5])}
    assert any("most frequent class" in caveat for caveat in find_caveats(results))


def test_long_names_stay_apart_when_they_are_cut() -> None:
    names = ["CD4+/CD45RA+/CD25- Naive T", "CD4+/CD45RA+/CD25+ T Reg", "layers.10.gate.net.0.linear"]
    cut = [shorten_middle(name, 20) for name in names]
    assert len(set(cut)) == 3
    assert all(len(name) == 20 and "…" in name for name in cut)
    assert shorten_middle("CD14+ Monocyte", 20) == "CD14+ Monocyte"


def test_the_text_table_is_aligned() -> None:
    lines = render_table(make_results()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 2 + 5
    ends = [
        index for index, sign in enumerate(lines[1]) if sign == "-" and lines[1][index + 1 : index + 2] in ("", " ")
    ]
    for line in lines:
        assert all(line[end + 1 : end + 3].strip() == "" for end in ends)
        assert all(line[end] != " " for end in ends[1:])


def test_the_text_table_counts_wide_letters_and_defuses_control_characters() -> None:
    results = make_results(("dense", "gate"), 2)
    for run in results["runs"]:
        run["model"] = {"dense": "密集", "gate": "a\x1b[31m\nb"}[run["model"]]
    lines = render_table(results).splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert len(lines[2]) + 2 == len(lines[3]) == len(lines[0])


def test_the_text_table_shows_the_numbers_of_the_summary() -> None:
    text = render_table({"runs": runs_with("gate", [0.96, 0.97, 0.98])})
    assert "97.00 ± 1.00" in text
    assert "0.300" in text


def test_savings_by_sparsity_and_by_gates_are_beside_the_relative_cost() -> None:
    runs = [with_savings(run, 0.2) for run in runs_with("gate", [0.96, 0.97], relative=0.3)]
    table = summary_table({"runs": runs})
    shown = dict(zip(table.columns, [cell.text for cell in table.rows[0]], strict=True))
    assert shown["sparsity saves, %"] == "20.0"
    assert shown["gates save, %"] == f"{(0.5 + 512 / 9472) * 100:.1f}"
    assert table.columns.index("executed MACs") + 1 == table.columns.index("sparsity saves, %")
    assert table.columns[:3] == ["model", "relative", "accuracy, %"]  # the number the page is about comes first


def test_savings_that_are_zero_or_unknown_have_no_columns() -> None:
    (run,) = runs_with("small", [0.97], relative=1.0)
    old = summary_table({"runs": [run]}).columns
    assert not any("save" in column for column in old)
    assert summary_table({"runs": [with_savings(run, 0.0)]}).columns == old
    mixed = summary_table({"runs": [run, {**with_savings(run, 0.4), "model": "rigl"}]})
    column = mixed.columns.index("sparsity saves, %")
    assert [row[column].text for row in mixed.rows] == ["–", "40.0"]


def test_a_rounding_error_is_not_written_as_minus_zero() -> None:
    (run,) = runs_with("gate", [0.97], relative=1.0)
    run["macs"].update(structure_saved=-1e-17, gate_saved=0.5)
    table = summary_table({"runs": [run]})
    assert table.rows[0][table.columns.index("sparsity saves, %")].text == "0.0"


def test_a_combination_is_compared_with_the_models_it_combines_too() -> None:
    gate, both = headlines(make_results(("dense", "rigl", "gate", "gate+rigl"), 3))
    assert {verdict.outcome.split()[-1] for verdict in both.verdicts} >= {"dense", "rigl", "gate"}
    assert "gate+rigl" not in {verdict.outcome.split()[-1] for verdict in gate.verdicts}
