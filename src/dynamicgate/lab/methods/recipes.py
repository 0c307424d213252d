"""What the model `sparsify` chooses from: the recipes of `dynamicgate.sparsify_`, and three plain networks."""

from __future__ import annotations

from dataclasses import replace

from dynamicgate.lab.methods.hyperparameters import GATED_SPARSE, Settings
from dynamicgate.presets.sparsify import DISTRIBUTION, INITIAL_DENSITY, spending

NO_GATES = "no gates"


def plain_recipes(s: Settings) -> dict[str, Settings]:
    """Without gates: a narrow network, layers that are sparse from the start, layers pruned by magnitude alone, or
    pruned from dense as `sparsify_` does it.

    The first three are the controls that are hard to beat on small tables, where a dense start learns the rows by
    heart: where held-out rows prefer them, so does `sparsify`. The simplest comes first, and is taken at a tie.
    """
    from_dense = replace(
        s,
        model="rigl",
        initial_density=INITIAL_DENSITY if s.initial_density is None else s.initial_density,
        distribution=DISTRIBUTION if s.distribution == "auto" else s.distribution,
        widen=spending(s.budget).widen if s.widen is None else s.widen,
    )
    controls = {name: replace(s, model=name) for name in ("small", "set", "pruned")}
    return {**controls, NO_GATES: from_dense}


def gated_recipes(s: Settings) -> dict[str, Settings]:
    """With gates, by the names that `sparsify_` has for them."""
    return {
        "units": replace(s, model=GATED_SPARSE),
        "two stages": replace(s, model="staged", stages="two"),
        "three stages": replace(s, model="staged", stages="three"),
    }


def recipes(s: Settings) -> dict[str, Settings]:
    """All of them."""
    return {**plain_recipes(s), **gated_recipes(s)}
