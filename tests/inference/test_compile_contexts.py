"""`compile` on models with context gates: the decision and the open blocks of each row, inside of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamicgate as dg
from dynamicgate.continual import Contexts
from dynamicgate.inference import CompiledModel, verify_model
from dynamicgate.inference.cpu.candidates import DENSE, OWN_DENSE, Candidates, LayerLayout, packed
from dynamicgate.inference.cpu.chain import Chain
from tests.inference.models import assert_same_outputs, compile_quickly, lower_only_chain

CONTEXTS = 4


def centres(features: int, contexts: int = CONTEXTS) -> Tensor:
    """Where the rows of each context lie."""
    return 3.0 * torch.randn(contexts, features, generator=torch.Generator().manual_seed(3))


def rows_of(features: int, count: int = 60, contexts: int = CONTEXTS) -> Tensor:
    """Rows of all contexts, mixed."""
    generator = torch.Generator().manual_seed(4)
    who = torch.randint(contexts, (count,), generator=generator)
    return centres(features, contexts)[who] + torch.randn(count, features, generator=generator)


def learned(
    sizes: tuple[int, ...], block: int = 8, known: int = CONTEXTS, **options: Any
) -> tuple[dg.nn.GatedMLP, Contexts]:
    """A model that has learned the prototypes of some contexts."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(sizes, dg.GateConfig(kind="context", block=block, contexts=CONTEXTS))
    contexts = Contexts(model, **options)
    for centre in centres(sizes[0])[:known]:
        rows = centre + torch.randn(50, sizes[0])
        contexts.open_(rows)
        contexts.close_(rows)
    return model.eval(), contexts


@pytest.mark.parametrize(
    ("sizes", "block", "options"),
    [
        ((7, 12, 3), 3, {}),
        ((33, 70, 50, 5), 16, {"share": 1}),
        ((20, 41, 29, 2), 5, {"share": 2, "blocks": "random"}),
        ((13, 40, 40, 4), 10, {"reuse": 1}),
        ((19, 24, 4), 1, {}),
    ],
)
def test_outputs_are_those_of_the_model(sizes: tuple[int, ...], block: int, options: dict[str, Any]) -> None:
    model, _ = learned(sizes, block, **options)
    x = rows_of(sizes[0])
    compiled = compile_quickly(model, x)
    assert isinstance(compiled.body, Chain), "nothing stays in torch"
    for count in (1, 2, 17, 60):
        assert_same_outputs(compiled, model, x[:count])
    assert_same_outputs(compiled, model, x.view(3, 20, -1))
    unseen = 5.0 * torch.randn(200, sizes[0], generator=torch.Generator().manual_seed(5))
    assert_same_outputs(compiled, model, unseen)
    assert_same_outputs(compiled, model, torch.zeros(3, sizes[0]))


def test_every_implementation_decides_alike() -> None:
    model, _ = learned((20, 48, 33, 5))
    x = rows_of(20)
    candidates = Candidates(lower_only_chain(model, x))
    ways = [packed([LayerLayout(layout)] * 3) for layout in ("panels", "rows", "vectors", "csr")]
    for candidate in (DENSE, OWN_DENSE, *ways):
        run = candidates.call(candidates.build(candidate))
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_contexts_that_are_not_known_are_left_out(known: int) -> None:
    model, _ = learned((20, 48, 40, 5), known=known, share=2)
    x = rows_of(20)
    compiled = compile_quickly(model, x)
    assert_same_outputs(compiled, model, x)
    words = {0: "knows no context", 1: "knows one context", 2: "the nearest of 2 prototypes"}
    assert words[known] in str(compiled.plan)
    first = compiled.plan.chains[0][0].layers[0].choice
    assert ("sliced to" in first) == (known > 0), "blocks that no context opens are not in the plan"


def test_a_context_that_is_told_is_all_that_the_plan_holds() -> None:
    model, contexts = learned((20, 48, 5))
    x = rows_of(20)
    with contexts.told(2):
        compiled = compile_quickly(model, x)
        assert_same_outputs(compiled, model, x)
    assert "its context is told (2)" in str(compiled.plan)
    with torch.no_grad():
        assert not torch.allclose(compiled(x), model(x), atol=1e-3), "the plan cannot look for itself"


def test_the_plan_names_it_and_counts_what_the_model_counts() -> None:
    model, _ = learned((20, 48, 32, 5))
    x = rows_of(20)
    compiled = compile_quickly(model, x, same_bits=True)
    text = str(compiled.plan)
    assert "context-gated (8)" in text
    assert "'layers.1': the nearest of 4 prototypes names the context of each row, and only its blocks run" in text
    assert "in torch as before" not in text
    data = (x, torch.zeros(len(x), dtype=torch.long))
    ours, theirs = dg.measure(compiled, data).macs, dg.measure(model, data).macs
    assert theirs["executed"] < 0.6 * theirs["dense"]
    if all("sliced" not in layer.choice for layer in compiled.plan.chains[0][0].layers):
        assert ours["executed"] == theirs["executed"]
        assert ours["gate"] == theirs["gate"]


def test_a_saved_plan_gives_the_same_bits(tmp_path: Path) -> None:
    model, _ = learned((20, 48, 33, 5))
    x = rows_of(20)
    for same_bits in (True, False):
        compiled = compile_quickly(model, x, same_bits=same_bits)
        compiled.save(tmp_path / "plan.safetensors")
        loaded = CompiledModel.load(tmp_path / "plan.safetensors")
        assert torch.equal(loaded(x), compiled(x))
        assert str(loaded.plan) == str(compiled.plan)
    dense = Candidates(lower_only_chain(model, x)).build(DENSE)
    held = CompiledModel(Chain([dense], [0], [1], 20), compiled.plan, compiled.nodes)
    held.save(tmp_path / "dense.safetensors")
    assert torch.equal(CompiledModel.load(tmp_path / "dense.safetensors")(x), held(x))


def test_it_can_be_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from dynamicgate.export import to_onnx

    model, _ = learned((20, 48, 33, 5))
    x = rows_of(20)
    path = tmp_path / "model.onnx"
    to_onnx(model, x, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for rows in (1, 60):
        found = torch.cat([torch.from_numpy(session.run(None, {name: part.numpy()})[0]) for part in x.split(rows)])
        with torch.no_grad():
            torch.testing.assert_close(found, model(x), rtol=0.0, atol=1e-5)


def test_rows_that_are_not_numbers_spoil_no_others() -> None:
    model, _ = learned((20, 48, 33, 5))
    x = rows_of(20, 30)
    compiled = compile_quickly(model, x, same_bits=True)
    expected = compiled(x)
    x[3, 1], x[17, 4] = torch.nan, torch.inf
    found = compiled(x)
    odd = torch.zeros(30, dtype=torch.bool).index_fill(0, torch.tensor([3, 17]), True)
    assert bool(found[odd].isnan().all())
    torch.testing.assert_close(found[~odd], expected[~odd])


def test_a_plan_for_other_prototypes_is_refused() -> None:
    model, contexts = learned((20, 48, 5))
    x = rows_of(20)
    compiled = compile_quickly(model, x)
    assert verify_model(compiled, model, x).error < 1e-4
    contexts.first.prototypes.copy_(contexts.first.prototypes.roll(1, 0))
    with pytest.raises(ValueError, match="does not compute what the model computes"):
        verify_model(compiled, model, x)


def test_rows_between_two_prototypes_are_left_out_of_the_comparison() -> None:
    model, contexts = learned((20, 48, 5), known=2)
    x = rows_of(20, 40, 2)
    near = compile_quickly(model, x).plan.verification
    first, second = contexts.first.prototypes[:2].clone()
    x[:10] = 0.5 * (first + second)
    also = compile_quickly(model, x).plan.verification
    assert near is not None
    assert also is not None
    assert also.near_threshold >= near.near_threshold + 10
