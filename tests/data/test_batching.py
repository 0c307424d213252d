"""The order of rows in training."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamicgate.data import batches


@settings(deadline=None)
@given(n=st.integers(1, 300), batch=st.integers(1, 64), seed=st.integers(0, 2**40), epoch=st.integers(0, 500))
def test_an_epoch_visits_every_row_once(n: int, batch: int, seed: int, epoch: int) -> None:
    steps = list(batches(n, batch, seed=seed, epoch=epoch))
    assert sorted(torch.cat(steps).tolist()) == list(range(n))
    assert all(len(step) == batch for step in steps[:-1])


def test_the_last_batch_holds_the_remaining_rows() -> None:
    assert [len(step) for step in batches(10, 4, seed=0, epoch=0)] == [4, 4, 2]
    assert [len(step) for step in batches(8, 4, seed=0, epoch=0)] == [4, 4]


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    orders = {}
    for seed in range(4):
        for epoch in range(4):
            torch.manual_seed(0)
            order = torch.cat(list(batches(50, 8, seed=seed, epoch=epoch)))
            assert order.equal(torch.cat(list(batches(50, 16, seed=seed, epoch=epoch))))
            orders[seed, epoch] = tuple(order.tolist())
    assert len(set(orders.values())) == 16


def test_resuming_in_the_middle_of_an_epoch_gives_the_remaining_batches() -> None:
    whole = list(batches(100, 7, seed=1, epoch=4))
    resumed = list(islice(batches(100, 7, seed=1, epoch=4), 5, None))
    assert all(a.equal(b) for a, b in zip(whole[5:], resumed, strict=True))


WRONG: dict[str, tuple[dict[str, int], str]] = {
    "no rows": ({"n": 0}, "n and batch must be 1 or more, got n 0"),
    "no batch": ({"batch": 0}, "got n 10 and batch 0"),
    "epoch": ({"epoch": -1}, "must be 0 or more, got seed 0 and epoch -1"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG.keys())
def test_invalid_arguments_are_refused_at_the_call(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches(**{"n": 10, "batch": 4, "seed": 0, "epoch": 0, **options})
