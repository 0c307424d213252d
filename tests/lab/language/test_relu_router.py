"""The ReLU router: its rate costs what is asked for, and its penalty presses most on what is open most."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynamicgate.lab.language.ffn_methods import FFNSettings, prepare
from dynamicgate.lab.language.generation import generate
from dynamicgate.lab.language.model_file import load_gpt, save_gpt
from dynamicgate.lab.language.relu_router import ReluRouter, ReluRouterBudget, open_rates, routers_of
from dynamicgate.lab.language.tokenizers import Bytes
from tests.lab.language.conftest import SIZES


def test_its_rate_costs_as_much_as_the_narrow_dense_layer() -> None:
    settings = FFNSettings(method="relu router", width=16, executes=1, block=16)
    budget = prepare(settings, SIZES, torch.device("cpu")).budget
    assert isinstance(budget, ReluRouterBudget)
    d, router = SIZES.features, budget.routers[0]
    deciding = d * router.net.out_features
    assert budget.rate * 2 * d * 16 * d + deciding == pytest.approx(2 * d * d)


def test_experts_that_are_open_more_often_pay_more() -> None:
    router = ReluRouter(features=3, blocks=3, block=4)
    budget = ReluRouterBudget(rate=0.1, weight=1.0, routers=[router])
    scores = torch.tensor([[2.0, 1.0, 0.0], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 3.0, 0.0]], requires_grad=True)
    router.scores_BG = scores
    budget.penalty().backward()  # type: ignore[no-untyped-call]
    assert budget.weight == pytest.approx(1.2), "half are open, which is too many"
    opened = torch.tensor([1.0, 0.5, 0.0])
    expected = 1.2 * (opened / 0.1 / 4).expand(4, 3)
    torch.testing.assert_close(scores.grad, expected)


def test_layers_that_are_open_more_often_pay_more() -> None:
    routers = [ReluRouter(features=3, blocks=4, block=4) for _ in range(2)]
    scores = [torch.ones(5, 4), torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(5, 1)]
    for router, one in zip(routers, scores, strict=True):
        router.scores_BG = one.requires_grad_()
    ReluRouterBudget(rate=0.1, routers=routers).penalty().backward()  # type: ignore[no-untyped-call]
    slopes = [one.grad.sum() for one in scores if one.grad is not None]
    assert float(slopes[0] / slopes[1]) == pytest.approx(4.0), "four times as many open pay four times as much"


def test_a_saved_model_has_its_routers_again(tmp_path: Path) -> None:
    settings = FFNSettings(method="relu router", width=16, executes=1, block=16)
    model = prepare(settings, SIZES, torch.device("cpu")).model.eval()
    path = tmp_path / "gpt.safetensors"
    save_gpt(model, Bytes(), path, notes={"text": "counting"})
    loaded, tokenizer, notes = load_gpt(path)
    assert (tokenizer.size, notes["text"]) == (256, "counting")
    ids = torch.randint(0, 256, (2, SIZES.context), generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(ids), model(ids))
    assert [router.block for router in routers_of(loaded)] == [16, 16]


def test_a_generated_token_pays_for_routers_and_open_blocks() -> None:
    model = prepare(FFNSettings(method="relu router", width=16, executes=1, block=16), SIZES, torch.device("cpu")).model
    (token,) = generate(model, [1], 1, temperature=0.0)
    (rate,) = {float(rate) for rate in open_rates(routers_of(model)[:1])}
    assert 0.0 < rate < 1.0
    ffn = 2 * SIZES.features * 16 * SIZES.features
    closed = sum(1.0 - float(rate) for rate in open_rates(routers_of(model))) * ffn
    deciding = sum(router.net.weight.numel() for router in routers_of(model))
    assert token.dense - token.macs == pytest.approx(closed - deciding)
