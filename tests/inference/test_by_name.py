"""A compiled model knows what the model knew of its data, and counts what its rows execute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.accounting.prediction import predict
from dynamicgate.data import Column, Schema, put_schema_, schema_of
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.cpu.candidates import DENSE, LayerLayout, packed
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import lower_chain
from dynamicgate.inference.cpu.stage_candidates import StagedCandidates
from dynamicgate.inference.graph import trace
from dynamicgate.lab.cli import main
from tests.gating.staged import staged, the_gate
from tests.inference.models import Residual, compile_quickly, gated_mlp, with_three_implementations

pd = pytest.importorskip("pandas")

NAMES = tuple(f"c{k}" for k in range(20))
CLASSES = ("a", "b", "c", "d", "e")
SCHEMA = Schema("table", 20, 5, columns=tuple(map(Column, NAMES)), classes=CLASSES, target="kind")


def known() -> tuple[nn.Module, Any]:
    """A gated model with a schema, and a table with its own answers as classes."""
    torch.manual_seed(0)
    model = gated_mlp(dg.GateConfig(block=16))
    put_schema_(model, SCHEMA)
    table = pd.DataFrame(torch.randn(60, 20).numpy(), columns=list(NAMES))
    return model, table.assign(kind=predict(model, table).labels)


@pytest.mark.parametrize("saved", [False, True])
def test_a_compiled_model_finds_columns_and_classes_by_name(saved: bool, tmp_path: Path) -> None:
    model, table = known()
    compiled = compile_quickly(model, table)
    if saved:
        compiled.save(tmp_path / "compiled.safetensors")
        compiled = CompiledModel.load(tmp_path / "compiled.safetensors")
    assert schema_of(compiled) == SCHEMA
    permuted = table[["kind", *reversed(NAMES)]]
    assert dg.measure(compiled, (permuted, "kind")).accuracy == 1.0
    assert predict(compiled, permuted).labels == list(table["kind"])
    with pytest.raises(ValueError, match="data lacks 1 of the 20 columns that the model reads: 'c3'"):
        dg.measure(compiled, permuted.drop(columns="c3"))


def test_the_example_is_read_by_name_too() -> None:
    model, table = known()
    straight, permuted = (compile_quickly(model, t) for t in (table, table[["kind", *reversed(NAMES)]]))
    macs = [[layer.macs for layer in found.plan.chains[0][0].layers] for found in (straight, permuted)]  # type: ignore[union-attr]
    assert macs[0] == macs[1]


def test_predict_takes_a_saved_compiled_model(tmp_path: Path) -> None:
    model, table = known()
    compile_quickly(model, table).save(tmp_path / "compiled.safetensors")
    table[["kind", *reversed(NAMES)]].to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "compiled.safetensors"), str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    found = pd.read_csv(out)
    assert list(found["prediction"]) == list(table["kind"])
    np.testing.assert_allclose(found["cost"], predict(model, table).cost.numpy())


CONFIGS = {
    "blocks": dg.GateConfig(block=16),
    "units": dg.GateConfig(block=1),
    "low-rank": dg.GateConfig(block=4, net="low-rank", rank=3),
    "always open": dg.GateConfig(block=4, always_open=2),
    "soft width": dg.GateConfig(block=4, soft_width=1.3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_compiled_model_counts_what_the_model_counts(name: str) -> None:
    torch.manual_seed(0)
    model, x = gated_mlp(CONFIGS[name]), torch.randn(300, 20).relu()
    for compiled in (compile_quickly(model, x), with_three_implementations(model, x)):
        same_counts(model, compiled, x)


def test_missing_connections_and_normalisation_do_not_count() -> None:
    torch.manual_seed(0)
    model = gated_mlp(dg.GateConfig(block=16), normalize=dg.nn.Normalize(torch.rand(20), torch.rand(20) + 0.5))
    dg.sparsity.Static(model, density=0.3)
    x = torch.randn(300, 20).relu()
    same_counts(model, compile_quickly(model, x), x)
    norm = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    compiled = compile_quickly(norm, x)
    assert dg.measure(compiled, x).macs["executed"] == dg.measure(norm, x).macs["executed"] == 20 * 8 + 8 * 3


@pytest.mark.parametrize("decide", ["margin", "head"])
def test_stages_count_for_the_rows_that_open_them(decide: str) -> None:
    torch.manual_seed(0)
    model, x = staged((20, 48, 33, 5), decide=decide).eval(), torch.randn(300, 20)
    for k in range(2):  # half of the rows open each further stage
        with torch.no_grad(), dg.usage(model) as used:
            model(x)
        assert used.stages is not None
        the_gate(model).cut[k] = used.stages.score[:, k].sort().values[149:151].mean()  # between two rows
    wanted = dg.measure(model, x)
    assert wanted.stages is not None
    assert 0.0 < wanted.stages["open"][2] < wanted.stages["open"][1] < 1.0, "rows must stop at every stage"
    plan = compile_quickly(model, x)
    (chain,), _ = find_chains(model, trace(model), {}, x)
    candidates = StagedCandidates(lower_chain(chain, {}))
    layouts = packed([LayerLayout("panels")] * sum(map(len, candidates.staged.stages)))
    for candidate in (layouts, DENSE):
        compiled = CompiledModel(Chain([candidates.build(candidate)], [0], [1], 20), plan.plan, plan.nodes)
        found = dg.measure(compiled, x)
        assert found.macs["dense"] == wanted.macs["dense"]
        if candidate is layouts:
            assert found.macs["executed"] == pytest.approx(wanted.macs["executed"])
            assert found.samples == pytest.approx(wanted.samples)
        else:  # which computes all stages for every row
            assert found.macs["executed"] == pytest.approx(wanted.macs["dense"] * (1 - wanted.macs["structure_saved"]))


def same_counts(model: nn.Module, compiled: CompiledModel, x: torch.Tensor) -> None:
    found, wanted = dg.measure(compiled, x), dg.measure(model, x)
    assert found.macs == pytest.approx(wanted.macs)
    assert found.samples == pytest.approx(wanted.samples)
    assert [row["macs"] for row in found.layers] == pytest.approx([row["macs"] for row in wanted.layers])
    assert [row["open"] for row in found.layers] == pytest.approx([row["open"] for row in wanted.layers])
    assert str(found).splitlines()[0].startswith("executed MACs")


def test_a_part_in_torch_is_not_counted_in_silence() -> None:
    model, x = Residual().eval(), torch.randn(30, 20)
    with pytest.raises(ValueError, match="measure the model that it was made from"):
        dg.measure(compile_quickly(model, x), x)
