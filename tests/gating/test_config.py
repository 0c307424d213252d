"""Settings of gates that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from dynamicgate import GateConfig


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"block": 0}, "block is a number of units.*received 0"),
        ({"block": -4}, "block is a number of units.*received -4"),
        ({"block": 2.0}, "block is a number of units.*received 2.0"),
        ({"rank": 0}, "rank must be an integer >= 1, received 0"),
        ({"theta": 0.0}, "expected 0 < theta < 1, received 0.0"),
        ({"theta": 1.0}, "expected 0 < theta < 1, received 1.0"),
        ({"theta": float("nan")}, "expected 0 < theta < 1, received nan"),
        ({"tau": 0.0}, "tau must be positive and finite, received 0.0"),
        ({"tau": -1.0}, "tau must be positive and finite, received -1.0"),
        ({"tau": float("inf")}, "tau must be positive and finite, received inf"),
        ({"open": 0.0}, "open is a probability.*received 0.0"),
        ({"open": 1.0}, "open is a probability.*received 1.0"),
        ({"top_k": 0}, "top_k opens exactly k blocks.*received 0"),
        ({"top_k": -0.5}, "top_k opens exactly k blocks.*received -0.5"),
        ({"top_k": 1.0}, "top_k opens exactly k blocks.*received 1.0"),
        ({"always_open": -1}, "always_open is a number of blocks.*received -1"),
        ({"always_open": 1.5}, "always_open is a number of blocks.*received 1.5"),
        ({"kind": "random"}, "kind must be one of dynamic, static, router, stages, context, received 'random'"),
        ({"net": "deep"}, "net must be one of auto, linear, low-rank, two-layer, magnitude, received 'deep'"),
        ({"net": "magnitude"}, "reads='same', received kind='dynamic' and reads='previous'"),
        ({"net": "magnitude", "kind": "router", "reads": "same"}, "expected kind='dynamic'.*received kind='router'"),
        ({"net": "magnitude", "reads": "same", "rank": 4}, "rank means nothing with"),
        ({"reads": "next"}, "reads must be one of previous, same, received 'next'"),
        ({"train": "loud"}, "train must be one of hard, soft, bernoulli, concrete, gumbel, received 'loud'"),
        ({"evaluate": "bernoulli"}, "evaluate must be one of hard, soft, received 'bernoulli'"),
        ({"soft_width": -0.1}, "soft_width is a distance.*received -0.1"),
        ({"soft_width": float("nan")}, "soft_width is a distance.*received nan"),
        ({"soft_width": float("inf")}, "soft_width is a distance.*received inf"),
        ({"soft_width": 1.0, "scale": True}, "above a threshold.*received scale=True with soft_width=1.0"),
        ({"soft_width": 1.0, "kind": "router"}, "above a threshold.*received kind='router' with"),
        ({"soft_width": 1.0, "top_k": 2}, "above a threshold.*received top_k=2 with"),
        ({"soft_width": 1.0, "always_open": 0.5}, "above a threshold.*received always_open=0.5 with"),
        ({"soft_width": 1.0, "evaluate": "soft", "train": "soft"}, "received train='soft', evaluate='soft' with"),
        ({"soft_width": 1.0, "train": "bernoulli"}, "above a threshold.*received train='bernoulli' with"),
        ({"soft_width": 1.0, "train": "concrete"}, "above a threshold.*received train='concrete' with"),
    ],
)
def test_a_setting_that_makes_no_sense_is_answered_with_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GateConfig(**setting)
