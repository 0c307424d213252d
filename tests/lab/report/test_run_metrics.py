"""Every metric is read from a run, and is None where the run does not have it."""

from __future__ import annotations

from dynamicgate.lab.report.reading import Run
from dynamicgate.lab.report.run_metrics import METRICS
from tests.lab.report.sample_results import make_run, with_savings


def test_every_metric_is_read_from_a_run() -> None:
    run = {**with_savings(make_run("gate", 0), 0.2), "seconds_relative": 1.5}
    macs = run["macs"]
    assert METRICS["gate_fraction"](run) == macs["gate"] / macs["executed"]
    assert METRICS["gate_cost"](run) == macs["gate"] / macs["dense"]
    assert METRICS["claimed"](run) == macs["relative"]
    assert METRICS["claimed"]({**run, "claimed": 0.25}) == 0.25
    assert METRICS["varying"](run) == 0.75
    unknown = {name for name, read in METRICS.items() if read(run) is None}
    assert unknown == {"relmac_fuse", "rmse"}, "null in this run, and of a regression"
    regression = {**run, "quality": {"rmse": 3.0, "mae": 2.0, "r2": 0.8}}
    assert (METRICS["rmse"](regression), METRICS["accuracy"](regression)) == (3.0, 0.8)


def test_a_metric_that_a_run_does_not_have_is_none() -> None:
    run: Run = {"quality": {}, "macs": {}, "params": None, "seconds": None}
    assert {name: value for name, read in METRICS.items() if (value := read(run)) is not None} == {"varying": 0.0}
