"""The paper's tables, run again: recipes, runs that are found by their hash, and the page that is made from them."""

from dynamicgate.lab.runner.claims import Claim, Evidence, Verdict
from dynamicgate.lab.runner.jobs import Change, Job, Recipe, Step, Table, find_folder, jobs_of, load_tables
from dynamicgate.lab.runner.pool import run_jobs
from dynamicgate.lab.runner.training import step_settings, train_settings

__all__ = [
    "Change",
    "Claim",
    "Evidence",
    "Job",
    "Recipe",
    "Step",
    "Table",
    "Verdict",
    "find_folder",
    "jobs_of",
    "load_tables",
    "run_jobs",
    "step_settings",
    "train_settings",
]
