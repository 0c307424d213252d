"""A budget holds gates on the channels of convolutions, counted exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dynamicgate as dg
from tests.gating.conv_nets import Block, ResNet


class DigitNet(nn.Module):
    """Two blocks whose inner convolutions hold nearly all of the MACs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.blocks = nn.Sequential(Block(12, 12), Block(12, 24, stride=2))
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))  # the last rows are of other writers
    return torch.tensor(x / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)[mixed], torch.tensor(y)[mixed]


def test_a_budget_is_met_within_a_point_on_digits(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    x, y = digits
    train, valid = (x[:1400], y[:1400]), (x[1400:], y[1400:])
    model = dg.gate_(DigitNet(), dg.GateConfig(block=2))
    dg.fit(model, train, valid=valid, budget=dg.Budget(target=0.6), epochs=5, batch=64, lr=4e-3, show=False)
    found = dg.measure(model, valid)
    assert found.relative == pytest.approx(0.6, abs=0.01)
    assert found.accuracy > 0.85
    assert all(0.05 < gate["open"] < 1.0 for gate in found.gates)


def test_a_budget_that_convolutions_without_gates_hold_back_names_them(digits: tuple[Tensor, Tensor]) -> None:
    model = dg.gate_(ResNet(inputs=1), dg.GateConfig(block=2))
    with pytest.raises(ValueError, match=r"no gate closes hold it back: 'conv1' 0\.040, 'layer1\.1\.downsample\.0' 0"):
        dg.fit(model, (digits[0][:64], digits[1][:64] % 5), budget=dg.Budget(target=0.05), epochs=1, show=False)


def test_the_budget_counts_again_for_images_of_another_size() -> None:
    model = dg.gate_(ResNet(), dg.GateConfig(block=2))
    budget = dg.Budget(target=0.7, warmup=0.0)
    for size in (8, 12):
        budget.apply_(model, 0.5)
        with dg.usage(model) as used:
            model(torch.randn(4, 3, size, size))
        budget.step(used, 0.5)
        assert budget.counter is not None
        assert budget.counter.dense == dg.count_macs(model, torch.randn(1, 3, size, size)).dense


def test_a_router_on_channels_trains(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    x, y = digits
    model = dg.gate_(DigitNet(), dg.GateConfig(kind="router", block=4, top_k=2))
    before = {name: gate.net.weight.detach().clone() for name, gate in dg.named_gates(model).items()}  # type: ignore[operator,union-attr]
    dg.fit(model, (x[:256], y[:256]), epochs=1, batch=64, show=False)
    found = dg.measure(model, (x[256:320], y[256:320]))
    assert [gate["open"] for gate in found.gates] == pytest.approx([2 / 3, 1 / 3])
    for name, gate in dg.named_gates(model).items():
        assert not torch.equal(gate.net.weight, before[name])  # type: ignore[arg-type]


class Interrupt(dg.training.Callback):
    """Ctrl-C after some steps."""

    def on_log(self, row: dict[str, float], step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt


def test_training_resumes_to_the_bit(tmp_path: Any, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:192], digits[1][:192]

    def fitted(folder: str, **options: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = dg.gate_(DigitNet(), dg.GateConfig(block=2))
        budget = dg.Budget(target=0.6)
        dg.fit(model, (x, y), budget=budget, epochs=2, batch=64, show=False, out=tmp_path / folder, **options)
        return model.state_dict()

    straight = fitted("one")
    with pytest.raises(KeyboardInterrupt):
        fitted("two", callbacks=[Interrupt()], checkpoint_seconds=0)
    resumed = fitted("two")
    assert [name for name, want in straight.items() if not torch.equal(resumed[name], want)] == []
