"""The feed-forward layer on a CUDA GPU: the kernels match the dense layer, in outputs, gradients and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from tests.nn.test_ffn import SHAPES, outputs_and_gradients
from tests.training.easy import blobs

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
CLOSE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}


def large(**options: Any) -> dg.nn.FFN:
    torch.manual_seed(0)
    layer = dg.nn.FFN(256, 1024, 192, kernels="always", **options)
    dg.gate_(layer, dg.GateConfig(block=64, open=0.5, net="linear"), where="down")
    return layer.cuda()


def relative(mine: Tensor, theirs: Tensor) -> float:
    mine, theirs = mine.detach().double(), theirs.detach().double()
    return float((mine - theirs).norm() / theirs.norm().clamp(min=1e-9))


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("shape", ["relu", "swiglu"])
@pytest.mark.parametrize("rows", [1, 77, 1024])
class TestOnTheGpu:
    pytestmark = gpu

    def test_the_kernels_match_the_dense_layer(self, rows: int, shape: str, dtype: torch.dtype) -> None:
        options = {key: v for key, v in SHAPES[shape].items() if key != "outputs"}
        layer = large(**options).to(dtype)
        layer.down.gate.tau.data, layer.down.gate.theta.data = (
            t.float() for t in (layer.down.gate.tau, layer.down.gate.theta)
        )
        x = torch.randn(rows, 256, device="cuda", dtype=dtype)
        assert layer._gate_for_kernels(x) is not None
        mine, found = outputs_and_gradients(layer, x)
        layer.kernels = "never"
        y, gradients = outputs_and_gradients(layer, x)
        assert relative(mine, y) < CLOSE[dtype]
        for name, gradient in gradients.items():
            assert relative(found[name], gradient) < 3 * CLOSE[dtype], name


class TestTrainingOnTheGpu:
    pytestmark = gpu

    def test_autocast_runs_the_kernels_in_bfloat16(self) -> None:
        layer = large(activation="gelu")
        x = torch.randn(500, 256, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            assert layer._gate_for_kernels(x) is not None
            mine = layer(x)
            layer.kernels = "never"
            y = layer(x)
        assert mine.dtype is torch.bfloat16
        assert relative(mine, y) < 2e-2

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning")
    def test_torch_compile_trains_through_the_kernels(self) -> None:
        from torch._inductor.compile_fx import compile_fx

        torch.compiler.reset()
        layer = large()
        x = torch.randn(300, 256, device="cuda")
        y, gradients = outputs_and_gradients(layer, x)
        ops: list[str] = []

        def inductor(module: torch.fx.GraphModule, inputs: Any) -> Any:
            ops.extend(str(node.target) for node in module.graph.nodes)
            return compile_fx(module, inputs)

        compiled = torch.compile(layer, fullgraph=True, backend=inductor)
        out, mine = outputs_and_gradients(compiled, x)  # type: ignore[arg-type]
        assert sum("dynamicgate.ffn" in op for op in ops) == 1  # not computed densely because a hook is not recognised
        assert relative(out, y) < 1e-4
        for name, gradient in gradients.items():
            assert relative(mine[name if name == "x" else f"_orig_mod.{name}"], gradient) < 1e-3, name

    def test_fit_holds_the_budget_on_the_kernels(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(dg.nn.FFN(8, 256, 16, kernels="always"), nn.ReLU(), nn.Linear(16, 3))
        dg.gate_(model, dg.GateConfig(block=32), where="0.down")
        dg.fit(model, blobs(), budget=dg.Budget(target=0.5), epochs=12, batch=24, lr=1e-2, device="cuda", show=False)
        assert abs(dg.measure(model, blobs(seed=1)).macs["relative"] - 0.5) <= 0.05

    def test_experts_on_the_kernels_match_the_dense_experts(self) -> None:
        switch = dg.nn.Switch(64, 8, 128, 2, 0.8, kernels="always")
        nn.init.normal_(switch.down.gate.net.weight)
        switch = switch.cuda()
        x = torch.randn(600, 64, device="cuda")
        assert switch._gate_for_kernels(x) is not None
        mine, found = outputs_and_gradients(switch, x)
        switch.kernels = "never"
        y, gradients = outputs_and_gradients(switch, x)
        assert relative(mine, y) < 1e-4
        for name, gradient in gradients.items():
            assert relative(found[name], gradient) < 1e-3, name
