"""Saving and loading a model: one file, no pickle, the same bits back, and clear errors for anything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig, load, named_gates, save
from dynamicgate.io.model_file import read_notes
from dynamicgate.io.tensor_file import read_tensors
from dynamicgate.masks import pattern_of, put_mask_
from dynamicgate.nn import GatedMLP, Normalize


class OwnModel(nn.Module):
    """A class that the file cannot describe."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


class Twice(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def perturbed(model: nn.Module) -> nn.Module:
    """Every tensor moved away from its initial value, as training does."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("tau"):
                tensor.fill_(0.7)
            elif name.endswith("theta"):
                tensor.fill_(0.55)
            elif name.endswith(("std", "running_var")):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            elif tensor.is_floating_point():
                tensor.add_(0.3 * torch.randn_like(tensor))
    return model.eval()


def masked() -> nn.Module:
    model = sequential()
    for index in (0, 2):
        model[index].register_buffer("mask", torch.rand_like(model[index].weight) < 0.5)
        model[index].weight.data *= model[index].mask
    return dg.gate_(model, GateConfig(block=2))


def reused() -> nn.Module:
    layer, activation = nn.Linear(6, 6), nn.ReLU()
    return nn.Sequential(layer, activation, layer, activation, nn.Linear(6, 3))


def tied_weights() -> nn.Module:
    model = sequential()
    model[2] = nn.Linear(8, 8)
    model[4] = nn.Linear(8, 8)
    model[4].weight = model[2].weight
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a gated MLP": lambda: GatedMLP((6, 9, 7, 3), GateConfig(block=2, open=0.6), dropout=0.1, activation="gelu"),
    "normalised by feature": lambda: GatedMLP((6, 9, 3), normalize=Normalize(torch.randn(6), torch.rand(6) + 0.5)),
    "with a soft width": lambda: GatedMLP((6, 9, 3), GateConfig(soft_width=0.7)),
    "normalised by one constant": lambda: GatedMLP((6, 9, 3), GateConfig(kind="static"), normalize=Normalize(0.1, 0.3)),
    "with gates everywhere": lambda: GatedMLP(
        (6, 9, 3), GateConfig(net="two-layer", rank=3), where=dg.where.everywhere
    ),
    "a gated Sequential": lambda: dg.gate_(sequential(), GateConfig(net="low-rank", rank=2, scale=True, always_open=1)),
    "two kinds of gates": lambda: dg.gate_(
        dg.gate_(sequential(), GateConfig(kind="static"), where="2"), GateConfig(top_k=0.5, reads="same"), where="4"
    ),
    "layers of many kinds": lambda: nn.Sequential(
        Normalize(0.2, 0.9), nn.Flatten(), nn.Linear(6, 8), nn.LayerNorm(8, eps=0.1), nn.GELU("tanh"), nn.Dropout(0.4),
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.SiLU(), nn.Mish()), nn.Sigmoid(), nn.Identity(), nn.Linear(8, 3),
    ),
    "layers with arguments other than the defaults": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, eps=0.3, momentum=None), nn.ELU(2.0), nn.LayerNorm(8, bias=False),
        nn.Softplus(3.0, 5.0), nn.LayerNorm(8, elementwise_affine=False), nn.BatchNorm1d(8, affine=False),
    ),
    "masks": masked,
    "one layer": lambda: nn.Linear(6, 3),
    "two layers with tied weights": tied_weights,
    "one module used twice": reused,
    "half precision": lambda: dg.gate_(sequential(), GateConfig()).bfloat16(),
    "double precision": lambda: sequential().double(),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_equals_the_saved_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = perturbed(MODELS[name]())
    save(model, tmp_path / "model.safetensors")
    torch.manual_seed(123)
    back = load(tmp_path / "model.safetensors")
    x = torch.randn(16, 6).to(next(model.parameters()).dtype)
    assert torch.equal(back(x), model(x))
    before, after = model.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert [key for key in before if before[key].dtype != after[key].dtype] == []
    assert not any(module.training for module in back.modules())
    assert [p.requires_grad for p in back.parameters()] == [True] * len(list(back.parameters()))


@pytest.mark.parametrize("name", ["a gated MLP", "two kinds of gates", "a gated Sequential", "with gates everywhere"])
def test_loading_restores_the_site_config_tau_and_theta_of_every_gate(name: str, tmp_path: Path) -> None:
    model = perturbed(MODELS[name]())
    save(model, tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors")
    was, now = named_gates(model), named_gates(back)
    assert list(was) == list(now)
    for site, gate in was.items():
        assert now[site].site == gate.site
        assert now[site].config == gate.config
        assert float(now[site].tau) == pytest.approx(0.7)
        assert float(now[site].theta) == pytest.approx(0.55)
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    assert dg.measure(model, (x, y)) == dg.measure(back, (x, y))


def test_loading_restores_masks_as_bool_buffers(tmp_path: Path) -> None:
    model = perturbed(masked())
    save(model, tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors")
    assert back[0].mask.dtype == torch.bool
    assert torch.equal(back[0].mask, model[0].mask)
    assert "mask" in dict(back[0].named_buffers())
    x = torch.randn(40, 6)
    assert dg.measure(back, x).layers == dg.measure(model, x).layers


def test_loading_restores_the_pattern_of_each_mask(tmp_path: Path) -> None:
    model = sequential()
    put_mask_(model[0], torch.rand(4, 6).repeat_interleave(2, 0) < 0.5, "2x1")
    put_mask_(model[2], torch.rand(8, 8) < 0.5)
    save(model, tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors")
    assert [pattern_of(back[index]) for index in (0, 2, 4)] == ["2x1", "unstructured", "unstructured"]
    assert torch.equal(back[0].mask, model[0].mask)
    assert not hasattr(back[4], "mask")


def test_the_header_names_the_architecture_the_gates_and_the_masks(tmp_path: Path) -> None:
    model = dg.gate_(sequential(), GateConfig(block=2, soft_width=0.5), where="4")
    put_mask_(model[0], torch.ones(8, 6, dtype=torch.bool), "4x1")
    save(model, tmp_path / "model.safetensors", notes={"seed": 3})
    _, header = read_tensors(tmp_path / "model.safetensors", kind="model")
    assert header.keys() == {"format", "kind", "architecture", "gates", "masks", "notes"}
    assert header["architecture"]["kind"] == "Sequential"
    assert header["masks"] == {"0": {"pattern": "4x1"}}
    (gate,) = header["gates"]
    assert gate["site"] == {"consumer": "4", "producers": ["2"], "source": "2", "width": 8}
    assert gate["config"]["soft_width"] == 0.5


def test_a_loaded_model_can_be_trained_further(tmp_path: Path) -> None:
    save(perturbed(MODELS["a gated MLP"]()), tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors").train()
    assert back.dropout.p == 0.1
    back(torch.randn(5, 6)).sum().backward()
    assert all(p.grad is not None for p in back.parameters())


@pytest.mark.parametrize("make", [OwnModel, lambda: nn.Sequential(Twice(6, 3)), lambda: nn.Sequential(nn.LeakyReLU())])
def test_a_model_of_an_unknown_class_needs_an_instance_to_load_into(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model = perturbed(make())
    save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"your own class \S+: pass an instance with load\(path, into=model\)"):
        load(tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors", into=make())
    x = torch.randn(4, 6)
    assert torch.equal(back(x), model(x))


def test_gates_are_added_to_the_given_instance_unless_it_has_them(tmp_path: Path) -> None:
    model = perturbed(dg.gate_(OwnModel(), GateConfig(block=4, kind="static")))
    save(model, tmp_path / "model.safetensors")
    for instance in (OwnModel(), dg.gate_(OwnModel(), GateConfig(block=4, kind="static"))):
        back = load(tmp_path / "model.safetensors", into=instance)
        assert back is instance
        assert list(named_gates(back)) == ["second", "third"]
        x = torch.randn(4, 6)
        assert torch.equal(back(x), model(x))


def test_tied_weights_of_the_given_instance_stay_tied(tmp_path: Path) -> None:
    def tied_model() -> OwnModel:
        model = OwnModel()
        model.first = nn.Linear(6, 8)
        model.third = nn.Linear(8, 8)
        model.third.weight = model.second.weight
        return model

    model = perturbed(tied_model())
    save(model, tmp_path / "model.safetensors")
    back = load(tmp_path / "model.safetensors", into=tied_model())
    assert back.third.weight is back.second.weight
    x = torch.randn(4, 6)
    assert torch.equal(back(x), model(x))


def test_a_torch_compiled_model_is_saved_as_the_plain_one(tmp_path: Path) -> None:
    model = perturbed(sequential())
    save(torch.compile(model, backend="eager"), tmp_path / "model.safetensors")  # type: ignore[arg-type]
    assert torch.equal(load(tmp_path / "model.safetensors")[0].weight, model[0].weight)


def test_any_safetensors_reader_can_read_the_tensors(tmp_path: Path) -> None:
    model = perturbed(MODELS["a gated Sequential"]())
    save(model, tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == model.state_dict().keys()
    plain = sequential()
    plain.load_state_dict({name: value for name, value in tensors.items() if ".gate." not in name})
    assert torch.equal(plain[0].weight, model[0].weight)


def test_notes_are_saved_with_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(sequential(), path, notes={"data": "digits", "settings": {"seed": 3, "hidden": [1, 2]}})
    assert read_notes(path) == {"data": "digits", "settings": {"seed": 3, "hidden": [1, 2]}}
    save(sequential(), path)
    assert read_notes(path) == {}


def test_notes_that_are_no_json_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notes must be JSON values.*not JSON serializable"):
        save(sequential(), tmp_path / "model.safetensors", notes={"when": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_file_is_refused_by_name(fraction: float, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(sequential(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    for read in (load, read_notes):
        with pytest.raises(ValueError, match=f"{path} is not a readable safetensors file") as caught:
            read(path)
        assert "truncated, or another kind of file" in str(caught.value)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip", b"\x80\x02}q\x00." * 20, "Liebe Grüße".encode() * 50])
def test_a_file_of_another_kind_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"model.pt is not a readable safetensors file"):
        load(tmp_path / "model.pt")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file(sequential().state_dict(), tmp_path / "theirs.safetensors", metadata)
        with pytest.raises(ValueError, match="is a safetensors file, but DynamicGate did not write it"):
            load(tmp_path / "theirs.safetensors")


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(sequential().state_dict(), path, {"dynamicgate": json.dumps({"format": 3, "kind": "model"})})
    with pytest.raises(ValueError, match=f"{path} has format 3, this version reads up to 2: upgrade dynamicgate"):
        load(path)


def test_a_model_of_another_architecture_is_refused_with_the_differences(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(sequential(), path)
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3, bias=False))
    with pytest.raises(ValueError, match=f"{path} was not saved from the model given with into=") as caught:
        load(path, into=other)
    message = str(caught.value)
    assert "0.weight is [9, 6] in the model and [8, 6] in the file" in message
    assert "(and 1 more)" in message
    wider = nn.Sequential(*sequential(), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"5.bias is not in the file; 5.weight is not in the file"):
        load(path, into=wider)
    with pytest.raises(ValueError, match=r"4.bias is not in the model; 4.weight is not in the model$"):
        load(path, into=nn.Sequential(*list(sequential())[:4]))


@pytest.mark.parametrize("sizes", [(6, 8, 5, 3), (6, 9, 3)])
def test_a_wrong_model_for_a_file_with_gates_and_masks_is_not_called_damage(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    model = dg.nn.GatedMLP((6, 8, 3), dg.GateConfig(block=4))
    dg.sparsity.Static(model, density=0.5)
    save(model, path)
    for other in (dg.nn.GatedMLP(sizes), dg.nn.GatedMLP(sizes, dg.GateConfig(block=4)), nn.Linear(6, 3)):
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        with pytest.raises(
            ValueError, match=r"given with into=, which is another one: .* in the (file|model)"
        ) as caught:
            load(path, into=other)
        assert "damaged" not in str(caught.value)
        assert other.state_dict().keys() == before.keys(), "no gate or mask was added to it"
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    load(path, into=dg.nn.GatedMLP((6, 8, 3)))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no file at {tmp_path / 'absent'}"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=f"no file at {tmp_path}"):
        load(tmp_path)


FULL_DISK = """
import resource, signal, sys
import torch, dynamicgate as dg
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
try:
    dg.save(torch.nn.Linear(100, 100), sys.argv[1])
except OSError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_earlier_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(nn.Linear(100, 100), path)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"could not write {path}: ")
    assert "File too large" in done.stdout
    assert done.stdout.endswith("; the earlier file is untouched\n")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_nothing_in_the_package_unpickles() -> None:
    pickles = re.compile(r"\bpickle\b|torch\.(load|save)\(|\bcloudpickle\b|\bjoblib\b|\bdill\b|allow_pickle=True")
    package = Path(dg.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if pickles.search(line)
    ]
    # The official Python edition of CIFAR-10 consists of pickles: one module reads them, and refuses all others.
    reader = str(Path("lab", "datasets", "images", "cifar10_pickle.py"))
    ours = [line for line in found if not line.startswith(f"{reader}: ")]
    assert [line for line in ours if '"""One safetensors file' not in line] == []
    assert len(ours) == 1, "the pattern must find the docstring that says so"
    assert "(pickle.Unpickler):" in (package / reader).read_text(encoding="utf-8")
    assert not re.search(r"pickle\.loads?\b", (package / reader).read_text(encoding="utf-8"))
