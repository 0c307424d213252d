"""Changed files of every kind: each is refused with a sentence, or read; none ends the process or takes its memory.

Short here; `make fuzz` reads 20,000 plans and 5,000 of each other kind.
"""

from __future__ import annotations

import pytest

from tests.fuzz.runner import fuzz

COUNTS = {"plan": 400, "model": 200, "checkpoint": 150, "h5ad": 12, "archive": 250}
SEED = 0


@pytest.mark.parametrize("kind", COUNTS)
def test_changed_files_are_refused_with_a_sentence_or_read(kind: str) -> None:
    if kind == "h5ad":
        pytest.importorskip("scanpy")
    found = fuzz(kind, SEED, COUNTS[kind])
    assert {text: n for text, n in found.items() if text not in ("read", "refused")} == {}
    assert found["refused"] > COUNTS[kind] // 10, "the changes must matter"
