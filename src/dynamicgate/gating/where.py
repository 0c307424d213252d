"""Predicates on sites: which of them `gate_` puts gates on."""

from __future__ import annotations

from dynamicgate.gating.sites import Site


def hidden(site: Site) -> bool:
    """The default of `gate_`: every vector of hidden units, channels of convolutions included."""
    return not site.is_input


def channels(site: Site) -> bool:
    """Gates on the channels of convolutions alone."""
    return site.channels


def inputs(site: Site) -> bool:
    """Gates on the features of the model's input."""
    return site.is_input


def everywhere(site: Site) -> bool:
    """Input features and hidden units (the paper's MNIST network, sec 5.1)."""
    return True
