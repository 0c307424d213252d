"""MACs of convolutions with gates on their channels, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import dynamicgate as dg
from tests.gating.conv_nets import LeNet, MobileNet, ResNet, plain_net, set_logits_

PLAIN = 77 * 27 * 6 + 12 * 36 * 10 + 30 * 5


def closed_blocks(model: nn.Module, x: Tensor, closed: dict[str, list[int]]) -> dg.accounting.measurement.Measurement:
    """What the model executes with these blocks of static gates closed."""
    set_logits_(model, closed)
    return dg.measure(model, x)


def test_closed_channels_save_work_on_both_sides() -> None:
    model, x = dg.gate_(plain_net(), dg.GateConfig(kind="static", block=4)), torch.randn(3, 3, 11, 7)
    found = closed_blocks(model, x, {})
    assert found.macs["dense"] == found.macs["executed"] == PLAIN
    found = closed_blocks(model, x, {"3": [1], "9": [0]})  # 2 of 6 channels, 4 of 10
    by_layer = {row["name"]: row["macs"] for row in found.layers}
    assert by_layer == {"0": 77 * 27 * 4, "3": 12 * 6 * 4 * 6, "9": 6 * 3 * 5}
    assert found.macs["executed"] == sum(by_layer.values())
    assert [row["open"] for row in found.layers] == pytest.approx([4 / 6, 6 / 10, 1.0])
    found = closed_blocks(model, x, {"3": [0, 1]})
    assert found.macs["executed"] == 30 * 5  # the second convolution reads nothing
    assert found.macs["gate_saved"] == pytest.approx(1 - 150 / PLAIN)
    assert found.macs["structure_saved"] == 0.0


def test_the_dense_count_does_not_depend_on_gates() -> None:
    for make, shape in ((plain_net, (3, 11, 7)), (ResNet, (3, 11, 7)), (MobileNet, (3, 9, 5)), (LeNet, (1, 16, 16))):
        model: nn.Module = make()
        x = torch.randn(2, *shape)
        before = dg.count_macs(model, x)
        dg.gate_(model, dg.GateConfig(block=2, kind="static"))
        after = dg.count_macs(model, x)
        assert after.dense == before.dense
        assert after.all_open == 1.0
        assert after.relative_at(1.0) == 1.0


def test_gate_networks_are_counted_once_for_an_image() -> None:
    model, x = dg.gate_(plain_net(), dg.GateConfig(block=2, net="linear")), torch.randn(3, 3, 11, 7)
    counter = dg.count_macs(model, x)
    assert counter.gate == 3 * 3 + 6 * 5
    assert counter.other == 0.0
    assert counter.dense == PLAIN
    found = dg.measure(model, x)
    assert found.macs["gate"] == 3 * 3 + 6 * 5
    assert found.macs["executed"] == PLAIN + 3 * 3 + 6 * 5


def test_each_image_is_counted_with_its_own_channels() -> None:
    model, x = dg.gate_(plain_net(), dg.GateConfig(block=4)).eval(), torch.randn(64, 3, 11, 7)
    x = x + 2.0 * torch.randn(64, 3, 1, 1)  # gates see the means of channels
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            for parameter in gate.net.parameters():
                parameter.add_(2.0 * torch.randn_like(parameter))
    rows: list[Tensor] = []
    found = dg.measure(model, x, watch=lambda _out, macs: rows.append(macs))
    with dg.usage(model) as used:
        model(x)
    g3, g9 = used["3"].open.double(), used["9"].open.double()
    c3, c9 = g3 @ torch.tensor([4.0, 2.0]).double(), g9 @ torch.tensor([4.0, 4.0, 2.0]).double()
    want = 77 * 27 * c3 + 12 * 6 * c3 * c9 + 3 * 5 * c9 + dg.count_macs(model, x).gate
    torch.testing.assert_close(torch.cat(rows), want)
    assert len(want.unique()) > 3
    assert found.macs["executed"] == pytest.approx(float(want.mean()))
    per_layer = {row["name"]: row["macs"] for row in found.layers}
    assert per_layer["3"] == pytest.approx(float((72 * c3 * c9).mean()))
    assert found.macs["relative_zero_skip"] <= found.relative


def test_a_gate_that_reads_the_channels_saves_only_their_reader() -> None:
    model = dg.gate_(plain_net(), dg.GateConfig(block=4, reads="same", net="linear")).eval()
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.fill_(-99.0)
    counter = dg.count_macs(model, torch.randn(2, 3, 11, 7))
    assert counter.gate == 6 * 2 + 10 * 3
    found = dg.measure(model, torch.randn(2, 3, 11, 7))
    assert found.macs["executed"] == 77 * 27 * 6 + 42


def test_inner_channels_of_residual_blocks_are_counted() -> None:
    model, x = dg.gate_(ResNet(), dg.GateConfig(kind="static", block=4)), torch.randn(2, 3, 11, 7)
    counter = dg.count_macs(model, x)
    fixed = (
        77 * 27 * 8 + 24 * 8 * 12
    )  # the first convolution and that of the shortcut, of which 6 x 4 positions are left
    assert counter.other == fixed
    assert counter.other_layers == {"conv1": 77 * 27 * 8, "layer1.1.downsample.0": 24 * 8 * 12}
    found = closed_blocks(model, x, {"layer1.0.conv2": [0], "layer1.1.conv2": [0, 2]})
    inner = 77 * 9 * (8 * 4 + 4 * 8) + 24 * 9 * (8 * 4 + 4 * 12)
    assert found.macs["executed"] == fixed + inner + 12 * 5


def test_a_depthwise_convolution_is_saved_with_the_channels_it_writes() -> None:
    model, x = dg.gate_(MobileNet(), dg.GateConfig(kind="static", block=4)), torch.randn(2, 3, 9, 5)
    fixed = 45 * 27 * 4 + 4 * 5
    dense = fixed + 2 * 45 * (4 * 12 + 9 * 12 + 12 * 4)
    assert dg.count_macs(model, x).dense == dense
    found = closed_blocks(model, x, {"blocks.0.6": [1, 2]})
    assert found.macs["executed"] == dense - 45 * 8 * (4 + 9 + 4)


@pytest.mark.parametrize("pruned", [False, True])
def test_grouped_convolutions_save_within_their_groups(pruned: bool) -> None:
    """12 channels in 3 groups, read and written: only pairs inside a group exist. 9 x 10 positions become 7 x 8, 5 x 4
    and 5 x 4."""
    model = nn.Sequential(
        nn.Conv2d(4, 12, 3, groups=2), nn.ReLU(), nn.Conv2d(12, 6, (2, 3), groups=3, dilation=(2, 2)), nn.ReLU(),
        nn.Conv2d(6, 2, 1),
    )  # fmt: skip
    x = torch.randn(2, 4, 9, 10)
    if pruned:
        prune.random_unstructured(model[2], "weight", amount=0.3)
    dg.gate_(model, dg.GateConfig(kind="static", block=5))
    set_logits_(model, {"2": [1], "4": []})  # channels 5 to 9 of 12
    inputs = torch.tensor([not 5 <= channel < 10 for channel in range(12)])
    groups_in, groups_out = torch.arange(12) // 4, torch.arange(6) // 2
    kernel: Any = model[2].weight_mask if pruned else torch.ones_like(model[2].weight)
    second = sum(
        float(kernel[o, i % 4].sum())
        for o in range(6)
        for i in range(12)
        if groups_in[i] == groups_out[o] and inputs[i]
    )
    found = {row["name"]: row["macs"] for row in dg.measure(model, x).layers}
    assert found["0"] == 7 * 8 * (2 * 9) * 7
    assert found["2"] == pytest.approx(5 * 4 * second)
    assert found["4"] == 5 * 4 * 6 * 2
    set_logits_(model, {"2": [1], "4": [0]})  # channel 5 is left: group 2, which reads channels 8 to 11
    third = sum(float(kernel[5, i - 8].sum()) for i in range(8, 12) if inputs[i])
    found = {row["name"]: row["macs"] for row in dg.measure(model, x).layers}
    assert found["2"] == pytest.approx(5 * 4 * third)
    assert found["4"] == 5 * 4 * 1 * 2


def test_connections_of_a_sparse_linear_layer_are_those_of_its_open_channels() -> None:
    """Three values of each of 10 channels, channel after channel."""
    model, x = plain_net(), torch.randn(3, 3, 11, 7)
    dg.gate_(model, dg.GateConfig(kind="static", block=4))
    dg.sparsity.Static(model, {"9": 0.4})
    set_logits_(model, {"9": [1]})
    open_values = torch.tensor([not 4 <= value // 3 < 8 for value in range(30)])
    mask: Any = model[9].mask
    found = {row["name"]: row["macs"] for row in dg.measure(model, x).layers}
    assert found["9"] == float(mask[:, open_values].sum())
    rate = dg.sparsity.activity.connections_at(
        dg.sparsity.activity.Endpoints("9", dg.named_gates(model)), {"9": torch.tensor([0.0, 1.0, 0.0])}, mask.shape
    )
    assert rate is not None
    assert torch.equal(rate, ~open_values.expand(5, 30))


def test_images_of_several_sizes_are_counted_each_with_its_own() -> None:
    model = dg.gate_(ResNet(), dg.GateConfig(kind="static", block=4))
    set_logits_(model, {"layer1.0.conv2": [1]})
    batches = [(torch.randn(2, 3, 8, 8), torch.zeros(2).long()), (torch.randn(6, 3, 12, 6), torch.zeros(6).long())]
    each = [dg.measure(model, x) for x, _ in batches]
    found = dg.measure(model, batches)
    for key in ("dense", "executed"):
        assert found.macs[key] == pytest.approx((2 * each[0].macs[key] + 6 * each[1].macs[key]) / 8)
    assert dg.count_macs(model, batches[0][0]).depends_on_shape


def test_several_images_in_a_sample_are_counted() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.flatten(0, 1)).flatten(1).unflatten(0, (len(x), -1)).mean(1)

    model, x = dg.gate_(Frames(), dg.GateConfig(kind="static")), torch.randn(2, 3, 1, 6, 6)
    found = closed_blocks(model, x, {"net.2": [0]})
    assert found.macs["dense"] == 3 * (16 * 9 * 4 + 4 * 36 * 2)
    assert found.macs["executed"] == 3 * (16 * 9 * 3 + 4 * 27 * 2)
    assert found.layers[0]["open"] == 0.75


def test_a_convolution_that_runs_on_images_of_two_sizes_is_refused() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)).mean((2, 3)) + self.b(self.a(x[..., ::2, ::2])).mean((2, 3))

    model, x = Pyramid(), torch.randn(2, 1, 6, 6)
    dg.gate_(model, where=[dg.Site("b", ("a",), "a", 4, channels=True)])
    with pytest.raises(ValueError, match="'a' has a gate on its channels and runs on images of several sizes"):
        dg.count_macs(model, x)


def test_the_budget_is_differentiable_in_the_channels() -> None:
    model, x = dg.gate_(plain_net(), dg.GateConfig(block=2)), torch.randn(3, 3, 11, 7)
    counter = dg.count_macs(model, x)
    with dg.usage(model) as used:
        model(x)
    counter.relative({site: used[site].p for site in used}).backward()  # type: ignore[no-untyped-call]
    for gate in dg.named_gates(model).values():
        assert gate.bias.grad is not None
        assert (gate.bias.grad > 0).all()


def test_a_counter_is_written_and_read_again() -> None:
    model, x = dg.gate_(plain_net(), dg.GateConfig(block=2)), torch.randn(3, 3, 11, 7)
    counter = dg.count_macs(model, x)
    again = type(counter).from_dict(model, counter.to_dict())
    assert again.dense == counter.dense
    assert again.relative_at(0.5) == counter.relative_at(0.5)


def test_gates_on_channels_and_stages_behind_them_are_counted_together() -> None:
    model, x = LeNet(), torch.randn(3, 1, 16, 16)
    dg.gate_(model, dg.GateConfig(kind="stages", stages=(8, 12)))
    dg.gate_(model, dg.GateConfig(kind="static", block=4), where=dg.where.channels)
    set_logits_(model, {"conv2": [1], "fc1": [0]})  # 4 of 6 channels, 12 of 16
    convs = 144 * 25 * 4 + 16 * 9 * 4 * 12
    with torch.no_grad():
        dg.gating.stages.stages_of(model).cut.fill_(float("inf"))  # type: ignore[union-attr]
        everything = dg.measure(model, x).macs["executed"]
        dg.gating.stages.stages_of(model).cut.fill_(float("-inf"))  # type: ignore[union-attr]
        first = dg.measure(model, x).macs["executed"]
    assert {everything, first} == {convs + 48 * 20 + 20 * 4, convs + 48 * 8 + 8 * 4}


def test_sparsify_leaves_channels_alone_and_refuses_those_that_are_named() -> None:
    def make() -> nn.Sequential:
        head = (nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))
        return nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), *head)

    model, x = make(), torch.randn(8, 1, 8, 8)
    dg.sparsify_(model, macs=0.7, example=x, gates="units")
    assert [*dg.named_gates(model)] == ["6"]
    model = make()
    with pytest.raises(ValueError, match="'2' reads channels of convolutions, which this recipe does not gate"):
        dg.sparsify_(model, macs=0.7, example=x, gates="units", where="*")
    assert not dg.named_gates(model)
