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
from dynamicgate.inference import check
from dynamicgate.inference.cpu.candidates import GateInTorch
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.choose import Forms
from dynamicgate.inference.cpu.find import find_paths, look, trace
from dynamicgate.inference.cpu.lower import gate_net, lower
from tests.inference.models import Block, Branching, Residual, assert_same, gated, quick, scatter, undecided


def mixed(model: nn.Module, x: Tensor) -> dg.inference.CompiledModel:
    """A plan that uses another form for each of three regimes, whatever is fastest here."""
    fast = quick(model, x)
    graph = trace(model)
    look(model, graph, x)
    (path,), _ = find_paths(model, graph, dg.named_gates(model))
    forms = Forms(lower(path, dg.named_gates(model)))
    packed = forms.name_of([("panels", False)] * len(path.linears))
    chain = Chain([forms.get(name) for name in ("dense", "own dense", packed)], [2, 1, 0], [1, 16, 256], 20)
    return dg.inference.CompiledModel(chain, fast.plan, fast.nodes)


@pytest.fixture
def model() -> nn.Module:
    return gated(dg.GateConfig(block=16))


def test_inputs_may_have_any_number_of_dimensions(model: nn.Module) -> None:
    x = torch.randn(24, 20)
    fast = quick(model, x)
    y = fast(x)
    assert torch.equal(fast(x.reshape(2, 3, 4, 20)), y.reshape(2, 3, 4, 5))
    torch.testing.assert_close(fast(x[0]), y[0], rtol=1e-4, atol=1e-5)


def test_inputs_need_not_be_contiguous(model: nn.Module) -> None:
    x = torch.randn(24, 20)
    for fast in (quick(model, x), mixed(model, x)):
        assert torch.equal(fast(torch.stack((x, x), dim=1)[:, 0]), fast(x))
        torch.testing.assert_close(fast(x.T.contiguous().T), fast(x))
        torch.testing.assert_close(fast(torch.stack((x, x), dim=-1)[..., 0]), fast(x))


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 64, 65, 300])
def test_every_regime_gives_the_hard_models_outputs(model: nn.Module, rows: int) -> None:
    x = torch.randn(300, 20)
    assert_same(mixed(model, x), model, x[:rows], undecided(model, x[:rows]) if rows else None)


def test_a_batch_size_between_two_uses_the_nearer_one(model: nn.Module) -> None:
    chain = mixed(model, torch.randn(8, 20)).body
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
    fast = quick(model, torch.randn(8, 20))
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        fast(x)


@pytest.mark.parametrize(
    ("example", "batches", "words"),
    [
        (torch.zeros(20), (1,), "rows of features"),
        (torch.zeros(0, 20), (1,), "at least one, received"),
        ([1.0], (1,), "received list"),
        (torch.zeros(2, 20).double(), (1,), "or float32 on the cpu, received torch.float64"),
        (torch.zeros(2, 20), (), "ascending"),
        (torch.zeros(2, 20), (16, 1), "ascending"),
        (torch.zeros(2, 20), (0, 1), "at least 1"),
    ],
)
def test_wrong_arguments_get_a_sentence(
    model: nn.Module, example: Tensor, batches: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        dg.compile(model, example, batches=batches)


def test_a_plan_that_computes_something_else_is_refused(model: nn.Module) -> None:
    x = torch.randn(32, 20)
    for fast in (quick(model, x), mixed(model, x)):
        found = check(fast, model, x, batches=(1, 16, 256))
        assert found["error"] < 1e-5
        largest = max((b for b in fast.buffers() if b.is_floating_point()), key=Tensor.numel)
        largest.mul_(1.01)
        with pytest.raises(ValueError, match="does not compute what the model computes"):
            check(fast, model, x, batches=(1, 16, 256))


def test_a_plan_that_answers_with_nan_is_refused(model: nn.Module) -> None:
    x = torch.randn(32, 20)
    fast = quick(model, x)
    for buffer in fast.buffers():
        if buffer.is_floating_point():
            buffer.fill_(torch.nan)
    with pytest.raises(ValueError, match="refused"):
        check(fast, model, x)


def test_rows_at_a_threshold_are_counted_and_not_refused() -> None:
    model = gated(dg.GateConfig(net="linear", block=16, tau=1.0, theta=0.5))
    with torch.no_grad():  # exactly at the threshold for every row whose first feature is zero
        gate = dg.named_gates(model)["layers.1"]
        gate.net.weight.zero_()
        gate.net.weight[:, 0] = 1.0
        gate.net.bias.zero_()
    x = torch.randn(64, 20)
    x[:10, 0] = 0.0
    fast = quick(model, x, batches=(64,))
    assert fast.plan.checked["ties"] >= 10
    assert fast.plan.checked["rows"] >= 60
    assert f"{fast.plan.checked['ties']:.0f} at a threshold left out" in str(fast.plan)


def test_eight_threads_get_the_same_outputs(model: nn.Module) -> None:
    x = torch.randn(300, 20)
    sizes = [1, 7, 16, 64, 300]
    dense = Residual()
    scatter(dg.gate_(dense, dg.GateConfig(block=8, reads="same")))
    for fast in (mixed(model, x), quick(dense.eval(), x)):
        want = {rows: fast(x[:rows]) for rows in sizes}
        with ThreadPoolExecutor(8) as pool:
            jobs = [(rows, pool.submit(fast, x[:rows])) for rows in sizes * 40]
            assert all(torch.equal(job.result(), want[rows]) for rows, job in jobs)


def test_the_same_input_gives_the_same_bits(model: nn.Module) -> None:
    x = torch.randn(64, 20)
    fast = mixed(model, x)
    assert all(torch.equal(fast(x), fast(x)) for _ in range(5))


def test_a_copy_stands_on_its_own(model: nn.Module) -> None:
    x = torch.randn(64, 20)
    for fast in (quick(model, x), mixed(model, x)):
        y = fast(x)
        twin = copy.deepcopy(fast).float()
        for buffer in fast.buffers():
            buffer.zero_()
        assert torch.equal(twin(x), y)


def test_a_file_brings_back_the_same_bits_and_the_plan(model: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(300, 20)
    experts = dg.nn.SwitchMLP(20, 24, 6, 16, 5, top_k=2, capacity=None, normalize=dg.nn.Normalize(0.1, 2.0)).eval()
    norm = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    for fast, into in (
        (quick(model, x), None),
        (mixed(model, x), None),
        (quick(gated(dg.GateConfig(block=4, top_k=2, scale=True)), x), None),
        (mixed(gated(dg.GateConfig(block=4, theta=0.6, soft_width=1.3)), x), None),
        (quick(norm, x.relu()), None),
        (quick(experts, x), experts),
    ):
        fast.save(tmp_path / "fast.safetensors")
        back = dg.inference.CompiledModel.load(tmp_path / "fast.safetensors", into=into)
        for rows in (0, 1, 16, 300):
            assert torch.equal(back(x[:rows]), fast(x[:rows]))
        assert back.plan == fast.plan
        assert str(back.plan) == str(fast.plan)
    with safe_open(tmp_path / "fast.safetensors", "pt") as file:
        assert json.loads(file.metadata()["dynamicgate"])["kind"] == "plan"


def test_every_regime_of_gates_with_a_ramp_gives_the_hard_models_outputs() -> None:
    model, x = gated(dg.GateConfig(block=4, theta=0.6, soft_width=1.3)), torch.randn(300, 20)
    fast = mixed(model, x)
    for rows in (1, 16, 300):
        assert_same(fast, model, x[:rows])


def test_gates_of_plans_from_before_there_were_ramps_are_built() -> None:
    net = gate_net(dg.named_gates(gated(dg.GateConfig(block=4, soft_width=0.8, tau=0.5)))["layers.1"])
    gate = GateInTorch(net)
    about = json.loads(json.dumps(gate.describe()))
    assert GateInTorch.built(about, gate.state_dict()).soft_width == pytest.approx(0.4)
    del about["soft_width"]
    assert GateInTorch.built(about, gate.state_dict()).soft_width is None


def test_a_partly_compiled_model_is_loaded_into_an_instance(tmp_path: Path) -> None:
    model, x = Residual().eval(), torch.randn(64, 20)
    fast = quick(model, x)
    fast.save(tmp_path / "fast.safetensors")
    with pytest.raises(ValueError, match="pass an instance"):
        dg.inference.CompiledModel.load(tmp_path / "fast.safetensors")
    other = Residual().eval()
    before = copy.deepcopy(other.state_dict())
    back = dg.inference.CompiledModel.load(tmp_path / "fast.safetensors", into=other)
    assert torch.equal(back(x), fast(x))
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())
    with pytest.raises(ValueError, match="made for another model"):
        dg.inference.CompiledModel.load(tmp_path / "fast.safetensors", into=nn.Sequential(nn.Linear(20, 5)))


def test_a_model_file_is_not_taken_for_a_plan(model: nn.Module, tmp_path: Path) -> None:
    dg.save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds a model, expected a plan"):
        dg.inference.CompiledModel.load(tmp_path / "model.safetensors")


def test_torch_compile_and_export_see_one_op(model: nn.Module) -> None:
    torch.compiler.reset()
    x = torch.randn(16, 20)
    fast = mixed(model, x)
    assert torch.equal(torch.compile(fast, backend="eager", fullgraph=True)(x[:1]), fast(x[:1]))
    exported = torch.export.export(fast, (x[:1],))
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert calls.count("dynamicgate.run_chain.default") == 1
    assert torch.equal(exported.module()(x[:1]), fast(x[:1]))


def test_experts_left_in_torch_keep_their_capacity() -> None:
    model = dg.nn.SwitchMLP(20, 24, 4, 16, 5, top_k=1, capacity=0.5).eval()
    x = torch.randn(64, 20)
    fast = quick(model, x)
    assert any("have a capacity" in note and "'switch.up', 'switch.down'" in note for note in fast.plan.notes)
    assert len(fast.plan.chains) == 2  # the layers before and behind them
    assert not bool(undecided(model, x).any())
    assert_same(fast, model, x)


def test_a_gate_that_reads_its_own_units_stays_in_torch_and_the_plan_says_so() -> None:
    model = gated(dg.GateConfig(block=16, reads="same"), (20, 48, 5))
    x = torch.randn(64, 20)
    fast = quick(model, x)
    assert any("'layers.0', 'layers.1' in torch as before" in n or "reads='same'" in n for n in fast.plan.notes)
    assert_same(fast, model, x, undecided(model, x))


def test_gates_on_input_features_stay_in_torch_and_the_plan_says_so() -> None:
    model = gated(dg.GateConfig(net="linear", block=4), where=dg.where.everywhere)
    x = torch.randn(64, 20)
    fast = quick(model, x)
    assert any("decides about input features" in note for note in fast.plan.notes)
    assert_same(fast, model, x, undecided(model, x))


def test_a_residual_model_is_compiled_in_parts() -> None:
    model = Residual()
    scatter(dg.gate_(model, dg.GateConfig(block=16)))
    x = torch.randn(64, 20)
    fast = quick(model.eval(), x)
    assert [[row.name for row in chain[0].layers] for chain in fast.plan.chains] == [["up", "down"], ["head"]]
    assert_same(fast, model, x, undecided(model, x))


def test_the_gated_mlp_of_a_transformer_block_is_compiled() -> None:
    model = Block()
    scatter(dg.gate_(model, dg.GateConfig(block=16), where="mlp.*"))
    x = torch.randn(12, 5, 16)
    fast = quick(model.eval(), x)
    assert [[row.name for row in chain[0].layers] for chain in fast.plan.chains] == [["mlp.0", "mlp.2"]]
    with torch.inference_mode():
        assert_same(fast, model, x, undecided(model, x))


def test_a_model_with_two_outputs_gets_a_sentence() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(ValueError, match="must return one tensor, received tuple"):
        dg.compile(Two(), torch.randn(8, 20))


def test_a_model_that_cannot_be_traced_is_kept_and_the_plan_says_so(tmp_path: Path) -> None:
    model, x = Branching().eval(), torch.randn(64, 20)
    fast = quick(model, x)
    assert fast.plan.chains == []
    assert "runs in torch as it is: its forward pass cannot be traced" in str(fast.plan)
    assert_same(fast, model, x)
    fast.save(tmp_path / "fast.safetensors")
    assert torch.equal(dg.inference.CompiledModel.load(tmp_path / "fast.safetensors", into=Branching())(x), fast(x))


def test_what_a_chain_cannot_do_stays_in_torch() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    shared, hooked = nn.Linear(16, 16), nn.Linear(16, 16)
    hooked.register_forward_hook(lambda _m, _a, out: out + 1)
    model = nn.Sequential(
        nn.Linear(20, 16), nn.ELU(), shared, nn.ReLU(), shared, nn.LayerNorm(16), Doubled(16, 16), nn.ReLU(), nn.ReLU(),
        hooked, nn.Sigmoid(), nn.Linear(16, 5),
    ).eval()  # fmt: skip
    x = torch.randn(32, 20)
    fast = quick(model, x)
    assert [[row.name for row in chain[0].layers] for chain in fast.plan.chains] == [["0"], ["11"]]
    assert_same(fast, model, x)


def test_images_are_flattened_before_the_chain() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU("tanh"), nn.Linear(32, 5)).eval()
    x = torch.randn(32, 1, 8, 8)
    assert_same(quick(model, x), model, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_that_cannot_read_the_example_gets_a_sentence(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 5))
    with pytest.raises(ValueError, match="the model cannot read the example"):
        dg.compile(model, torch.randn(8, 19))
    with pytest.raises(ValueError, match="the model cannot read the example"):
        dg.compile(model.to(dtype), torch.randn(8, 20))


def test_without_kernels_the_outputs_are_the_same(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from dynamicgate import ops

    x = torch.randn(64, 20)
    monkeypatch.setattr(ops.chain, "run", partial(ops.chain.run, backend="torch"))
    fast = quick(model, x)
    assert_same(fast, model, x, undecided(model, x))
    assert_same(mixed(model, x), model, x, undecided(model, x))
