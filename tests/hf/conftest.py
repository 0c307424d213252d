"""Without Transformers there is nothing to test here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("transformers") else ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def _fresh_accelerate() -> None:
    """Accelerators of one process share a state. A trainer that was stopped between two halves of a step leaves it
    saying that optimizers are to wait, and those of the next file would."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
