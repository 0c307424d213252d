"""Predicates on sites: which of them `gate_` puts gates on."""

from __future__ import annotations

from dynamicgate.gating.sites import Site


def hidden(site: Site) -> bool:
    """The default of `gate_`: every vector of hidden units."""
    return not site.is_input


def inputs(site: Site) -> bool:
    """Gates on the features of the model's input."""
    return site.is_input


def everywhere(site: Site) -> bool:
    """Input features and hidden units (the paper's MNIST network, sec 5.1)."""
    return True
