"""Which models a report is about, and which are controls."""

from dynamicgate.lab.report.compared_models import Role, find_model
from dynamicgate.lab.report.reading import Results, Run
from dynamicgate.lab.report.summary import group_runs, is_gated


def subjects(results: Results) -> set[tuple[str, str]]:
    """The (dataset, model) pairs that the report is about: the main models, or else the alternatives.

    The table of models decides; a model that it does not know is a main one if its runs report gates.
    """
    roles = {name: _role(name[1], runs) for name, runs in group_runs(results).items()}
    main = {name for name, role in roles.items() if role == "main"}
    return main or {name for name, role in roles.items() if role == "alternative"}


def is_control(results: Results, dataset: str, model: str) -> bool:
    """Whether a model is there to be compared with."""
    chosen = subjects(results)
    return bool(chosen) and (dataset, model) not in chosen


def _role(model: str, runs: list[Run]) -> Role:
    known = find_model(model)
    if known is not None:
        return known.role
    return "main" if is_gated(runs) else "control"
