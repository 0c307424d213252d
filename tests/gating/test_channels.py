"""Gates on the channels of convolutions: outputs, gradients and options, against masks that are multiplied by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from tests.gating.conv_nets import LeNet, MobileNet, ResNet, plain_net, set_logits_

KINDS: list[dict[str, Any]] = [
    {"kind": "static"},
    {"kind": "dynamic"},
    {"kind": "dynamic", "block": 4, "net": "two-layer", "rank": 3},
    {"kind": "dynamic", "top_k": 1, "block": 3},
    {"kind": "dynamic", "reads": "same", "block": 2},
    {"kind": "dynamic", "soft_width": 0.5},
    {"kind": "dynamic", "scale": True},
    {"kind": "router", "block": 2, "top_k": 2},
    {"kind": "router", "block": 2, "capacity": 1.0},
]


def randomised(model: nn.Module) -> nn.Module:
    """With gates that differ between images, and norms that are no identity."""
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            for parameter in gate.net.parameters():
                parameter.add_(2.0 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(0.5, 1.0)  # a closed channel would not be zero if it were closed in front
                assert module.running_mean is not None
                module.running_mean.uniform_(-0.5, 0.5)
    return model


def images(count: int) -> Tensor:
    """Images whose channels have different means, which is what gates see of them."""
    return torch.randn(count, 3, 11, 7) + 2.0 * torch.randn(count, 3, 1, 1)


def by_hand(model: nn.Sequential, x: Tensor, used: dg.gating.Usage) -> Tensor:
    """`plain_net` with the factors that its gates decided, multiplied channel by channel."""
    gates = dg.named_gates(model)
    for name, layer in model.named_children():
        if name in gates:
            factor = gates[name].per_unit(used[name].scale)
            if isinstance(layer, nn.Conv2d):
                x = torch.stack([x[:, i] * factor[:, i].reshape(-1, 1, 1) for i in range(x.shape[1])], dim=1)
            else:
                values = x.shape[1] // factor.shape[1]
                x = torch.stack([x[:, i] * factor[:, i // values] for i in range(x.shape[1])], dim=1)
        if isinstance(layer, nn.Conv2d):
            x = F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding)
        elif isinstance(layer, nn.Linear):
            x = F.linear(x, layer.weight, layer.bias)
        else:
            x = layer(x)
    return x


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_those_of_masks_multiplied_by_hand(config: dict[str, Any], training: bool) -> None:
    model = plain_net()
    model[7] = nn.Identity()  # dropout draws
    randomised(dg.gate_(model, dg.GateConfig(**config))).train(training)
    x = images(5)
    with torch.no_grad(), dg.usage(model) as used:
        found = model(x)
        torch.testing.assert_close(found, by_hand(model, x, used), rtol=1e-5, atol=1e-6)
    assert all(decision.open.shape[0] == 5 for decision in used.values())  # once for each image
    assert all(0.0 < float(rate) < 1.0 for rate in used.mean_open().values())


@pytest.mark.parametrize("make", [plain_net, ResNet, MobileNet, LeNet])
@pytest.mark.parametrize("config", [{"block": 3}, {"kind": "static"}, {"reads": "same"}])
def test_while_all_gates_are_open_nothing_changes(make: Any, config: dict[str, Any]) -> None:
    model, x = make().eval(), torch.randn(4, 1 if make is LeNet else 3, *((16, 16) if make is LeNet else (11, 7)))
    with torch.no_grad():
        want = model(x)
        dg.gate_(model, dg.GateConfig(**config, open=0.999))
        for gate in dg.named_gates(model).values():
            gate.bias.fill_(99.0)
        assert torch.equal(model(x), want)
        dg.ungate_(model)
        assert torch.equal(model(x), want)
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_with_all_gates_closed_only_biases_are_left() -> None:
    model, x = plain_net().eval(), images(4)
    dg.gate_(model, dg.GateConfig(kind="static"))
    set_logits_(model, {"3": [*range(6)], "9": [*range(10)]})
    with torch.no_grad():
        torch.testing.assert_close(model(x), model[9].bias.expand(4, 5))
        assert not dg.measure(model, x).macs["executed"]


def test_a_closed_channel_is_zero_for_its_reader_behind_the_norm() -> None:
    model = randomised(dg.gate_(plain_net(), dg.GateConfig(kind="static", block=2))).eval()
    set_logits_(model, {"3": [1], "9": [0, 4]})
    seen: dict[str, Tensor] = {}
    for name in ("3", "9"):
        model.get_submodule(name).register_forward_pre_hook(lambda _m, args, name=name: seen.update({name: args[0]}))
    model(images(4))
    assert torch.equal(seen["3"][:, 2:4], torch.zeros(4, 2, 11, 7))
    assert (seen["3"].amax((2, 3))[:, [0, 1, 4, 5]] > 0).all()
    closed = seen["9"].unflatten(1, (10, 3))
    assert torch.equal(closed[:, [0, 1, 8, 9]], torch.zeros(4, 4, 3))
    assert (closed[:, 2:8].amax((0, 2)) > 0).all()


def test_the_gate_reads_the_mean_of_each_channel_as_the_gates_before_it_left_it() -> None:
    model = randomised(dg.gate_(plain_net(), dg.GateConfig(block=2, net="linear"))).eval()
    x = images(4)
    inputs: dict[str, Tensor] = {}
    model[3].register_forward_pre_hook(lambda _m, args: inputs.update(h=args[0]))  # behind the hooks of gates
    with dg.usage(model) as used:
        model(x)
    gates: Any = dg.named_gates(model)
    torch.testing.assert_close(used["3"].logits, gates["3"].net(x.sum((2, 3)) / 77))
    torch.testing.assert_close(used["9"].logits, gates["9"].net(inputs["h"].sum((2, 3)) / 77))
    assert gates["3"].macs == 3 * 3
    assert gates["9"].macs == 6 * 5


def test_gradients_are_those_of_the_masks_by_hand() -> None:
    torch.manual_seed(0)
    model: Any = randomised(dg.gate_(plain_net(), dg.GateConfig(block=2))).double().eval()
    x = images(5).double()
    with dg.usage(model) as used:
        model(x).square().sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with dg.usage(model) as used:
        model(x)
    by_hand(model, x, used).square().sum().backward()
    again = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert {*found} == {*again}
    assert any(float(grad.abs().max()) > 0 for name, grad in found.items() if ".gate." in name)
    for name, grad in again.items():
        torch.testing.assert_close(found[name], grad, msg=name)


def test_a_view_that_mixes_images_is_refused_as_it_runs() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 4, 1), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.conv(x).view(-1, 8))  # two rows for each image of 2 x 2

    model = dg.gate_(Mixed(), dg.GateConfig())
    with pytest.raises(RuntimeError, match="must keep one row for each image"):
        model(torch.randn(1, 1, 2, 2))


def test_training_and_several_threads_of_images_work_in_bfloat16_and_channels_last() -> None:
    model: Any = dg.gate_(ResNet(), dg.GateConfig(block=2)).to(torch.bfloat16).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 12, 12, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    model(x).float().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    one = model.eval()(x[:1])
    torch.testing.assert_close(one, model(x)[:1], rtol=0.05, atol=0.05)


def test_one_image_without_a_batch_dimension_is_read() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3)).eval()
    randomised(dg.gate_(model, dg.GateConfig(block=2)))
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(model(x[1]), model(x)[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", [*KINDS[:5], KINDS[7]])
def test_gates_on_channels_are_saved_and_loaded(config: dict[str, Any], tmp_path: Any) -> None:
    x = images(4)
    model = randomised(dg.gate_(plain_net(), dg.GateConfig(**config))).eval()
    dg.save(model, tmp_path / "model.safetensors")
    loaded = dg.load(tmp_path / "model.safetensors")
    assert torch.equal(loaded(x), model(x))
    assert [g.site for g in dg.named_gates(loaded).values()] == [g.site for g in dg.named_gates(model).values()]
    assert dg.measure(loaded, x).macs == dg.measure(model, x).macs


def test_gates_are_loaded_into_a_network_of_your_own(tmp_path: Any) -> None:
    x = images(4)
    model = randomised(dg.gate_(ResNet(), dg.GateConfig(block=2))).eval()
    dg.save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"load\(path, into=model\)"):
        dg.load(tmp_path / "model.safetensors")
    assert torch.equal(dg.load(tmp_path / "model.safetensors", into=ResNet())(x), model(x))


def test_it_says_channels_where_it_shows_itself() -> None:
    model = dg.gate_(plain_net(), dg.GateConfig(block=4))
    assert "dynamic (linear), 6 channels in 2 blocks" in str(model)


def test_torch_compile_gives_the_same() -> None:
    model = randomised(dg.gate_(ResNet(), dg.GateConfig(block=2))).eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
