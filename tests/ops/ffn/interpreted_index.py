"""Run by test_grouped.py with TRITON_INTERPRET=1: lists of assignments and of gate patterns against plain torch."""

from __future__ import annotations

import pytest
import torch

from dynamicgate.ops.ffn import index


@pytest.mark.parametrize("shared_pattern", [False, True], ids=["assignments alone", "patterns too"])
@pytest.mark.parametrize(
    ("T", "G", "fraction", "patterns", "rows"),
    [(300, 5, 0.3, 0, 16), (1, 1, 1.0, 0, 16), (140, 40, 0.1, 0, 32), (150, 3, 0.0, 0, 16)],
)
def test_every_assignment_is_listed_once_and_in_order(
    T: int, G: int, fraction: float, patterns: int, rows: int, shared_pattern: bool
) -> None:
    opened_TG = torch.rand(patterns or T, G) < fraction
    if patterns:
        opened_TG = opened_TG[torch.randint(patterns, (T,))]
    buffer = torch.full((index.buffer_length(T, G, rows),), -7, dtype=torch.int32)
    made = index.build_index(opened_TG.float(), buffer, rows, shared_pattern)
    count_G = opened_TG.sum(0)
    tiles_G = -(-count_G // rows)
    start_G = (tiles_G.cumsum(0) - tiles_G) * rows
    assert torch.equal(made.spans_G2.view(G, 2), torch.stack([start_G, start_G + count_G], 1).int())
    assert made.tiles_M[0] == tiles_G.sum()
    assert torch.equal(made.tiles_M[1:][: tiles_G.sum()], torch.arange(G).repeat_interleave(tiles_G).int())
    assert torch.equal(made.opened_T, opened_TG.sum(1).int())
    slot_TG = start_G + opened_TG.cumsum(0) - 1
    for g in range(G):
        listed = made.tokens_P[start_G[g] :][: count_G[g]]
        assert torch.equal(listed, opened_TG[:, g].nonzero().squeeze(1).int())
    for t in range(T):
        assert torch.equal(made.slots_TG.view(T, G)[t][: made.opened_T[t]], slot_TG[t][opened_TG[t]].int())


@pytest.mark.parametrize(("T", "patterns"), [(150, 0), (400, 3)])
def test_tokens_with_the_same_pattern_share_a_tile_and_its_list_of_blocks(T: int, patterns: int) -> None:
    rows, G = 16, 20
    opened_TG = torch.rand(patterns or T, G) < 0.3
    which_T = torch.randint(patterns, (T,)) if patterns else torch.arange(T)
    opened_TG = opened_TG[which_T]
    buffer = torch.full((index.buffer_length(T, G, rows),), -7, dtype=torch.int32)
    made = index.build_index(opened_TG.float(), buffer, rows, shared_pattern=True)
    order_S = made.order_S.long()
    assert torch.equal(order_S[order_S < T].sort().values, torch.arange(T))
    empty = torch.zeros(1, G, dtype=torch.bool)
    opened_MRG = torch.cat([opened_TG, empty])[order_S.clamp(max=T)].view(-1, rows, G)
    for tile, anyone in enumerate(opened_MRG.any(1)):
        listed = made.blocks_MG.view(-1, G)[tile][: made.lengths_M[tile]]
        assert torch.equal(listed, anyone.nonzero().squeeze(1).int())
    assert made.total_blocks == made.lengths_M.sum()
    if patterns:  # every pattern fills a bucket of many tiles, and starts a new one
        assert (opened_MRG.any(1).sum(1) == opened_MRG.sum(2).amax(1)).all()
