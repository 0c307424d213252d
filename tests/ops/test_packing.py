"""Packing and unpacking are inverse to each other, and chains that cannot be packed are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynamicgate.ops import GateNet, chain
from dynamicgate.ops.chain.layers import LAYOUTS
from dynamicgate.ops.chain.unpacking import unpack
from tests.ops.chains import Sketch, build


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [0, 1, 16, 20])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("hidden", ["relu", "nearest"])
def test_unpacking_gives_back_the_layers(layout: str, block: int, skip: bool, hidden: str) -> None:
    first = Sketch(50, layout, block, rank=3, hidden=hidden, tau=0.5, top_k=1, activation="silu", skip_zeros=skip)
    layers = build(
        31, [first, Sketch(45, layout, 16, cut="each", soft_width=0.25, unbounded=True), Sketch(3, layout)], seed=1
    )
    found = unpack(*chain.pack(layers)[:2])
    for before, after in zip(layers, found, strict=True):
        assert torch.equal(before.weight, after.weight)
        assert torch.equal(before.bias, after.bias)
        assert replace(before, weight=0, bias=0, gate=None) == replace(after, weight=0, bias=0, gate=None)
        if before.gate is not None:
            assert all(torch.equal(a, b) for a, b in zip(before.gate.weights, after.gate.weights, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(before.gate.biases, after.gate.biases, strict=True))
            assert torch.equal(torch.as_tensor(before.gate.cut).expand(before.blocks), after.gate.cut)
            assert (before.gate.top_k, before.gate.tau) == (after.gate.top_k, after.gate.tau)
            assert before.gate.soft_width == after.gate.soft_width
            assert before.gate.unbounded == after.gate.unbounded
            assert before.gate.hidden == after.gate.hidden


def test_sparse_layouts_store_only_what_is_not_zero() -> None:
    weight = torch.zeros(64, 100)
    weight[:16, 3] = 127.0  # every layout holds it
    sizes = {layout: chain.pack([chain.Layer(weight, layout=layout)]).weights.numel() for layout in LAYOUTS}
    assert sizes["vectors"] == sizes["csr"] == 16 + 64  # one vector and the bias
    assert sizes["panels"] == sizes["rows"] == 6400 + 64
    assert sizes["half panels"] == 6400 // 2 + 64
    assert sizes["byte panels"] == 6400 // 4 + 64 + 64, "each output has a scale"


GATE = GateNet((torch.zeros(2, 8),), (None,))
LAYER = chain.Layer(torch.zeros(32, 8), torch.zeros(32), block=16, gate=GATE)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one layer"),
        ([LAYER, chain.Layer(torch.zeros(4, 31))], "reads 31 features, but the layer before gives 32"),
        ([chain.Layer(torch.zeros(0, 4))], "received .0, 4."),
        ([replace(LAYER, bias=torch.zeros(3))], "expected a bias of 32"),
        ([replace(LAYER, activation="relu6")], "activation must be one of"),
        ([replace(LAYER, layout="coo")], "layout must be one of"),
        ([replace(LAYER, block=0)], "a gate needs block >= 1"),
        ([replace(LAYER, block=8)], "to 4 blocks"),
        ([replace(LAYER, layout="rows", skip_zeros=True)], "skip_zeros needs panels"),
        ([LAYER, chain.Layer(torch.zeros(4, 32), skip_zeros=True)], "input that is not gated"),
        ([replace(LAYER, gate=None), chain.Layer(torch.zeros(4, 32), block=2)], "at most one layer"),
        ([replace(LAYER, gate=replace(GATE, biases=()))], "as many biases"),
        ([replace(LAYER, gate=replace(GATE, biases=(torch.zeros(3),)))], "as long as"),
        ([replace(LAYER, gate=replace(GATE, hidden="tanh"))], "hidden activation"),
        ([replace(LAYER, gate=replace(GATE, hidden="nearest"))], "lies between two maps, received 1"),
        ([replace(LAYER, gate=replace(GATE, top_k=3))], "top_k <= 2 blocks"),
        ([replace(LAYER, gate=replace(GATE, cut=torch.zeros(3)))], "one cut"),
        ([replace(LAYER, gate=replace(GATE, tau=0.0))], "tau > 0"),
        ([replace(LAYER, gate=replace(GATE, unbounded=True))], "the limit of soft_width, received soft_width None"),
        ([replace(LAYER, gate=replace(GATE, soft_width=0.0))], "finite soft_width > 0, received 0.0"),
        ([replace(LAYER, gate=replace(GATE, soft_width=torch.inf))], "finite soft_width > 0, received inf"),
        ([replace(LAYER, gate=replace(GATE, soft_width=1.0, tau=0.5))], "received tau 0.5 and top_k 0 with"),
        ([replace(LAYER, gate=replace(GATE, soft_width=1.0, top_k=1))], "received tau None and top_k 1 with"),
        ([replace(LAYER, gate=replace(GATE, soft_width=1.0, cut=-torch.inf))], "expected a finite one, received -inf"),
        ([chain.Layer(torch.zeros(1, 70_000), layout="csr")], "reach 65536 inputs, received 70000"),
    ],
)
def test_a_chain_that_cannot_be_run_is_refused(layers: list[chain.Layer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain.pack(layers)
