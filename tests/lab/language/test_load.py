"""How evenly blocks are used."""

from __future__ import annotations

import pytest
import torch

import dynamicgate as dg
from dynamicgate.gating.gate import Decision
from dynamicgate.lab.language.load import load_penalty, rarely_open


class Used(dict[str, Decision]):
    """A recording made by hand."""


def recorded(open_BG: torch.Tensor, p_BG: torch.Tensor) -> dg.gating.recording.Usage:
    return Used(layer=Decision(p_BG, open_BG, open_BG, p_BG, open_BG))  # type: ignore[return-value]


def test_even_use_costs_one_and_a_single_block_costs_their_number() -> None:
    even = recorded(torch.eye(4), torch.full((4, 4), 0.3))
    assert float(load_penalty(even)) == pytest.approx(1.0)
    alone = torch.zeros(6, 4)
    alone[:, 2] = 1.0
    assert float(load_penalty(recorded(alone, alone))) == pytest.approx(4.0)


def test_its_gradient_takes_from_blocks_that_are_used_most() -> None:
    open_BG = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    p_BG = torch.full((2, 3), 0.5, requires_grad=True)
    load_penalty(recorded(open_BG, p_BG)).backward()
    assert p_BG.grad is not None
    first, second, third = p_BG.grad[0]
    assert first > second > third
    assert third < 0.0


def test_nothing_open_is_no_division_by_zero() -> None:
    assert float(load_penalty(recorded(torch.zeros(3, 4), torch.full((3, 4), 0.1)))) == 0.0


def test_rarely_open_blocks() -> None:
    assert rarely_open(torch.tensor([0.5, 0.0005, 0.0, 0.002])) == 0.5
