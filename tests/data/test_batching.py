from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamicgate.data import batches


@settings(deadline=None)
@given(
    n=st.integers(1, 200),
    batch=st.integers(1, 64),
    world=st.integers(1, 6),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_the_parts_of_all_ranks_are_the_batches_of_one_process(
    n: int, batch: int, world: int, seed: int, shuffle: bool, drop_last: bool
) -> None:
    batch, n = max(batch, world), max(n, batch, world)
    options: dict[str, Any] = {"seed": seed, "epoch": 3, "shuffle": shuffle, "drop_last": drop_last}
    whole = list(batches(n, batch, **options))
    ranks = [list(batches(n, batch, **options, rank=rank, world=world)) for rank in range(world)]
    assert {len(parts) for parts in ranks} == {len(whole)}
    for step, expected in enumerate(whole):
        parts = [ranks[rank][step] for rank in range(world)]
        assert torch.cat(parts).equal(expected)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(n=st.integers(1, 300), batch=st.integers(1, 64), seed=st.integers(0, 2**40), epoch=st.integers(0, 500))
def test_an_epoch_visits_every_row_once(n: int, batch: int, seed: int, epoch: int) -> None:
    steps = list(batches(n, batch, seed=seed, epoch=epoch))
    assert sorted(torch.cat(steps).tolist()) == list(range(n))
    assert all(len(step) == batch for step in steps[:-1])


def test_drop_last_leaves_out_the_short_batch_only() -> None:
    kept = list(batches(10, 4, seed=0, epoch=0, drop_last=True))
    whole = list(batches(10, 4, seed=0, epoch=0))
    assert [len(step) for step in kept] == [4, 4]
    assert [len(step) for step in whole] == [4, 4, 2]
    assert torch.cat(kept).equal(torch.cat(whole[:2]))
    assert len(list(batches(8, 4, seed=0, epoch=0, drop_last=True))) == 2


def test_without_shuffling_the_rows_come_in_order() -> None:
    assert torch.cat(list(batches(10, 3, seed=7, epoch=2, shuffle=False))).tolist() == list(range(10))


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    orders = {}
    for seed in range(4):
        for epoch in range(4):
            torch.manual_seed(0)
            order = torch.cat(list(batches(50, 8, seed=seed, epoch=epoch)))
            assert order.equal(torch.cat(list(batches(50, 16, seed=seed, epoch=epoch))))
            orders[seed, epoch] = tuple(order.tolist())
    assert len(set(orders.values())) == 16


def test_resuming_at_a_step_gives_the_batches_that_were_left() -> None:
    whole = list(batches(100, 7, seed=1, epoch=4))
    resumed = list(islice(batches(100, 7, seed=1, epoch=4), 5, None))
    assert all(a.equal(b) for a, b in zip(whole[5:], resumed, strict=True))


WRONG: dict[str, tuple[dict[str, int], str]] = {
    "no rows": ({"n": 0}, "n and batch must be 1 or more, got n 0"),
    "no batch": ({"batch": 0}, "got n 10 and batch 0"),
    "rank": ({"rank": 2, "world": 2}, "rank must be 0..world-1.* got rank 2 and world 2"),
    "negative rank": ({"rank": -1, "world": 2}, "got rank -1"),
    "world": ({"world": 0}, "got rank 0 and world 0"),
    "idle ranks": ({"batch": 2, "world": 3}, "batch of 2 rows leaves some of 3 processes idle; use 3 or more"),
    "all dropped": ({"batch": 11, "drop_last": True}, "10 rows give no batch of 11 with drop_last; use a smaller"),
    "epoch": ({"epoch": -1}, "must be 0 or more, got seed 0 and epoch -1"),
}


@pytest.mark.parametrize(("options", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_refused_at_the_call_and_not_at_the_first_batch(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        batches(**{"n": 10, "batch": 4, "seed": 0, "epoch": 0, **options})
