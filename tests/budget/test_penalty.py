"""Each open-loop penalty against its formula, and the direction in which it pushes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate import Decision, Gate, GateConfig, Site
from dynamicgate.budget.penalty import PENALTIES, straight_through_usage

P = [[0.9, 0.6, 0.2], [0.7, 0.4, 0.1]]  # mean 0.4833
G = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]  # mean 0.5


def decision(p: list[list[float]] = P) -> Decision:
    p_BG = torch.tensor(p, requires_grad=True)
    g_BG = (p_BG.detach() > 0.5).float()
    return Decision(p_BG, g_BG, g_BG)


def gate(block: int = 4, width: int = 9) -> Gate:
    return Gate(Site("out", ("in",), "in", width), GateConfig(block=block, kind="static"), features=2)


def value_and_gradient(form: str, keep: float) -> tuple[float, Tensor]:
    used = decision()
    penalty = PENALTIES[form](used, gate(), keep, torch.mean)
    penalty.backward()
    assert used.p_BG.grad is not None
    return float(penalty.detach()), used.p_BG.grad


MEAN_P, MEAN_G = 2.9 / 6, 0.5
COST = (0.9 * 4 + 0.6 * 4 + 0.2 * 1 + 0.7 * 4 + 0.4 * 4 + 0.1 * 1) / (2 * 9)


@pytest.mark.parametrize(
    ("form", "keep", "value", "slope"),
    [
        ("linear", 0.3, MEAN_P, 1.0),
        ("hinge", 0.3, MEAN_P - 0.3, 1.0),
        ("hinge", 0.6, 0.0, 0.0),
        ("keep-hinge", 0.9, (0.9 - MEAN_P) ** 2, -2 * (0.9 - MEAN_P)),
        ("keep-hinge", 0.3, 0.0, 0.0),
        ("squared-soft", 0.3, (MEAN_P - 0.3) ** 2, 2 * (MEAN_P - 0.3)),
        ("squared-soft", 0.9, (MEAN_P - 0.9) ** 2, 2 * (MEAN_P - 0.9)),
        ("squared-hard", 0.3, (MEAN_G - 0.3) ** 2, 2 * (MEAN_G - 0.3)),
        ("squared-hard", 0.9, (MEAN_G - 0.9) ** 2, 2 * (MEAN_G - 0.9)),
    ],
)
def test_a_penalty_is_its_formula_and_its_gradient_is_the_same_for_every_probability(
    form: str, keep: float, value: float, slope: float
) -> None:
    found, gradient = value_and_gradient(form, keep)
    assert found == pytest.approx(value, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, torch.full((2, 3), slope / 6))


def test_the_cost_penalty_weighs_blocks_by_their_units() -> None:
    value, gradient = value_and_gradient("cost", 0.0)
    assert value == pytest.approx(COST, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([[4.0, 4.0, 1.0]] * 2) / 18)


def test_the_cost_penalty_of_equal_blocks_is_the_linear_one() -> None:
    equal = gate(block=3, width=9)
    linear, cost = (PENALTIES[form](decision(), equal, 0.0, torch.mean) for form in ("linear", "cost"))
    torch.testing.assert_close(linear, cost)


def test_the_hard_usage_has_the_value_of_g_and_the_gradient_of_p() -> None:
    used = decision()
    usage = straight_through_usage(used)
    assert torch.equal(usage, used.g_BG)
    usage.sum().backward()
    assert torch.equal(used.p_BG.grad, torch.ones(2, 3))
    assert used.g_BG.tolist() == G


def test_every_form_has_a_test() -> None:
    assert set(PENALTIES) == {"linear", "cost", "hinge", "keep-hinge", "squared-soft", "squared-hard"}
