"""ONNX files in onnxruntime: the same outputs to 1e-5, standard operators only, and work that is really left out."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.data.schema import Column, Schema, put_schema_
from dynamicgate.gating.stages import stages_of
from dynamicgate.inference.cpu.folding import with_layer
from tests.inference.models import (
    Residual,
    compile_quickly,
    gated_mlp,
    rows_near_threshold,
    spread_logits_,
    with_three_implementations,
)

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from dynamicgate.export import chains, onnx_file, to_onnx  # noqa: E402

GATES: dict[str, dict[str, Any]] = {
    "blocks": {"block": 8},
    "narrow blocks": {"block": 4},
    "a shorter last block": {"block": 7},
    "a shorter last wide block": {"block": 10},
    "units": {},
    "two-layer network": {"block": 8, "net": "two-layer"},
    "top k": {"block": 8, "top_k": 2},
    "always open": {"block": 8, "always_open": 1},
    "scaled": {"block": 8, "scale": True},
    "softly opened": {"block": 8, "soft_width": 0.5},
    "evaluated softly": {"block": 8, "evaluate": "soft"},
    "static": {"block": 8, "kind": "static"},
    "softmax over open blocks": {"block": 8, "scale": "softmax"},
    "above the threshold": {"block": 8, "scale": "relu", "tau": 0.7, "theta": 0.4},
    "router": {"block": 8, "kind": "router", "top_k": 2},
}


def in_onnxruntime(path: Path, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def operators(path: Path) -> set[str]:
    found: set[str] = set()

    def walk(graph: Any) -> None:
        for node in graph.node:
            assert node.domain == "", f"{node.op_type} is no standard operator"
            found.add(node.op_type)
            for attribute in node.attribute:
                walk(attribute.g)

    model = onnx.load(path)
    assert [entry.domain for entry in model.opset_import] == [""]
    walk(model.graph)
    return found


def assert_same(path: Path, model: Any, x: Tensor, near: Tensor) -> None:
    with torch.no_grad():
        want = model(x)
    for rows in (1, 7, len(x)):
        y = torch.cat([in_onnxruntime(path, part) for part in x.split(rows)])
        torch.testing.assert_close(y[~near], want[~near], rtol=0.0, atol=1e-5)


def staged(decide: str, **options: Any) -> nn.Module:
    model = dg.nn.GatedMLP((20, 48, 33, 5), dg.GateConfig(kind="stages", decide=decide, **options)).eval()
    x = torch.randn(200, 20)
    gate = stages_of(model)
    assert gate is not None
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        assert used.stages is not None
        gate.cut.copy_(used.stages.score.quantile(0.5, dim=0))  # between rows: every stage stops some
    return model


@pytest.mark.parametrize("form", ["skip", "masks"])
@pytest.mark.parametrize("name", GATES)
def test_gated_models_give_the_same_outputs(name: str, form: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = dg.GateConfig(**GATES[name])
    model = gated_mlp(config, sizes=(20, 48, 5) if config.competes else (20, 48, 33, 5))  # experts begin a chain
    x = torch.randn(24, 20)
    exported = to_onnx(model, x, tmp_path / "m.onnx", form=form)
    assert exported.verification is not None
    assert exported.verification.error < 1e-5
    assert exported.notes == []
    assert_same(tmp_path / "m.onnx", model, x, rows_near_threshold(model, x))
    gathers = {"Gather", "If", "NonZero"} <= operators(tmp_path / "m.onnx")
    assert gathers == (form == "skip" and name != "static")


@pytest.mark.parametrize("form", ["skip", "masks"])
@pytest.mark.parametrize("decide", ["margin", "entropy", "head"])
def test_staged_models_give_the_same_outputs(decide: str, form: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = staged(decide), torch.randn(24, 20)
    to_onnx(model, x, tmp_path / "m.onnx", form=form)
    assert_same(tmp_path / "m.onnx", model, x, torch.zeros(24, dtype=torch.bool))
    assert ("If" in operators(tmp_path / "m.onnx")) == (form == "skip")


def test_later_stages_are_not_computed_for_rows_that_stop(tmp_path: Path) -> None:
    """A stage with weights that are not numbers spoils exactly the rows that open it."""
    torch.manual_seed(0)
    model, x = staged("margin", stages=(0.5, 0.5)), torch.randn(64, 20)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    assert used.stages is not None
    opened = used.stages.open[:, 1] != 0
    to_onnx(model, x, tmp_path / "m.onnx")
    written = onnx.load(tmp_path / "m.onnx")
    (stage,) = [node for node in written.graph.node if node.op_type == "If"]
    branch = next(a.g for a in stage.attribute if a.name == "then_branch")
    weights = {name for node in branch.node if node.op_type == "Gemm" for name in node.input[1:]}
    for tensor in written.graph.initializer:
        if tensor.name in weights:
            values = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values * float("nan"), tensor.name))
    onnx.save(written, tmp_path / "spoiled.onnx")
    spoiled = in_onnxruntime(tmp_path / "spoiled.onnx", x).isnan().any(1)
    assert 0 < int(opened.sum()) < len(x)
    assert torch.equal(spoiled, opened)


def test_closed_blocks_are_not_read_for_a_single_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = gated_mlp(dg.GateConfig(block=8), sizes=(20, 48, 5)), torch.randn(32, 20)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    closed = used["layers.1"].open[:, 0] == 0
    to_onnx(model, x, tmp_path / "m.onnx", form="skip")
    written = onnx.load(tmp_path / "m.onnx")
    for tensor in written.graph.initializer:
        if list(tensor.dims) == [6, 20, 8]:  # the weights of the first layer in blocks
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[0] = float("nan")
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(written, tmp_path / "spoiled.onnx")
    spoiled = torch.cat([in_onnxruntime(tmp_path / "spoiled.onnx", row) for row in x.split(1)]).isnan().any(1)
    assert 0 < int(closed.sum()) < len(x)
    assert torch.equal(spoiled, ~closed)


@pytest.mark.parametrize("block", [1, 8])
def test_rows_that_open_nothing_are_computed_too(block: int, tmp_path: Path) -> None:
    model, x = gated_mlp(dg.GateConfig(block=block)), torch.randn(4, 20)
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.fill_(-1e3)
    to_onnx(model, x, tmp_path / "m.onnx", form="skip")
    assert_same(tmp_path / "m.onnx", model, x, torch.zeros(4, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["gated", "staged", "routed"])
def test_plans_are_exported_without_their_op(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = dg.GateConfig(block=8, kind="router", top_k=2) if kind == "routed" else dg.GateConfig(block=8)
    model = staged("margin") if kind == "staged" else gated_mlp(config, sizes=(20, 48, 5))
    x = torch.randn(40, 20)
    plan = compile_quickly(model, x)
    exported = to_onnx(plan, x, tmp_path / "m.onnx", form="skip")
    assert exported.verification is not None
    assert exported.verification.error < 1e-5
    near = rows_near_threshold(model, x)
    assert_same(tmp_path / "m.onnx", plan, x, near)


def test_a_plan_of_dense_layers_alone_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, x = gated_mlp(dg.GateConfig(block=8)), torch.randn(40, 20)
    plan = with_three_implementations(model, x)
    assert to_onnx(plan, x, tmp_path / "m.onnx").verification is not None


def test_auto_gathers_where_few_blocks_are_open(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = gated_mlp(dg.GateConfig(block=8)), torch.randn(64, 20)
    (form,) = to_onnx(model, x, tmp_path / "m.onnx").forms
    assert "masks" in form
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.sub_(2.5)
    (form,) = to_onnx(model, x, tmp_path / "m.onnx").forms
    assert "gathered" in form


class Tokens(nn.Module):
    """Two inputs, of which no chain can be made; a gate inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(11, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        h = self.embed(ids)
        return self.norm(h + self.down(self.up(h).relu())) * scale[:, None, None]


@pytest.mark.slow
def test_what_is_no_chain_is_exported_by_torch_and_said_to_be_dense(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dg.gate_(Tokens(), dg.GateConfig(block=4), where=[dg.Site("down", ("up",), "up", 16)]).eval()
    inputs = {"ids": torch.randint(11, (3, 6)), "scale": torch.rand(3)}
    exported = to_onnx(model, inputs, tmp_path / "m.onnx")
    assert "'down': closed units are multiplied by zero, not skipped" in str(exported)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    five = {"ids": torch.randint(11, (5, 6)), "scale": torch.rand(5)}
    y = session.run(None, {name: value.numpy() for name, value in five.items()})[0]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(y), model(**five), rtol=0.0, atol=1e-5)


@pytest.mark.slow
def test_torch_is_told_what_to_use_for_a_plan() -> None:
    torch.manual_seed(0)
    model, x = gated_mlp(dg.GateConfig(block=8)), torch.randn(8, 20)
    plan = compile_quickly(model, x, same_bits=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(Exception, match="run_chain"):
            torch.onnx.export(plan.eval(), (x,), dynamo=True, verbose=False)
    assert [str(each.message) for each in said if "use dynamicgate.export.to_onnx" in str(each.message)]


@pytest.mark.slow
def test_gates_that_torch_exports_may_compete(tmp_path: Path) -> None:
    """Two routers one after the other are no chain, and torch knows no stable sort for ONNX."""
    torch.manual_seed(0)
    model, x = gated_mlp(dg.GateConfig(block=8, kind="router", top_k=2)), torch.randn(8, 20)
    exported = to_onnx(model, x, tmp_path / "m.onnx")
    assert exported.notes
    assert_same(tmp_path / "m.onnx", model, x, rows_near_threshold(model, x))


@pytest.mark.slow
def test_a_chain_inside_a_model_takes_the_place_of_its_node(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dg.gate_(Residual(), dg.GateConfig(block=8)).eval()
    spread_logits_(model)
    x = torch.randn(8, 20)
    to_onnx(model, x, tmp_path / "m.onnx", form="skip")
    assert "If" in operators(tmp_path / "m.onnx")
    assert_same(tmp_path / "m.onnx", model, x, rows_near_threshold(model, x))


def test_sequences_are_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = gated_mlp(dg.GateConfig(block=8)), torch.randn(3, 4, 20)
    to_onnx(model, x, tmp_path / "m.onnx", form="skip")
    with torch.no_grad():
        torch.testing.assert_close(in_onnxruntime(tmp_path / "m.onnx", x), model(x), rtol=0.0, atol=1e-5)


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = chains.lower_chain

    def broken(*args: Any) -> Any:
        lowered = lower(*args)
        first = lowered.stages[0]
        lowered.stages[0] = with_layer(first, weight=first.layer.weight * 1.001)
        return lowered

    monkeypatch.setattr(chains, "lower_chain", broken)
    with pytest.raises(ValueError, match=r"the ONNX file does not compute what the model computes.*refused"):
        to_onnx(gated_mlp(dg.GateConfig(block=8)), torch.randn(8, 20), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: staged("random"), "no file repeats their draws"),
        (lambda: gated_mlp(dg.GateConfig(kind="router", block=8, capacity=1.0)), "have a capacity"),
    ],
)
def test_what_no_file_can_repeat_is_refused(model: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        to_onnx(model(), torch.randn(4, 20), tmp_path / "m.onnx")


def test_unknown_forms_and_empty_examples_are_refused(tmp_path: Path) -> None:
    model = gated_mlp(dg.GateConfig(block=8))
    with pytest.raises(ValueError, match="form must be one of auto, skip, masks, received 'fast'"):
        to_onnx(model, torch.randn(4, 20), tmp_path / "m.onnx", form="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a tensor of one sample or more"):
        to_onnx(model, torch.randn(0, 20), tmp_path / "m.onnx")


def test_files_above_the_limit_of_the_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="an ONNX file holds 2 GB"):
        to_onnx(gated_mlp(dg.GateConfig(block=8)), torch.randn(4, 20), tmp_path / "m.onnx")


def test_a_file_names_its_features_and_classes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    to_onnx(model, torch.randn(8, 3), tmp_path / "plain.onnx")
    assert onnxruntime.InferenceSession(tmp_path / "plain.onnx").get_modelmeta().custom_metadata_map == {}
    columns = (Column("age"), Column("site", ("Kyoto", "Lima")))
    schema = Schema(kind="table", features=3, outputs=2, columns=columns, classes=("ill", "well"))
    put_schema_(model, schema)
    to_onnx(model, torch.randn(8, 3), tmp_path / "named.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "named.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(found["features"]) == list(schema.feature_names)
    assert json.loads(found["classes"]) == ["ill", "well"]
