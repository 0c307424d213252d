"""Stages: a row that stops after stage k gets what the units of stages 1 to k compute on their own."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.gating.stages import stack_names, stages_of
from dynamicgate.nn import GatedMLP
from tests.gating.staged import (
    STAGES,
    by_hand,
    cut_network,
    linears_of,
    middle_cuts_,
    score_by_hand,
    sequential,
    stage,
    staged,
    the_gate,
)

SIZES = [(5, 13, 3), (5, 13, 9, 3), (4, 11, 17, 7, 5)]
DECISIONS = ("margin", "entropy", "head")


def outside(model: nn.Module) -> list[Tensor]:
    """The weights between hidden units that would read a later stage, found by a loop."""
    gate, found = the_gate(model), []
    for i, linear in enumerate(linears_of(model)[1:-1], start=1):
        writes, reads = gate.stage_of_units(i).tolist(), gate.stage_of_units(i - 1).tolist()
        later = [[b > a for b in reads] for a in writes]
        found.append(linear.weight.detach()[torch.tensor(later)])
    return found


# --- what a row gets


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("decide", DECISIONS)
@pytest.mark.parametrize("kind", ["sequential", "mlp"])
def test_a_row_gets_the_outputs_of_the_network_cut_to_the_stages_it_opened(
    kind: str, decide: Any, sizes: tuple[int, ...]
) -> None:
    config = dg.GateConfig(kind="stages", stages=STAGES, decide=decide)
    model: nn.Module = GatedMLP(sizes, config, activation="gelu") if kind == "mlp" else staged(sizes, decide=decide)
    act = F.gelu if kind == "mlp" else torch.tanh
    model.double().eval()
    x = torch.randn(40, sizes[0], dtype=torch.float64)
    middle_cuts_(model, x, act)
    expected, stops = by_hand(model, x, act)
    assert set(stops) >= {1, 3}, "rows stop early and late"
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    with dg.usage(model) as used:
        model(x)
    assert used.stages is not None
    assert (used.stages.open.sum(1).long()).tolist() == stops
    for k in range(1, 4):
        h, z = cut_network(model, x, k, act)
        torch.testing.assert_close(used.stages.outputs[k - 1], z, rtol=1e-12, atol=1e-12)
        if k < 3:  # scores are compared in float32
            torch.testing.assert_close(
                used.stages.score[:, k - 1].double(), score_by_hand(model, z, h, k), atol=1e-6, rtol=1e-6
            )


@pytest.mark.parametrize("sizes", SIZES)
def test_with_every_stage_open_the_model_is_the_plain_one_bit_for_bit(sizes: tuple[int, ...]) -> None:
    model = staged(sizes).eval()
    x = torch.randn(33, sizes[0])
    plain = sequential(sizes).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name in plain.state_dict()})
    assert bool((the_gate(model).cut == -torch.inf).all()), "as it starts"
    assert torch.equal(model(x), plain(x))
    model.train()
    the_gate(model).cut.fill_(torch.inf)
    assert torch.equal(model(x), plain(x)), "in training all stages run"


@pytest.mark.parametrize("sizes", SIZES)
def test_with_every_later_stage_closed_all_rows_stop_after_the_first(sizes: tuple[int, ...]) -> None:
    model = staged(sizes).eval()
    the_gate(model).cut.fill_(torch.inf)
    x = torch.randn(33, sizes[0])
    torch.testing.assert_close(model(x).double(), cut_network(model, x, 1)[1], rtol=1e-5, atol=1e-6)


def test_a_closed_stage_closes_those_behind_it() -> None:
    model = staged(decide="head").eval()
    gate = the_gate(model)
    gate.cut.copy_(torch.tensor([torch.inf, -torch.inf]))
    with dg.usage(model) as used:
        model(torch.randn(7, 5))
    assert used.stages is not None
    assert used.stages.open.tolist() == [[1.0, 0.0, 0.0]] * 7


def test_random_decisions_open_stages_at_the_rate_of_the_cut() -> None:
    model = staged(decide="random").eval()
    the_gate(model).cut.fill_(0.3)
    with dg.usage(model) as used:
        model(torch.randn(20_000, 5))
    assert used.stages is not None
    # the standard deviation of these rates is 0.0035
    torch.testing.assert_close(used.stages.open.mean(0), torch.tensor([1.0, 0.7, 0.49]), atol=0.02, rtol=0)


@pytest.mark.parametrize("sizes", SIZES)
def test_what_later_stages_hold_cannot_change_an_early_answer(sizes: tuple[int, ...]) -> None:
    model = staged(sizes).eval()
    gate = the_gate(model)
    x = torch.randn(33, sizes[0])
    gate.cut.fill_(torch.inf)
    before = model(x)
    with torch.no_grad():
        for i, linear in enumerate(linears_of(model)):
            if i < len(gate.bounds):  # units of later stages, and what everybody reads of them
                linear.weight[gate.bounds[i][1] :] = torch.randn_like(linear.weight[gate.bounds[i][1] :])
                linear.bias[gate.bounds[i][1] :] = 7.0
            if i:
                linear.weight[:, gate.bounds[i - 1][1] :] = torch.randn_like(linear.weight[:, gate.bounds[i - 1][1] :])
    assert torch.equal(model(x), before)
    gate.cut.fill_(-torch.inf)
    assert not torch.allclose(model(x), before), "the changes are real"


def test_not_even_nan_in_the_units_of_a_later_stage_reaches_a_row_that_stopped() -> None:
    model = staged((5, 13, 3)).eval()
    x, end = torch.randn(9, 5), the_gate(model).bounds[0][1]
    the_gate(model).cut.fill_(torch.inf)
    before = model(x)
    first, last = linears_of(model)
    with torch.no_grad():
        first.weight[end:] = torch.nan
        last.weight[:, end:] = torch.nan
    assert torch.equal(model(x), before)


def test_leading_dimensions_are_rows() -> None:
    model = staged().double().eval()
    x = torch.randn(4, 6, 5, dtype=torch.float64)
    middle_cuts_(model, x.flatten(0, 1))
    torch.testing.assert_close(model(x).flatten(0, 1), model(x.flatten(0, 1)), rtol=1e-12, atol=1e-12)
    with dg.usage(model) as used:
        model(x)
        model(x[:, :2])
    assert used.stages is not None
    assert used.stages.open.shape == (4 * 6 + 4 * 2, 3)
    assert [z.shape for z in used.stages.outputs] == [(32, 3)] * 3
    with dg.usage(model) as again:
        model(torch.cat([x.flatten(0, 1), x[:, :2].flatten(0, 1)]))
    assert again.stages is not None
    torch.testing.assert_close(used.stages.score, again.stages.score, rtol=1e-6, atol=1e-6)


# --- order of the stages


@pytest.mark.parametrize("make", ["sgd", "adamw"])
def test_no_optimizer_step_brings_forbidden_weights_into_a_forward_pass(make: str) -> None:
    model = staged((5, 13, 17, 9, 3))
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        if make == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    )
    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    assert all(values.numel() for values in outside(model))
    moved = 0.0
    for _ in range(6):
        loss = F.cross_entropy(model(x), y)
        assert all(bool((values == 0).all()) for values in outside(model)), "in every forward pass"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved = max([moved, *(float(values.abs().max()) for values in outside(model))])
    assert moved > 0.0, "the steps did change them"
    the_gate(model).cut.fill_(torch.inf)
    model.eval()(x)
    torch.testing.assert_close(model(x).double(), cut_network(model, x, 1)[1], rtol=1e-5, atol=1e-6)


def test_keeping_the_order_does_not_disturb_a_graph_that_waits_for_its_backward_pass() -> None:
    model = staged().double()
    x, z = torch.randn(2, 8, 5, dtype=torch.float64).unbind()
    together = torch.autograd.grad(model(torch.cat([x, z])).square().sum(), list(model.parameters()))
    first, second = model(x).square().sum(), model(z).square().sum()
    first.backward()
    second.backward()
    for found, parameter in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, found, rtol=1e-10, atol=1e-12)


# --- what ordinary tools make of it


def test_base_parameters_keep_their_names_and_identity() -> None:
    model = sequential()
    before = dict(model.named_parameters())
    stage(model, decide="head")
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    new = {"2.mask", "4.stages.cut", *(f"4.stages.heads.{k}.{p}" for k in (0, 1) for p in ("weight", "bias"))}
    assert set(model.state_dict()) - set(before) == new


def test_a_deep_copy_has_its_own_stages() -> None:
    model = staged(decide="head").double().eval()
    x = torch.randn(20, 5, dtype=torch.float64)
    middle_cuts_(model, x)
    expected = model(x)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), expected)
    the_gate(copied).cut.fill_(torch.inf)
    with torch.no_grad():
        linears_of(copied)[1].weight.fill_(1.0)
    assert torch.equal(model(x), expected)
    copied(x)
    assert all(bool((values == 0).all()) for values in outside(copied)), "its hooks mask its own layers"
    dg.ungate_(copied)
    assert stages_of(copied) is None
    assert stages_of(model) is not None
    assert set(copied.state_dict()) == set(sequential().state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_stages_follow_the_precision_of_the_model(dtype: torch.dtype) -> None:
    for model in (staged(decide="head").to(dtype), stage(sequential().to(dtype), decide="head")):
        model.eval()
        x = torch.randn(16, 5, dtype=dtype)
        the_gate(model).cut.fill_(torch.inf)
        out = model(x)
        assert out.dtype == dtype
        tolerance = 1e-12 if dtype == torch.float64 else 0.05
        torch.testing.assert_close(out.double(), cut_network(model, x, 1)[1], rtol=tolerance, atol=tolerance)
    assert the_gate(stage(sequential().to(dtype))).cut.dtype == torch.float32


def test_the_gate_takes_over_the_mode_of_its_layer() -> None:
    assert not the_gate(stage(sequential().eval())).training
    assert the_gate(stage(sequential())).training


def test_a_staged_model_works_inside_another_one_under_other_names() -> None:
    inner = staged(decide="head").double().eval()
    x = torch.randn(20, 5, dtype=torch.float64)
    middle_cuts_(inner, x)
    expected = inner(x)
    outer = nn.Sequential(nn.Identity(), nn.ModuleDict({"net": inner})["net"])
    assert torch.equal(outer(x), expected)
    assert stack_names(outer, the_gate(outer)) == ["1.0", "1.2", "1.4"]
    assert stack_names(inner, the_gate(inner)) == ["0", "2", "4"]
    found, alone = dg.measure(outer, x), dg.measure(inner, x)
    assert (found.macs, found.stages) == (alone.macs, alone.stages)
    dg.calibrate_(outer, x, macs=0.5)
    dg.gate_(outer, dg.GateConfig(kind="static"), where="1.4")
    dg.ungate_(outer)
    assert set(inner.state_dict()) == set(sequential().state_dict())


@pytest.mark.parametrize("where", [None, "stages"])
@pytest.mark.parametrize("sizes", SIZES)
def test_ungating_leaves_a_plain_model_with_every_stage_open(sizes: tuple[int, ...], where: Any) -> None:
    model = staged(sizes, decide="head").eval()
    x = torch.randn(11, sizes[0])
    expected = model(x)
    the_gate(model).cut.fill_(torch.inf)
    assert dg.ungate_(model, where) is model
    assert torch.equal(model(x), expected)
    plain = sequential(sizes)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert not any(hasattr(m, "mask") for m in model.modules())
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(x), expected)
    stage(model)  # and it can have stages again


def test_ungating_after_an_optimizer_step_gives_what_the_next_forward_pass_would_have() -> None:
    model = staged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.randn(8, 5)).square().sum().backward()
    optimizer.step()
    copied, x = copy.deepcopy(model), torch.randn(8, 5)
    assert torch.equal(dg.ungate_(model)(x), copied(x))


def test_masks_of_a_sparsifier_stay_when_stages_go() -> None:
    model = staged((5, 32, 32, 3), stages=(16, 16))
    dg.sparsity.Static(model, {"2": 0.5})
    mask: Any = linears_of(model)[1].mask
    before = mask.clone()
    dg.ungate_(model)
    assert torch.equal(model.get_submodule("2").mask, before)  # type: ignore[arg-type]
    assert not before[:16, 16:].any()


def test_a_mask_that_was_there_keeps_its_holes() -> None:
    model = sequential((5, 16, 16, 3))
    dg.sparsity.Static(model, {"2": 0.5})
    mask: Any = model[2].mask
    before = mask.clone()
    stage(model, (8, 8))
    expected = before.clone()
    expected[:8, 8:] = False
    assert torch.equal(model[2].mask, expected)


@pytest.mark.parametrize(
    ("stages", "width", "expected"),
    [
        ((0.2, 0.3, 0.5), 512, (0, 96, 256, 512)),  # 102.4 is nearest to 96 = 6 * 16
        ((0.2, 0.3, 0.5), 100, (0, 16, 48, 100)),
        ((0.2, 0.3, 0.5), 13, (0, 2, 6, 13)),
        ((0.125, 0.875), 64, (0, 8, 64)),  # of 16 units the first stage would have none
        ((0.5, 0.5), 7, (0, 4, 7)),
        ((3, 4, 6), 13, (0, 3, 7, 13)),
    ],
)
def test_stages_begin_at_multiples_of_what_kernels_like(
    stages: tuple[float, ...], width: int, expected: tuple[int, ...]
) -> None:
    model = stage(sequential((5, width, 3)), stages)
    assert the_gate(model).bounds == [expected]
    assert the_gate(model).stage_of_units(0).tolist() == [
        k for k, (a, b) in enumerate(pairwise(expected)) for _ in range(b - a)
    ]
    sizes = "|".join(str(b - a) for a, b in pairwise(expected))
    assert f"{len(stages)} stages of units {sizes}, decided by margin" in repr(model)
