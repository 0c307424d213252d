from __future__ import annotations

import numpy as np
import pytest

from dynamicgate.lab.language.gpt import GPTConfig
from dynamicgate.lab.language.text import Text

SIZES = GPTConfig(vocabulary=256, features=32, layers=2, heads=2, width=0, context=16)


@pytest.fixture
def text() -> Text:
    """Bytes that go up by one or two: easy to learn."""
    draw = np.random.default_rng(0)
    parts = {part: (np.cumsum(draw.integers(1, 3, 4000)) % 256).astype(np.uint8) for part in ("train", "valid", "test")}
    sizes = {part: len(tokens) for part, tokens in parts.items()}
    return Text("counting", "bytes", 256, parts, sizes, dict.fromkeys(parts, ""))
