"""The paper's tables, run again: recipes, runs that are found by their hash, and the page that is made from them."""

from dynamicgate.paper.claims import Claim, Evidence, Verdict
from dynamicgate.paper.engine import run_jobs
from dynamicgate.paper.recipe import Job, Recipe, Step, Table, find_folder, jobs_of, load_tables
from dynamicgate.paper.settings import step_settings, train_settings

__all__ = [
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
