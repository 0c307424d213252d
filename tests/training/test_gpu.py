"""Training on a CUDA GPU. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import dynamicgate as dg

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def data(rows: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0))
    return x, x[:, :4].argmax(1)


def network() -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP((64, 130, 66, 4), dg.GateConfig(block=4, rank=2), dropout=0.1)


def test_training_on_the_gpu_meets_the_budget_and_the_measurement_agrees_with_the_cpu(tmp_path: Path) -> None:
    x, y = data()
    model = network()
    dg.fit(model, (x, y), budget=dg.Budget(target=0.4), epochs=20, device="cuda", show=False, out=tmp_path)
    assert next(model.parameters()).is_cuda
    on_gpu = dg.measure(model, (x, y))
    assert abs(on_gpu.macs["relative"] - 0.4) <= 0.01
    dg.save(model, tmp_path / "model.safetensors")
    on_cpu = dg.measure(dg.load(tmp_path / "model.safetensors"), (x, y))
    assert on_gpu.macs["relative"] == pytest.approx(on_cpu.macs["relative"], abs=2e-3)  # a logit may flip
    assert on_gpu.quality["accuracy"] == pytest.approx(on_cpu.quality["accuracy"], abs=5e-3)


def test_an_ffn_trained_with_the_kernels_gives_the_same_results_on_the_cpu(tmp_path: Path) -> None:
    x, y = data()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        dg.nn.FFN(64, 512, 32, activation="gelu", kernels="always"), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )
    dg.gate_(model, dg.GateConfig(block=64), where="0.down")
    dg.fit(model, (x, y), budget=dg.Budget(target=0.4), epochs=20, device="cuda", show=False, out=tmp_path)
    assert model[0]._gate_for_kernels(x.cuda()) is not None
    on_gpu = dg.measure(model, (x, y))
    assert abs(on_gpu.macs["relative"] - 0.4) <= 0.02
    dg.save(model, tmp_path / "model.safetensors")
    on_cpu = dg.measure(dg.load(tmp_path / "model.safetensors"), (x, y))
    assert on_gpu.macs["relative"] == pytest.approx(on_cpu.macs["relative"], abs=2e-3)  # a logit may flip
    assert on_gpu.quality["accuracy"] == pytest.approx(on_cpu.quality["accuracy"], abs=5e-3)


def test_an_interrupted_run_on_the_gpu_continues_bit_for_bit(tmp_path: Path) -> None:
    x, y = data(500)
    whole = network()
    dg.fit(whole, (x, y), budget=dg.Budget(target=0.5), epochs=3, device="cuda", show=False)

    class StopError(Exception):
        pass

    def stop(_module: object, _args: object) -> None:
        calls.append(1)
        if len(calls) == 8:
            raise StopError

    calls: list[int] = []
    first = network()
    handle = first.layers[0].register_forward_pre_hook(stop)
    arguments = {"epochs": 3, "device": "cuda", "show": False, "out": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        dg.fit(first, (x, y), budget=dg.Budget(target=0.5), **arguments)
    handle.remove()
    second = network()
    dg.fit(second, (x, y), budget=dg.Budget(target=0.5), **arguments)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning", "ignore:TensorFloat32:UserWarning")
def test_compiled_and_eager_agree_on_the_gpu_with_gradients() -> None:
    x, y = (t.cuda() for t in data(256))
    eager = network().cuda().eval()
    gradients = []
    for forward in (eager, torch.compile(eager, fullgraph=True)):
        eager.zero_grad()
        with dg.usage(eager) as used:
            loss = F.cross_entropy(forward(x), y)
        (loss + used["layers.1"].p.mean()).backward()
        gradients.append({name: p.grad.clone() for name, p in eager.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_bfloat16_autocast_trains_on_the_gpu() -> None:
    x, y = data()
    model = network()
    history = dg.fit(model, (x, y), budget=dg.Budget(target=0.5), epochs=10, device="cuda", bf16=True, show=False)
    assert history.log[-1]["loss"] < history.log[0]["loss"]


@pytest.mark.parametrize("pattern", ["unstructured", "16x1"])
def test_gates_and_rigl_train_together_on_the_gpu(tmp_path: Path, pattern: str) -> None:
    x, y = data()
    model = network()
    sparsifier = dg.RigL(model, 0.4, pattern=pattern, every=20)
    counts = [layer.count for layer in sparsifier.layers]
    budget = dg.Budget(target=0.3)
    history = dg.fit(
        model,
        (x, y),
        budget=budget,
        sparsifier=sparsifier,
        epochs=20,
        device="cuda",
        bf16=True,
        show=False,
        out=tmp_path,
    )
    assert [layer.count for layer in sparsifier.layers] == counts
    assert sparsifier.updates > 5
    assert all(not layer.weight[~layer.mask].any() for layer in sparsifier.layers)
    assert history.log[-1]["sparsity"]["layers.0"]["explored"] > 0.45
    assert abs(dg.measure(model, (x, y)).macs["relative"] - 0.3) <= 0.01


def test_masks_do_not_depend_on_the_device() -> None:
    masks = []
    for device in ("cpu", "cuda"):
        model = network().to(device)
        masks.append([layer.mask.cpu() for layer in dg.sparsity.SET(model, 0.2, seed=3).layers])
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))
