"""Runs the tables of experiments: jobs that are found by their hash, in parallel, stored in one file a table."""

from dynamicgate.lab.runner.engines import open_engine
from dynamicgate.lab.runner.jobs import Change, Experiment, Job, Step, Table
from dynamicgate.lab.runner.pool import run_jobs, run_parallel
from dynamicgate.lab.runner.training import step_settings, train_settings

__all__ = [
    "Change",
    "Experiment",
    "Job",
    "Step",
    "Table",
    "open_engine",
    "run_jobs",
    "run_parallel",
    "step_settings",
    "train_settings",
]
