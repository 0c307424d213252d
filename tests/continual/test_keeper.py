"""What is kept does not change by one bit, whatever the optimizer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual import Keeper

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5),
    "adamw, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, weight_decay=0.1, momentum=0.9, centered=True),
}


def gated(seed: int = 0) -> nn.Sequential:
    """Its gates open other blocks for inputs with a positive first feature than for those with a negative one."""
    torch.manual_seed(seed)
    layers = (nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 5))
    model = nn.Sequential(*layers)
    dg.gate_(model, dg.GateConfig(block=8, net="linear"))
    first, second = dg.named_gates(model).values()
    with torch.no_grad():
        first.net.weight.zero_()
        first.net.weight[:4, 0], first.net.weight[4:, 0] = 5.0, -5.0
        first.bias.zero_()
        second.net.weight.zero_()  # reads units of the first layer: those of blocks 0 to 3, or the others
        second.net.weight[:3, :32], second.net.weight[:3, 32:] = 5.0, -5.0
        second.net.weight[3:, :32], second.net.weight[3:, 32:] = -5.0, 5.0
        second.bias.zero_()
    return model.eval()


def rows(side: float, count: int = 40) -> Tensor:
    x = torch.randn(count, 12)
    x[:, 0] = side * (1.0 + x[:, 0].abs())
    return x


def learn(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, keeper: Keeper | None, steps: int = 25
) -> None:
    y = torch.arange(len(x)) % 5
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if keeper is not None:
            keeper.step(optimizer)
        optimizer.step()
        if keeper is not None:
            keeper.restore_()


def keep(model: nn.Module, keeper: Keeper, x: Tensor) -> int:
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    return keeper.keep_(used)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_old_answers_are_equal_to_the_bit_after_new_tasks(name: str) -> None:
    model, old, new = gated(), rows(1.0), rows(-1.0)
    keeper, optimizer = Keeper(model), OPTIMIZERS[name](model.parameters())
    learn(model, old, optimizer, keeper, steps=3)
    assert keep(model, keeper, old) == 0
    assert min(keeper.free.values()) > 0.0
    before, other = model(old).detach(), model(new).detach()
    learn(model, new, optimizer, keeper)  # the same optimizer, with the momentum of the old task
    assert torch.equal(model(old), before)
    assert not torch.equal(model(new), other), "and something was learned"


def test_without_a_keeper_old_answers_change() -> None:
    model, old, new = gated(), rows(1.0), rows(-1.0)
    before = model(old).detach()
    learn(model, new, OPTIMIZERS["adamw"](model.parameters()), None, steps=2)
    assert not torch.equal(model(old), before)


def test_new_units_learn_as_well_as_their_task_allows() -> None:
    model, old, new = gated(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    keep(model, keeper, old)
    learn(model, new, torch.optim.Adam(model.parameters(), lr=1e-2), keeper, steps=150)
    assert float((model(new).argmax(1) == torch.arange(40) % 5).float().mean()) > 0.8


def test_units_are_counted_owned_and_released() -> None:
    model, old, new = gated(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    assert keeper.kept("0.weight") is None
    assert keep(model, keeper, old) == 0
    assert keeper.free == {"2": 0.5, "4": 0.5}
    kept = keeper.kept("0.weight")
    assert kept is not None
    assert kept[:32].all()
    assert not kept[32:].any()
    assert keep(model, keeper, new) == 1
    assert set(keeper.free.values()) == {0.0}
    keeper.release_(0)
    assert keeper.free == {"2": 0.5, "4": 0.5}
    assert keeper.contexts == 2


def test_kept_entries_lose_their_momentum() -> None:
    model, old = gated(), rows(1.0)
    keeper, optimizer = Keeper(model), OPTIMIZERS["adam"](model.parameters())
    learn(model, old, optimizer, None)
    keep(model, keeper, old)
    keeper.step(optimizer)
    weight = model[0].weight
    kept: Any = keeper.kept("0.weight")
    for moment in ("exp_avg", "exp_avg_sq"):
        assert bool((optimizer.state[weight][moment][kept] == 0).all())
        assert weight.grad is not None
        assert bool((weight.grad[kept] == 0).all())


def test_what_moves_gates_is_undone() -> None:
    model, old = gated(), rows(1.0)
    keeper = Keeper(model)
    keep(model, keeper, old)
    before = model(old).detach()
    dg.calibrate_(model, old, macs=0.3)
    assert not torch.equal(model(old), before)
    keeper.restore_()
    assert torch.equal(model(old), before)


def test_the_state_goes_on_in_another_process() -> None:
    model, old, new = gated(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    keep(model, keeper, old)
    again = gated(seed=1)
    again.load_state_dict(model.state_dict())
    loaded = Keeper(again)
    loaded.load_state_dict({name: tensor.clone() for name, tensor in keeper.state_dict().items()})
    before = again(old).detach()
    learn(again, new, OPTIMIZERS["adamw"](again.parameters()), loaded)
    assert torch.equal(again(old), before)
    with pytest.raises(ValueError, match="another model"):
        loaded.load_state_dict({"2": torch.zeros(64)})


def test_a_model_without_gates_has_nothing_free() -> None:
    with pytest.raises(ValueError, match="no gates"):
        Keeper(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_context_that_opened_no_unit_is_kept_too(name: str, tmp_path: Path) -> None:
    model = gated()
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.net.weight.zero_()  # type: ignore[operator]
            gate.bias.fill_(-5.0)
    keeper, x = Keeper(model), rows(1.0)
    with dg.usage(model) as used:
        before = model(x).detach()
    assert (keeper.keep_(used), keeper.contexts) == (0, 1)
    learn(model, rows(-1.0), OPTIMIZERS[name](model.parameters()), keeper)
    assert torch.equal(model(x), before)
    some = {site: torch.arange(len(owner)) < 3 for site, owner in keeper.owner_of.items()}
    assert keeper.keep_(some) == 1
    dg.save(model, tmp_path / "model.safetensors")
    again = Keeper(dg.load(tmp_path / "model.safetensors"))
    assert again.contexts == 2
    assert again.release_oldest_() == 0
    assert again.release_oldest_() == 1
    assert again.contexts == 0
    assert again.kept("0.bias") is None
