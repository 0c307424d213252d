"""A compiled model as a module: inputs it takes and refuses, threads, files, torch.compile and torch.export."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.cpu.chain import Chain
from tests.inference.models import (
    Residual,
    assert_same_outputs,
    compile_quickly,
    gated_mlp,
    rows_near_threshold,
    spread_logits_,
    with_three_implementations,
)


@pytest.fixture
def model() -> nn.Module:
    return gated_mlp(dg.GateConfig(block=16))


def test_inputs_may_have_any_number_of_dimensions(model: nn.Module) -> None:
    x = torch.randn(24, 20)
    compiled = compile_quickly(model, x)
    y = compiled(x)
    assert torch.equal(compiled(x.reshape(2, 3, 4, 20)), y.reshape(2, 3, 4, 5))
    torch.testing.assert_close(compiled(x[0]), y[0], rtol=1e-4, atol=1e-5)


def test_inputs_need_not_be_contiguous(model: nn.Module) -> None:
    x = torch.randn(24, 20)
    for compiled in (compile_quickly(model, x), with_three_implementations(model, x)):
        assert torch.equal(compiled(torch.stack((x, x), dim=1)[:, 0]), compiled(x))
        torch.testing.assert_close(compiled(x.T.contiguous().T), compiled(x))
        torch.testing.assert_close(compiled(torch.stack((x, x), dim=-1)[..., 0]), compiled(x))


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 64, 65, 300])
def test_every_implementation_gives_the_models_outputs(model: nn.Module, rows: int) -> None:
    x = torch.randn(300, 20)
    near = rows_near_threshold(model, x[:rows]) if rows else None
    assert_same_outputs(with_three_implementations(model, x), model, x[:rows], near)


def test_every_implementation_of_gates_with_a_soft_width_gives_the_models_outputs() -> None:
    model, x = gated_mlp(dg.GateConfig(block=4, theta=0.6, soft_width=1.3)), torch.randn(300, 20)
    compiled = with_three_implementations(model, x)
    for rows in (1, 16, 300):
        assert_same_outputs(compiled, model, x[:rows])


def test_a_batch_size_between_two_uses_the_nearer_one(model: nn.Module) -> None:
    chain = with_three_implementations(model, torch.randn(8, 20)).body
    assert isinstance(chain, Chain)
    found = {rows: chain.batches[chain.regime_of(torch.empty(rows, 20))] for rows in (0, 1, 4, 5, 16, 64, 65, 9999)}
    assert found == {0: 1, 1: 1, 4: 1, 5: 16, 16: 16, 64: 16, 65: 256, 9999: 256}


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 19), "20 features in the last dimension, received torch.float32 on cpu of shape (3, 19)"),
        (torch.zeros(3, 20, dtype=torch.float64), "expected float32 on the cpu"),
        (torch.zeros(3, 20, dtype=torch.int64), "expected float32 on the cpu"),
        (torch.zeros(3, 20, device="meta"), "received torch.float32 on meta"),
        (torch.zeros(()), "received torch.float32 on cpu of shape ()"),
    ],
)
def test_wrong_inputs_get_a_sentence(model: nn.Module, x: Tensor, words: str) -> None:
    compiled = compile_quickly(model, torch.randn(8, 20))
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        compiled(x)


def test_eight_threads_get_the_same_outputs(model: nn.Module) -> None:
    x = torch.randn(300, 20)
    sizes = [1, 7, 16, 64, 300]
    in_torch = Residual()
    spread_logits_(dg.gate_(in_torch, dg.GateConfig(block=8, reads="same")))
    for compiled in (with_three_implementations(model, x), compile_quickly(in_torch.eval(), x)):
        want = {rows: compiled(x[:rows]) for rows in sizes}
        with ThreadPoolExecutor(8) as pool:
            jobs = [(rows, pool.submit(compiled, x[:rows])) for rows in sizes * 40]
            assert all(torch.equal(job.result(), want[rows]) for rows, job in jobs)


def test_the_same_input_gives_the_same_bits(model: nn.Module) -> None:
    x = torch.randn(64, 20)
    compiled = with_three_implementations(model, x)
    assert all(torch.equal(compiled(x), compiled(x)) for _ in range(5))


def test_a_copy_shares_no_memory(model: nn.Module) -> None:
    x = torch.randn(64, 20)
    for compiled in (compile_quickly(model, x), with_three_implementations(model, x)):
        y = compiled(x)
        copied = copy.deepcopy(compiled).float()
        for buffer in compiled.buffers():
            buffer.zero_()
        assert torch.equal(copied(x), y)


@pytest.mark.slow
def test_a_file_brings_back_the_same_bits_and_the_plan(model: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(300, 20)
    experts = dg.nn.SwitchMLP(20, 24, 6, 16, 5, top_k=2, capacity=None, normalize=dg.nn.Normalize(0.1, 2.0)).eval()
    norm = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    for compiled, into in (
        (compile_quickly(model, x), None),
        (with_three_implementations(model, x), None),
        (compile_quickly(gated_mlp(dg.GateConfig(block=4, top_k=2, scale=True)), x), None),
        (with_three_implementations(gated_mlp(dg.GateConfig(block=4, theta=0.6, soft_width=1.3)), x), None),
        (compile_quickly(norm, x.relu()), None),
        (compile_quickly(experts, x), experts),
    ):
        compiled.save(tmp_path / "compiled.safetensors")
        loaded = CompiledModel.load(tmp_path / "compiled.safetensors", into=into)
        for rows in (0, 1, 16, 300):
            assert torch.equal(loaded(x[:rows]), compiled(x[:rows]))
        assert loaded.plan == compiled.plan
        assert str(loaded.plan) == str(compiled.plan)
    with safe_open(tmp_path / "compiled.safetensors", "pt") as file:
        assert json.loads(file.metadata()["dynamicgate"].partition("\n")[0])["kind"] == "compiled model"


def test_a_partly_compiled_model_is_loaded_into_an_instance(tmp_path: Path) -> None:
    model, x = Residual().eval(), torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    compiled.save(tmp_path / "compiled.safetensors")
    with pytest.raises(ValueError, match="pass an instance"):
        CompiledModel.load(tmp_path / "compiled.safetensors")
    other = Residual().eval()
    before = copy.deepcopy(other.state_dict())
    loaded = CompiledModel.load(tmp_path / "compiled.safetensors", into=other)
    assert torch.equal(loaded(x), compiled(x))
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())
    with pytest.raises(ValueError, match="made for another model"):
        CompiledModel.load(tmp_path / "compiled.safetensors", into=nn.Sequential(nn.Linear(20, 5)))


def test_a_model_file_is_not_taken_for_a_compiled_model(model: nn.Module, tmp_path: Path) -> None:
    dg.save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds a model, expected a compiled model"):
        CompiledModel.load(tmp_path / "model.safetensors")


def test_torch_compile_and_export_see_one_op(model: nn.Module) -> None:
    torch.compiler.reset()
    x = torch.randn(16, 20)
    compiled = with_three_implementations(model, x)
    assert torch.equal(torch.compile(compiled, backend="eager", fullgraph=True)(x[:1]), compiled(x[:1]))
    exported = torch.export.export(compiled, (x[:1],))
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert calls.count("dynamicgate.run_chain.default") == 1
    assert torch.equal(exported.module()(x[:1]), compiled(x[:1]))
