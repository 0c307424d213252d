"""Every count that the paper prints and that follows from its architecture (facts.md, section 4)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import dynamicgate as dg
from dynamicgate import GateConfig, count_macs
from dynamicgate.accounting import MacCounter
from dynamicgate.gating.attach import Where
from dynamicgate.nn import GatedMLP

MNIST, CIFAR10, TINY, SPEECH, PBMC = (
    (784, 256, 10),
    (3072, 1024, 512, 10),
    (12288, 256, 200),
    (1640, 512, 256, 12),
    (2000, 1000, 500, 9),
)
STATIC = GateConfig(kind="static")


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def open_units(sizes: tuple[int, ...], where: Where, **counts: int) -> tuple[GatedMLP, dict[str, Tensor]]:
    """A network with static gates of which `counts` are open, and the decisions it makes."""
    model = GatedMLP(sizes, STATIC, where=where).eval()
    for name, gate in dg.named_gates(model).items():
        with torch.no_grad():
            gate.net.bias.fill_(-3.0)
            gate.net.bias[: counts[name.replace("layers.", "h")]] = 3.0
    with dg.usage(model) as used, torch.no_grad():
        model(torch.zeros(1, sizes[0]))
    return model, {site: used[site].open for site in used}


@pytest.mark.parametrize(
    ("sizes", "macs"), [(MNIST, 203_264), (CIFAR10, 3_675_136), (TINY, 3_196_928), (SPEECH, 973_824), (PBMC, 2_504_500)]
)
def test_dense_macs_are_the_papers_and_the_flop_counter_of_torch_agrees(sizes: tuple[int, ...], macs: int) -> None:
    model = GatedMLP(sizes)
    assert MacCounter.for_mlp(model).dense == count_macs(model, torch.zeros(2, sizes[0])).dense == macs
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, sizes[0]))
    assert counter.get_total_flops() == 2 * macs


def test_the_mnist_network_has_203_530_parameters_and_204_570_with_its_gates() -> None:
    assert parameters(GatedMLP(MNIST)) == 203_530
    assert parameters(GatedMLP(MNIST, STATIC, where=dg.where.everywhere)) == 204_570


def test_the_mnist_network_costs_406_528_flops() -> None:
    assert 2 * MacCounter.for_mlp(GatedMLP(MNIST)).dense == 406_528


def test_the_pruned_mnist_network_costs_286_105_flops_nominally_and_within_one_mac_with_a_real_mask() -> None:
    model = GatedMLP(MNIST)
    first, second = MacCounter.for_mlp(model).layers
    nominal = 2 * (0.7 * first.dense + second.dense)
    assert int(nominal) == 286_105
    size = model.layers[0].weight.abs()
    cut = size.flatten().kthvalue(round(0.3 * size.numel())).values
    model.layers[0].register_buffer("mask", size > cut)
    executed = float(MacCounter.for_mlp(model).executed({}))
    assert abs(executed - nominal / 2) <= 1.0
    assert executed == first.present + second.present


def test_the_mnist_network_at_612_inputs_and_246_units_costs_318_264_flops_as_published() -> None:
    model, g = open_units(MNIST, dg.where.everywhere, h0=612, h1=246)
    assert (
        2 * float(MacCounter.for_mlp(model, readers_only=True).executed(g)) == 318_264
    )  # printed as 318,263: truncated
    assert float(MacCounter.for_mlp(model).executed(g)) == 612 * 246 + 246 * 10  # what those gates could really save


def test_the_cifar_network_at_962_and_148_units_costs_0_8433() -> None:
    model, g = open_units(CIFAR10, dg.where.hidden, h1=962, h2=148)
    counter = MacCounter.for_mlp(model)
    assert float(counter.executed(g)) == 3072 * 962 + 962 * 148 + 148 * 10
    assert round(float(counter.relative(g)), 4) == 0.8433


def test_the_tiny_imagenet_network_has_3_197_384_parameters_and_6_393_856_flops() -> None:
    model = GatedMLP(TINY)
    assert parameters(model) == 3_197_384
    assert 2 * MacCounter.for_mlp(model).dense == 6_393_856
    assert parameters(dg.gate_(model, STATIC)) == 3_197_640


def test_the_speech_network_at_473_and_210_units_costs_963_288_macs_as_published() -> None:
    model, g = open_units(SPEECH, dg.where.hidden, h1=473, h2=210)
    assert float(MacCounter.for_mlp(model, readers_only=True).executed(g)) == 963_288  # printed as 963,287
    assert float(MacCounter.for_mlp(model).executed(g)) == 1640 * 473 + 473 * 210 + 210 * 12


def test_the_pbmc_network_costs_629_500_macs_at_density_one_quarter() -> None:
    model = GatedMLP(PBMC, activation="gelu")
    for layer in model.layers[:2]:
        mask = torch.zeros(layer.weight.numel(), dtype=torch.bool)
        mask[torch.randperm(len(mask))[: len(mask) // 4]] = True
        layer.register_buffer("mask", mask.view_as(layer.weight))
    counter = MacCounter.for_mlp(model)
    assert float(counter.executed({})) == 629_500
    assert [layer.density for layer in counter.layers] == [0.25, 0.25, 1.0]


def test_the_pbmc_gate_networks_cost_144_000_macs_that_the_paper_leaves_out() -> None:
    model = GatedMLP(PBMC, GateConfig(net="low-rank", rank=32, open=0.85), activation="gelu")
    counter = MacCounter.for_mlp(model)
    assert [gate.macs for gate in counter.gates.values()] == [96_000, 48_000]
    assert counter.gate == 144_000
    assert round(counter.gate / counter.dense, 4) == 0.0575
    everything_open = {name: torch.ones(1, gate.blocks) for name, gate in counter.gates.items()}
    assert float(counter.executed(everything_open)) == 2_504_500 + 144_000
