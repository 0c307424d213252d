"""The chain op inside torch: one node, a fake kernel, errors that name the mistake, and a backend that is logged."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest
import torch

from dynamicgate.ops import chain, native
from tests.ops.chains import Sketch, build, inputs_for
from tests.places import ROOT

LAYERS = build(12, [Sketch(40, block=16), Sketch(3)], seed=1)
GIVEN = build(12, [Sketch(40, block=16, given=True), Sketch(3)], seed=1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights, program, self.outputs = chain.pack(LAYERS)
        self.register_buffer("weights", weights)
        self.register_buffer("program", program)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return chain.run(x, chain.Packed(self.weights, self.program, self.outputs)) + 1.0


@pytest.mark.parametrize("layers", [LAYERS, GIVEN])
def test_opcheck_finds_nothing(layers: list[chain.Layer]) -> None:
    packed = chain.pack(layers)
    x, factor = inputs_for(layers, 5, seed=1)
    torch.library.opcheck(torch.ops.dynamicgate.run_chain.default, (x, packed.weights, packed.program, factor, 3))


def test_export_sees_one_node_for_the_whole_chain() -> None:
    x = torch.randn(5, 12)
    net = Net()
    rows = torch.export.Dim("rows", min=2, max=100)
    exported = torch.export.export(net, (x,), dynamic_shapes={"x": {0: rows}})
    called = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.dynamicgate.run_chain.default, torch.ops.aten.add.Tensor]
    torch.testing.assert_close(exported.module()(x[:3]), net(x[:3]))


def test_compile_keeps_the_graph_whole() -> None:
    x = torch.randn(5, 12)
    net = Net()
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x))


@pytest.mark.parametrize("backend", [None, "torch"])
def test_mistakes_of_the_caller_raise_errors_that_name_them(backend: str | None) -> None:
    packed, given = chain.pack(LAYERS), chain.pack(GIVEN)
    with pytest.raises(ValueError, match="12 features"):
        chain.run(torch.zeros(2, 11), packed, backend=backend)
    with pytest.raises(ValueError, match="needs factor"):
        chain.run(torch.zeros(2, 12), given, backend=backend)
    with pytest.raises(ValueError, match="needs factor"):
        chain.run(torch.zeros(2, 12), packed, torch.ones(2, 3), backend=backend)
    with pytest.raises(ValueError, match="needs factor"):
        chain.run(torch.zeros(2, 12), given, torch.ones(2, 4), backend=backend)
    with pytest.raises(ValueError, match="same call of pack"):
        chain.run(torch.zeros(2, 12), packed._replace(weights=packed.weights[:-16]), backend=backend)
    with pytest.raises(ValueError, match="float32"):
        chain.run(torch.zeros(2, 12, dtype=torch.float64), packed, backend=backend)


def test_the_backend_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    native.backend.cache_clear()
    with caplog.at_level(logging.INFO, logger="dynamicgate"):
        assert native.backend() == native.backend()
    assert [record.message for record in caplog.records] == [f"ops run on {native.backend()}"]


def test_without_the_library_torch_gives_the_same_result() -> None:
    x, factor = inputs_for(GIVEN, 5, seed=1)
    script = """
        import pathlib, torch
        hidden = pathlib.Path.glob
        pathlib.Path.glob = lambda self, pattern: [] if "_kernels" in str(pattern) else hidden(self, pattern)
        from dynamicgate.ops import backend, chain
        from tests.ops.chains import Sketch, build, inputs_for
        layers = build(12, [Sketch(40, block=16, given=True), Sketch(3)], seed=1)
        x, factor = inputs_for(layers, 5, seed=1)
        packed = chain.pack(layers)
        assert backend() == "torch", backend()
        print(torch.ops.dynamicgate.run_chain.default(x, packed.weights, packed.program, factor, 3).tolist())
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "no compiled kernels" in found.stderr
    assert found.returncode == 0, found.stderr
    torch.testing.assert_close(torch.tensor(eval(found.stdout)), chain.run(x, chain.pack(GIVEN), factor))
