"""Which feed-forward layers are found, and what the plan says about gates that stay in torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dynamicgate as dg
from tests.inference.gpu.models import GATES, Compile, feed_forwards, model_with
from tests.inference.models import assert_same_outputs, rows_near_threshold, spread_logits_


def test_two_linear_layers_around_an_activation_are_found_without_the_ffn_module(compile_as_on_gpu: Compile) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 5))
    dg.gate_(model, GATES["linear"], where="3")
    spread_logits_(model.eval())
    x = torch.randn(64, 20)
    compiled = compile_as_on_gpu(model, x)
    assert len(feed_forwards(compiled)) == 1
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


class Loops(nn.Module):
    """A forward pass that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 20)
        self.blocks = nn.ModuleList(dg.nn.FFN(20, 96, activation="gelu") for _ in range(2))
        self.head = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if float(x.abs().sum()) > 0:
                x = x + block(x)
        return self.head(x)


def test_layers_of_a_model_that_cannot_be_traced_are_found_too(compile_as_on_gpu: Compile) -> None:
    model = Loops().eval()
    dg.gate_(model, GATES["linear"], where="blocks.*.down")
    spread_logits_(model)
    ids = torch.randint(0, 11, (40, 7))
    compiled = compile_as_on_gpu(model, ids)
    assert len(feed_forwards(compiled)) == 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-5)
    assert [chain[0].layers[0].name for chain in compiled.plan.chains] == ["blocks.0.up", "blocks.1.up"]


def test_what_stays_in_torch_is_said_and_runs(compile_as_on_gpu: Compile) -> None:
    deep = dg.nn.GatedMLP((20, 64, 64, 5), GATES["linear"])
    tanh = model_with(GATES["linear"], activation="tanh")
    same = model_with(dg.GateConfig(block=32, reads="same"))
    soft = model_with(dg.GateConfig(block=32, evaluate="soft"))
    switch = nn.Sequential(dg.nn.Switch(20, 4, 32, capacity=0.7), nn.Linear(20, 5))
    features = nn.Sequential(dg.nn.FFN(20, 64, 5))
    dg.gate_(features, GATES["linear"], where="0.down")
    dg.gate_(features, dg.GateConfig(block=4), where="0.up")
    reasons = {
        "another gate acts on its layers": deep,
        "its activation is tanh": tanh,
        "it reads the units it closes": same,
        "it is evaluated softly": soft,
        "its experts have a capacity": switch,
        "it decides about input features": features,
    }
    x = torch.randn(64, 20)
    for reason, model in reasons.items():
        if reason != "its experts have a capacity":
            spread_logits_(model)
        compiled = compile_as_on_gpu(model.eval(), x)
        assert reason in str(compiled.plan), reason
        assert feed_forwards(compiled) == []
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_experts_without_a_capacity_are_found(compile_as_on_gpu: Compile) -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), dg.nn.Switch(20, 4, 32, top_k=2), nn.Linear(20, 5)).eval()
    spread_logits_(model)
    x = torch.randn(64, 20)
    compiled = compile_as_on_gpu(model, x)
    assert len(feed_forwards(compiled)) == 1
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
