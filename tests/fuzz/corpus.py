"""Small files of every kind that is read from strangers, made from a fixed seed, and how each is read."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.data.schema import Column, Schema
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.layers import DenseLayers, PackedLayers, dense_layer
from dynamicgate.inference.plan import Plan
from dynamicgate.lab.datasets.archive import read_members
from dynamicgate.lab.datasets.idx_format import read_idx
from dynamicgate.lab.datasets.images.cifar10 import read_cifar10
from dynamicgate.lab.datasets.npz_file import load_npz
from dynamicgate.lab.datasets.single_cell.h5ad_file import load_h5ad
from dynamicgate.lab.datasets.table_file import load_table
from dynamicgate.nn import SwitchMLP
from dynamicgate.training.checkpoint import load_checkpoint, random_state, save_checkpoint
from tests.ops.staged_chains import build_staged

INPUTS = 40
Read = Callable[[Path], object]


class Kind(NamedTuple):
    """How the files of one kind are made, each by its name, and how they are read."""

    write: Callable[[Path], list[Path]]
    read: Read
    ours: bool
    """Whether the file has our header, so that its contents can be forged."""


def plan_layers(layout: str) -> list[ops.chain.Layer]:
    mask = (torch.rand(4, INPUTS) < 0.4).repeat_interleave(16, 0) if layout in ("csr", "vectors", "columns") else 1.0
    gate = ops.GateNet((torch.randn(4, INPUTS),), (torch.randn(4),)) if layout == "gated" else None
    deep = ops.GateNet(
        (torch.randn(3, 64), torch.randn(8, 3)),
        (torch.randn(3), None),
        hidden="nearest" if layout == "nearest" else "relu",
    )
    weight = torch.randn(64, INPUTS) * mask
    weight = weight.bfloat16().float() if layout == "half panels" else weight
    weight = ops.chain.rounded_to_bytes(weight) if layout == "byte panels" else weight
    first = ops.chain.Layer(
        weight, torch.randn(64), "relu", 16 if gate else 0, gate,
        "panels" if gate or layout == "nearest" else layout.removesuffix(" skip"), layout.endswith("skip"),
        *((torch.randn(64, INPUTS), torch.randn(64)) if gate else ()),
    )  # fmt: skip
    second = ops.chain.Layer(torch.randn(40, 64), torch.randn(40), "gelu", 5, deep, "rows")
    last = ops.chain.Layer(torch.randn(10, 40), torch.randn(10), layout="csr" if layout == "csr" else "panels")
    return [first, second, last]


def write_plans(folder: Path) -> list[Path]:
    torch.manual_seed(0)
    implementations: dict[str, nn.Module] = {
        layout: PackedLayers(ops.chain.pack(plan_layers(layout)))
        for layout in (
            "panels",
            "half panels",
            "byte panels",
            "panels skip",
            "vectors",
            "vectors skip",
            "csr",
            "columns",
            "rows",
            "gated",
            "nearest",
        )
    }
    for decide in ("margin", "head"):
        staged = build_staged([[16, 33, 5], [32, 16, 16]], layout=["vectors", "panels", "csr"] * 4, decide=decide)
        implementations[f"staged {decide}"] = PackedLayers(ops.chain.pack_staged(staged))
    implementations["dense"] = DenseLayers([dense_layer(layer, panels=True) for layer in plan_layers("gated")])
    paths = []
    for name, layers in implementations.items():
        inputs = int(layers.program[2]) if isinstance(layers, PackedLayers) else INPUTS
        paths.append(folder / f"{name}.safetensors")
        CompiledModel(Chain([layers], [0], [1], inputs), Plan([]), [["x"]]).save(paths[-1])
    return paths


def read_plan(path: Path) -> None:
    loaded = CompiledModel.load(path)
    chain = loaded.body
    assert isinstance(chain, Chain)
    inputs = chain.inputs if chain.inputs < 10_000 else INPUTS
    try:
        for rows in (1, 20):
            loaded(torch.randn(rows, inputs))
    except RuntimeError as error:  # torch, of shapes that do not fit
        raise ValueError(f"refused when called: {error}") from error


def write_models(folder: Path) -> list[Path]:
    torch.manual_seed(0)

    def plain() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    masked = dg.gate_(plain(), dg.GateConfig(block=2, net="low-rank", rank=2))
    dg.sparsity.Static(masked, 0.5)
    models = {
        "masked": masked,
        "staged": dg.gate_(plain(), dg.GateConfig(kind="stages", stages=(0.5, 0.5))),
        "switch": SwitchMLP(6, 8, 4, 3, 3),
        "mlp": dg.nn.GatedMLP((6, 9, 3), dg.GateConfig()),
    }
    columns = (Column("a", fill=0.5, indicator=True), Column("b", ("x", "y"), alias="c"), Column("d"), Column("e"))
    schema = Schema("table", 6, 3, columns=columns, classes=("k", "l", "m"), target="kind", least=-1.0)
    for name, model in models.items():
        known = schema if name == "mlp" else None
        dg.save(model, folder / f"{name}.safetensors", notes={"settings": {"data": "digits"}}, schema=known)
    return [folder / f"{name}.safetensors" for name in models]


def _training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.AdamW(model.parameters())


def write_checkpoints(folder: Path) -> list[Path]:
    model, optimizer = _training()
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    position = {"step": 1, "seconds": 0.0}
    path = folder / "last.safetensors"
    save_checkpoint(path, model, optimizer, None, None, settings={"lr": 0.1}, position=position, rng=random_state())
    return [path]


def read_checkpoint(path: Path) -> None:
    load_checkpoint(path, *_training(), None, None, settings={"lr": 0.1})


def write_h5ads(folder: Path) -> list[Path]:
    import anndata as ad
    from scipy import sparse

    cells = ad.AnnData(sparse.random(40, 12, 0.3, format="csr", dtype=np.float32, random_state=0))
    cells.obs["kind"] = [str(row % 2) for row in range(40)]
    cells.write_h5ad(folder / "cells.h5ad")
    return [folder / "cells.h5ad"]


def read_h5ad(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = load_h5ad(path, 0, "kind")
    parts.test.rows(torch.arange(len(parts.test)))


def write_archives(folder: Path) -> list[Path]:
    draw = np.random.default_rng(0)
    batch = {"data": draw.integers(0, 255, (10, 3072), dtype=np.uint8), "labels": list(range(10))}
    content = pickle.dumps(batch, protocol=2)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    with tarfile.open(folder / "cifar-10.tar.gz", "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with tarfile.open(folder / "plain.tar", "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 100
            archive.addfile(info, io.BytesIO(bytes(100)))
    with zipfile.ZipFile(folder / "cifar-10.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            packed.writestr(f"cifar-10-batches-py/{name}", content)
    images = b"\0\0\x08\x03" + struct.pack(">III", 20, 8, 8) + bytes(20 * 64)
    (folder / "images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / "images-idx3-ubyte").write_bytes(images)
    np.savez_compressed(folder / "own.npz", x=draw.normal(size=(60, 5)), y=np.arange(60) % 3)
    text = "a,b,kind\n" + "".join(f"{row},{row % 7},{'xyz'[row % 3]}\n" for row in range(60))
    (folder / "own.csv").write_text(text)
    (folder / "own.csv.gz").write_bytes(gzip.compress(text.encode()))
    return sorted(path for path in folder.iterdir() if path.is_file())


def read_archive(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.name.startswith("images"):
            read_idx(path, 3)
        elif path.suffix == ".npz":
            load_npz(path, 0)
        elif path.name.startswith("own"):
            load_table(path, 0, "kind")
        elif path.name.startswith("plain"):
            list(read_members(path, lambda _: True))
        else:
            read_cifar10(path)


KINDS = {
    "plan": Kind(write_plans, read_plan, True),
    "model": Kind(write_models, dg.load, True),
    "checkpoint": Kind(write_checkpoints, read_checkpoint, True),
    "h5ad": Kind(write_h5ads, read_h5ad, False),
    "archive": Kind(write_archives, read_archive, False),
}
