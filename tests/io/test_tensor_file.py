"""Files from strangers and damaged files: a sentence that names the file, and no memory for what is only described."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import dynamicgate as dg
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.layers import PackedLayers
from dynamicgate.inference.plan import Plan
from dynamicgate.io.model_file import read_notes
from dynamicgate.io.tensor_file import HEADER, read_tensors, write_tensors
from dynamicgate.ops import chain

LINEAR = {"kind": "Linear", "size": [4, 3], "bias": True}
STACK = {
    "kind": "Sequential",
    "modules": {
        "0": {"kind": "Linear", "size": [4, 3], "bias": False},
        "1": {"kind": "ReLU", "inplace": False},
        "2": {"kind": "Linear", "size": [3, 2], "bias": False},
    },
}
OF_LINEAR = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}
OF_STACK = {"0.weight": torch.zeros(3, 4), "2.weight": torch.zeros(2, 3)}
SITE = {"consumer": "2", "producers": ["0"], "source": "0", "width": 3}
CONFIG = dg.GateConfig().to_dict()


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "Linear", "size": [1, 1], "bias": False}
    for _ in range(depth):
        found = {"kind": "Sequential", "modules": {"0": found}}
    return found


def described(architecture: Any, **more: Any) -> dict[str, Any]:
    return {"format": 1, "kind": "model", "architecture": architecture, "gates": [], "masks": {}, "notes": {}, **more}


def gate(**changes: Any) -> list[dict[str, Any]]:
    site = {**SITE, **changes.pop("site", {})}
    return [{"site": site, "config": {**CONFIG, **changes}}]


HEADERS: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
    "a list": ([1, 2], OF_LINEAR),
    "nothing": (None, OF_LINEAR),
    "no format": ({"kind": "model"}, OF_LINEAR),
    "a format that is text": ({"format": "x", "kind": "model"}, OF_LINEAR),
    "a format that is no number": ({**described(LINEAR), "format": float("nan")}, OF_LINEAR),
    "a negative format": ({**described(LINEAR), "format": -5}, OF_LINEAR),
    "no architecture": ({"format": 1, "kind": "model"}, OF_LINEAR),
    "an architecture without a kind": (described({"size": [4, 3]}), OF_LINEAR),
    "an architecture that is a list": (described([1, 2]), OF_LINEAR),
    "a layer of four terabytes": (described({"kind": "Linear", "size": [2**20, 2**20], "bias": True}), OF_LINEAR),
    "a layer of twenty gigabytes": (described({"kind": "Linear", "size": [70000, 70000], "bias": True}), OF_LINEAR),
    "a layer of negative size": (described({"kind": "Linear", "size": [-4, 3], "bias": True}), OF_LINEAR),
    "a layer of fractional size": (described({"kind": "Linear", "size": [4.5, 3], "bias": True}), OF_LINEAR),
    "a size that is text": (described({"kind": "Linear", "size": "43", "bias": True}), OF_LINEAR),
    "a function of the system": (described({"kind": "os.system"}), OF_LINEAR),
    "a class of the system": (described({"kind": "custom", "class": "os.system"}), OF_LINEAR),
    "a child named like an attribute": (described({"kind": "Sequential", "modules": {"forward": LINEAR}}), {}),
    "a child with a dot": (described({"kind": "Sequential", "modules": {"a.b": LINEAR}}), {}),
    "a dropout of 7": (described({"kind": "Dropout", "p": 7}), {}),
    "three hundred levels without tensors": (described(nested(300)), {}),
    "a hundred thousand modules without tensors": (
        described({"kind": "Sequential", "modules": {str(i): {"kind": "Flatten"} for i in range(100_000)}}), {},
    ),
    "an MLP of exabytes": (
        described({"kind": "GatedMLP", "sizes": [10, 10**9, 10**9], "activation": "relu", "dropout": 0,
                   "normalize": {"kind": "Identity"}}), {},
    ),
    "constants of terabytes": (described({"kind": "Normalize", "mean_shape": [10**12], "std_shape": [1]}), {}),
    "constants of negative size": (described({"kind": "Normalize", "mean_shape": [-1], "std_shape": [1]}), {}),
    "a gate on nothing": (described(STACK, gates=gate(site={"consumer": "9"})), OF_STACK),
    "a gate of another width": (described(STACK, gates=gate(site={"width": 10**9})), OF_STACK),
    "a gate with blocks of text": (described(STACK, gates=gate(block="x")), OF_STACK),
    "a gate with more keys": (described(STACK, gates=gate(site={"__class__": "x"})), OF_STACK),
    "a gate of rank 1e10": (described(STACK, gates=gate(net="low-rank", rank=10**10)), OF_STACK),
    "a mask on nothing": (described(STACK, masks={"7": {"pattern": "unstructured"}}), OF_STACK),
    "a mask on an activation": (described(STACK, masks={"1": {"pattern": "unstructured"}}), OF_STACK),
    "a mask without its tensor": (described(STACK, masks={"0": {"pattern": "unstructured"}}), OF_STACK),
    "masks that are a number": (described(STACK, masks=5), OF_STACK),
    "whole numbers for weights": (described(LINEAR), {**OF_LINEAR, "weight": torch.zeros(3, 4, dtype=torch.int32)}),
    "one tensor more": (described(LINEAR), {**OF_LINEAR, "more": torch.zeros(1)}),
}  # fmt: skip


def write_raw(path: Path, header: Any, tensors: dict[str, torch.Tensor]) -> None:
    """A file as a stranger writes it, without checksums."""
    save_file(tensors, path, {HEADER: json.dumps(header)})


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_does_not_fit_is_refused_by_name_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "strange.safetensors"
    write_raw(path, *HEADERS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"strange\.safetensors") as caught:
        dg.load(path)
    assert str(caught.value).strip()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_a_header_deeper_than_python_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.safetensors"
    text = '{"format":1,"kind":"model","architecture":' + '{"kind":"Sequential","modules":{"0":' * 100_000 + "{}"
    save_file(OF_LINEAR, path, {HEADER: text + "}}" * 100_000 + "}"})
    with pytest.raises(ValueError, match=r"deep\.safetensors is damaged"):
        dg.load(path)


@pytest.mark.parametrize("notes", [[1], "x", None, 5])
def test_notes_that_are_no_notes_are_refused(notes: Any, tmp_path: Path) -> None:
    write_raw(tmp_path / "notes.safetensors", described(LINEAR, notes=notes), OF_LINEAR)
    with pytest.raises(ValueError, match=r"notes\.safetensors is damaged"):
        read_notes(tmp_path / "notes.safetensors")


def write_plan(path: Path) -> None:
    packed = chain.pack([chain.Layer(torch.randn(8, 6), None, "relu"), chain.Layer(torch.randn(3, 8))])
    CompiledModel(Chain([PackedLayers(packed)], [0], [1], 6), Plan([]), [["x"]]).save(path)


def write_model(path: Path) -> None:
    dg.save(dg.gate_(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))), path)


def write_checkpoint(path: Path) -> None:
    write_tensors(path, {"model.weight": torch.randn(4, 4)}, {"kind": "checkpoint", "settings": {}})


WRITERS = {"a model": write_model, "a plan": write_plan, "a checkpoint": write_checkpoint}
READERS = {
    "a model": dg.load,
    "a plan": CompiledModel.load,
    "a checkpoint": lambda path: read_tensors(path, kind="checkpoint"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_any_flipped_bit_is_found_and_the_file_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    WRITERS[kind](path)
    READERS[kind](path)
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    pick = random.Random(0)
    places = [pick.randrange(start, len(whole)) for _ in range(40)] + [pick.randrange(8, start) for _ in range(40)]
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << pick.randrange(8)
        path.write_bytes(bytes(damaged))
        if damaged[8:start].strip() == whole[8:start].strip() and at < start:
            continue  # in the spaces that fill up the header
        with pytest.raises(ValueError, match=r"file\.safetensors"):
            READERS[kind](path)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_of_an_earlier_version_has_no_checksum_and_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    WRITERS[kind](path)
    with safe_open(path, framework="pt") as file:
        header, _, sums = file.metadata()[HEADER].partition("\n")
        assert sums
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {HEADER: header})
    READERS[kind](path)


@pytest.mark.parametrize("kind", WRITERS)
def test_equal_contents_are_equal_files(kind: str, tmp_path: Path) -> None:
    found = set()
    for number in range(12):  # a file with two keys of metadata would be one of two
        torch.manual_seed(0)
        WRITERS[kind](tmp_path / f"{number}.safetensors")
        found.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(found) == 1


def test_tensors_of_every_kind_and_shape_have_a_checksum(tmp_path: Path) -> None:
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.uint8, torch.int64, torch.float8_e4m3fn)
    tensors = {str(kind): torch.ones(3, 2).to(kind) for kind in kinds}
    tensors |= {"one": torch.tensor(2.0), "none": torch.zeros(0, 3), "turned": torch.randn(3, 4).T}
    write_tensors(tmp_path / "x.safetensors", tensors, {"kind": "test"})
    found, _ = read_tensors(tmp_path / "x.safetensors", kind="test")
    assert all(
        found[name].shape == tensor.shape and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


def test_a_negation_not_yet_carried_out_is_written_as_its_value(tmp_path: Path) -> None:
    """Its memory holds the numbers before."""
    weight = torch.randn(3, 4)
    model = nn.Linear(4, 3, bias=False)
    model.weight = nn.Parameter(torch._neg_view(weight))
    assert model.weight.is_neg()
    dg.save(model, tmp_path / "model.safetensors")
    assert torch.equal(dg.load(tmp_path / "model.safetensors").weight, -weight)
