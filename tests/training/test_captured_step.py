"""A captured step is the step it was captured from."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import Budget, GateConfig
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.training.captured_step import CapturedStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
STEPS, EAGER = 12, 3


def model_and_data() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(STEPS, 32, 16)
    return model.cuda(), x.cuda(), (x[..., 0] > 0).long().cuda()


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    budget: Budget | OpenLoopBudget | None,
    *,
    captured: bool,
    fused: bool = False,
) -> list[float]:
    groups = [[p for p in model.parameters() if (p.ndim > 1) == matrices] for matrices in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.01, fused=fused)
    step: CapturedStep | None = None
    losses = []

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    for i in range(STEPS):
        progress, lr = i / STEPS, 0.01 * (1.0 - i / STEPS)
        if budget is not None:
            budget.apply_(model, progress)
        if captured and i == EAGER:
            step = CapturedStep(model, loss_of, (x[i], y[i]), optimizer, clip=0.5)
        if step is not None:
            loss, used = step.forward(x[i], y[i])
            step.backward(None if budget is None else budget.step(used, progress), rates=[lr, 2 * lr])
        else:
            for group, rate in zip(optimizer.param_groups, (lr, 2 * lr), strict=True):
                group["lr"] = rate
            with dg.usage(model) as used:
                loss = loss_of(x[i], y[i])
            (loss if budget is None else loss + budget.step(used, progress)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        del loss, used  # a graph that is alive ties its parameters to the stream it ran on
    assert all(not isinstance(group["lr"], Tensor) for group in optimizer.param_groups)
    return losses


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["none", "dynamic", "softmax", "router"])
def test_a_captured_run_is_the_eager_run(kind: str, fused: bool) -> None:
    model, x, y = model_and_data()
    budget: Budget | OpenLoopBudget | None = None
    if kind == "router":
        dg.gate_(model, GateConfig(kind="router", block=8, top_k=2))
        budget = OpenLoopBudget(form="balance", weight=0.1)
    elif kind != "none":
        dg.gate_(model, GateConfig(block=8, net="linear", scale="softmax" if kind == "softmax" else True))
        budget = Budget(target=0.6, warmup=0.0, anneal=0.5, balance=0.1)
    model.cuda()
    twin, twin_budget = copy.deepcopy(model), copy.deepcopy(budget)
    eager = train(model, x, y, budget, captured=False, fused=fused)
    captured = train(twin, x, y, twin_budget, captured=True, fused=fused)
    assert captured == pytest.approx(eager, abs=1e-5)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=0, atol=1e-5)
    if isinstance(budget, Budget):
        assert isinstance(twin_budget, Budget)
        assert twin_budget.relative == pytest.approx(budget.relative, abs=1e-6)
        assert twin_budget.lambda_ == pytest.approx(budget.lambda_, abs=1e-4)


def test_a_penalty_reaches_the_gates() -> None:
    """Without a gradient of the penalty the two runs would be the same."""
    model, x, y = model_and_data()
    dg.gate_(model, GateConfig(block=8, net="linear"))
    model.cuda()
    twin = copy.deepcopy(model)
    train(model, x, y, Budget(target=0.6, warmup=0.0, anneal=0.1, steer=0.0), captured=True)
    train(twin, x, y, Budget(target=0.6, warmup=0.0, anneal=0.1, steer=0.0, gain=0.0, integral=0.0), captured=True)
    gates = zip(dg.named_gates(model).values(), dg.named_gates(twin).values(), strict=True)
    assert any(not torch.allclose(one.bias, other.bias) for one, other in gates)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_compiled_inside_the_capture() -> None:
    """A compiler works on the device, which ends a capture; and what it makes is for inputs of certain strides."""
    model, x, y = model_and_data()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=False)
    wide = torch.cat([x, x], dim=-1)[..., :16]
    optimizer = torch.optim.AdamW(model.parameters())
    F.cross_entropy(compiled(wide[0]), y[0]).backward()
    optimizer.step()
    compilations = counter.frame_count
    CapturedStep(model, lambda x, y: F.cross_entropy(compiled(x), y), (wide[1], y[1]), optimizer)
    assert counter.frame_count == compilations
