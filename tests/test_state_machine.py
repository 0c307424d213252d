"""Any order of gating, ungating, making sparse, copying, saving, loading and compiling leaves a model that is what it
should be: the weights it had, the gates it was given, and the same outputs wherever it went."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg

SITES = ("2", "4")
CONFIGS: tuple[dict[str, Any], ...] = (
    {"block": 1},
    {"block": 4, "net": "two-layer", "rank": 2},
    {"block": 5, "top_k": 2},
    {"kind": "static", "block": 4},
    {"block": 4, "scale": True, "always_open": 1},
    {"kind": "router", "block": 8},
)
X = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))


class Models(RuleBasedStateMachine):
    """One model, and what is known about it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 5)
        ).eval()
        self.gates: dict[str, dict[str, Any]] = {}
        self.sparse = False

    @rule(site=st.sampled_from(SITES), config=st.sampled_from(CONFIGS), seed=st.integers(0, 99))
    def gate(self, site: str, config: dict[str, Any], seed: int) -> None:
        if site in self.gates:
            before = self._outputs()
            try:
                dg.gate_(self.model, dg.GateConfig(**config), where=[site])
            except ValueError as error:
                assert "already has a gate" in str(error)  # noqa: PT017
            else:
                raise AssertionError("a second gate was accepted")
            assert torch.equal(self._outputs(), before)
            return
        dg.gate_(self.model, dg.GateConfig(**config), where=[site])
        generator = torch.Generator().manual_seed(seed)
        for parameter in dg.named_gates(self.model)[site].net.parameters():
            parameter.data.normal_(generator=generator)
        self.gates[site] = config

    @precondition(lambda self: self.gates)
    @rule(data=st.data())
    def ungate(self, data: st.DataObject) -> None:
        site = data.draw(st.sampled_from(sorted(self.gates)))
        dg.ungate_(self.model, [site])
        del self.gates[site]

    @precondition(lambda self: not self.sparse and not self.gates)
    @rule()
    def sparsify(self) -> None:
        dg.sparsify_(self.model, macs=0.6, show=False)
        self.sparse = True

    @rule()
    def copy_it(self) -> None:
        self._replace(copy.deepcopy(self.model))

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            dg.save(self.model, Path(folder) / "m.safetensors")
            self._replace(dg.load(Path(folder) / "m.safetensors"))

    @rule()
    def compile_it(self) -> None:
        before = self._outputs()
        fast = dg.compile(self.model, X, seconds=0.01, batches=(1, 16))
        assert fast.plan.verification is not None
        assert fast.plan.verification.error < 1e-4
        assert torch.equal(self._outputs(), before), "compiling changed the model"

    @invariant()
    def it_has_the_gates_it_was_given(self) -> None:
        found = dg.named_gates(self.model)
        assert found.keys() == self.gates.keys()
        for site, config in self.gates.items():
            assert all(getattr(found[site].config, name) == value for name, value in config.items())

    @invariant()
    def without_gates_it_is_the_plain_network(self) -> None:
        if self.gates:
            return
        layers: Any = self.model
        h = F.relu(F.linear(X, layers[0].weight, layers[0].bias))
        h = F.gelu(F.linear(h, layers[2].weight, layers[2].bias))
        assert torch.equal(self._outputs(), F.linear(h, layers[4].weight, layers[4].bias))

    @invariant()
    def weights_without_a_connection_are_zero(self) -> None:
        for module in self.model.modules():
            if isinstance(module, nn.Linear) and hasattr(module, "mask"):
                assert not module.weight[~module.mask].any()

    def _replace(self, other: nn.Module) -> None:
        before = self._outputs()
        self.model = other.eval()
        assert torch.equal(self._outputs(), before)

    @torch.no_grad()
    def _outputs(self) -> torch.Tensor:
        return self.model(X)  # type: ignore[no-any-return]


TestModels = Models.TestCase
TestModels.settings = settings(
    max_examples=8, stateful_step_count=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
