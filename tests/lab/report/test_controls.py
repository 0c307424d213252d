"""The table of models, and which of them a report is about."""

from __future__ import annotations

import pytest

from dynamicgate.lab.methods.hyperparameters import SPARSE
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.report.compared_models import MODEL_TABLE
from dynamicgate.lab.report.controls import subjects
from dynamicgate.lab.report.verdicts import headlines
from tests.lab.report.sample_results import ALL_MODELS, make_results


def test_the_report_is_about_gated_models_and_all_others_are_controls() -> None:
    assert subjects(make_results(ALL_MODELS, 1)) == {("digits", "gate"), ("digits", "gate+rigl")}


@pytest.mark.parametrize("budget", ["", " 0.1", ", budget 0.1"])
def test_a_variant_of_a_model_has_the_role_of_the_model(budget: str) -> None:
    results = make_results(("static", "rigl", "gate"), 1)
    for run in results["runs"]:
        run["model"] += budget
        run["gates"] = []
    assert subjects(results) == {("digits", f"gate{budget}")}
    del results["runs"][-1]
    assert subjects(results) == {("digits", f"rigl{budget}")}


def test_a_model_that_is_not_in_the_table_is_a_subject_if_it_reports_gates() -> None:
    results = make_results(("dense", "gate"), 1)
    for run in results["runs"]:
        run["model"] = f"my {run['model']}"
    assert subjects(results) == {("digits", "my gate")}


def test_the_table_has_every_model_that_can_be_trained_and_knows_which_are_sparse() -> None:
    assert set(MODEL_TABLE) == set(MODELS)
    assert {name for name, model in MODEL_TABLE.items() if "sparse" in model.group} == set(SPARSE)
    assert all(set(model.rivals) <= set(MODEL_TABLE) for model in MODEL_TABLE.values())


def test_without_gated_models_the_report_is_about_the_alternatives() -> None:
    ungated = ("dense", "small", "pruned", "static-sparse", "rigl", "set")
    results = make_results(ungated, 3)
    assert subjects(results) == {("digits", "rigl"), ("digits", "set")}
    (rigl, _) = headlines(results)
    assert [verdict.outcome.split()[-1] for verdict in rigl.verdicts] == ["small", "pruned", "static-sparse", "dense"]


def test_a_report_about_nothing_in_particular_has_no_controls() -> None:
    results = make_results(("dense", "small"), 2)
    assert subjects(results) == set()
    assert all(headline.verdicts == [] for headline in headlines(results))
