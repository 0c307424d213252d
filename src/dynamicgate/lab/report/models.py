"""What the compared models are, and which of them a report is about."""

from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.summary import group_runs, is_gated

WHAT = {
    "dense": "the plain network: the quality to reach and the MACs to save",
    "small": "a dense network as narrow as the budget",
    "dropout": "the dense network with dropout: regularised, nothing saved",
    "static": "one learned logit per unit: the same units are open for every input",
    "random": "units drawn once and for all, as many as the budget pays for",
    "pruned": "a network whose smallest weights were removed",
    "static-sparse": "random connections that stay as they are from the start",
    "set": "rewired in training: the smallest weights give way to random connections",
    "rigl": "rewired in training: the smallest weights give way to connections with a large gradient",
    "switch": "experts that a router chooses for each input",
    "gate": "units that open and close for each input",
    "gate+rigl": "gates over connections that are rewired in training",
}
ADAPTIVE = ("rigl", "set", "switch")


def subjects(results: Results) -> set[tuple[str, str]]:
    """The (data, model) that the report is about: what is gated, or else what adapts in another way. All others, a
    static gate included, are their controls."""
    groups = group_runs(results)
    gated = {
        (data, model)
        for (data, model), runs in groups.items()
        if not model.startswith(("static", "random", "switch")) and (is_gated(runs) or "gate" in model)
    }
    return gated or {(data, model) for data, model in groups if model in ADAPTIVE}


def is_control(results: Results, data: str, model: str) -> bool:
    """Whether a model is there to be compared with."""
    chosen = subjects(results)
    return bool(chosen) and (data, model) not in chosen


def known_models(results: Results) -> dict[str, str]:
    """What each model of the report is, as far as its name says."""
    return {name: WHAT[name] for name in dict.fromkeys(run["model"] for run in results["runs"]) if name in WHAT}
