"""`compile(weights="int8")`: exact for the rounded model, and honest about what rounding changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.language.packed import decoder_of, stored_in
from dynamicgate.inference.language.pipeline import native_body
from dynamicgate.inference.language.plan import BYTES, TORCH, WHOLE
from dynamicgate.inference.language.rounding import rounded_copy
from dynamicgate.inference.language.saving import native_decoder
from dynamicgate.inference.language.timing import Timed, choose
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.lab.language.gpt import ffn_sites
from dynamicgate.ops import native
from tests.inference.language.models import close, gpt, quickly

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


@pytest.mark.parametrize("sizes", [{}, {"width": 77}, {"features": 24, "heads": 2, "vocabulary": 33}], ids=str)
def test_int8_weights_are_those_of_the_rounded_model(sizes: dict[str, int]) -> None:
    model = gpt(**sizes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rounded = rounded_copy(model)
    parts, ids = parts_of(rounded), torch.randint(33, (2, 19))
    body = native_body(parts, stored_in(decoder_of(parts), "byte panels"))
    assert body.decoder.weights.numel() < 0.45 * native_body(parts).decoder.weights.numel()  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert close(body(ids), copy_in_float64(rounded)(ids))
        assert close(body(ids[:1, :1]), copy_in_float64(rounded)(ids[:1, :1]))
        assert not close(body(ids), copy_in_float64(model)(ids))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_plan_with_int8_weights_says_what_rounding_changes_and_is_saved(
    tmp_path: Path, take: Callable[[str], None]
) -> None:
    take(BYTES)
    model, ids = gpt(), torch.randint(50, (2, 12))
    fast = quickly(model, ids, weights="int8")
    assert [*fast.plan.regimes[1].times] == [TORCH, WHOLE, BYTES]
    assert fast.plan.memory < 0.5
    with torch.no_grad():
        scores = model(ids)[:, :-1].flatten(0, 1)
        rounded = fast(ids)[:, :-1].flatten(0, 1)
    found, next_tokens = fast.plan.rounding, ids[:, 1:].flatten()
    assert found is not None
    assert found.loss == pytest.approx(float(F.cross_entropy(scores, next_tokens)), rel=1e-4)
    assert found.rounded_loss == pytest.approx(float(F.cross_entropy(rounded, next_tokens)), rel=1e-4)
    assert found.same_token == pytest.approx(float((scores.argmax(-1) == rounded.argmax(-1)).double().mean()))
    assert "rounded to int8" in str(fast.plan)
    assert "the rounded model in float64" in str(fast.plan)
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors")
    assert torch.equal(again(ids), fast(ids))
    assert again.plan == fast.plan


@pytest.mark.parametrize(
    "example",
    [torch.randint(50, (2, 1)), {"ids_BT": torch.randint(50, (1, 1))}],
    ids=["tokens", "by name"],
)
def test_an_example_without_a_next_token_says_that_nothing_is_known(example: Any, take: Callable[[str], None]) -> None:
    take(BYTES)
    plan = quickly(gpt(), example, weights="int8").plan
    assert plan.rounding is None
    assert "what that costs in loss is not known" in str(plan)
    assert "the rounded model in float64" in str(plan)


def test_a_compiled_model_can_be_copied_and_pickled(tmp_path: Path, take: Callable[[str], None]) -> None:
    """A plan is saved by its own `save`; copies go by pickle, within a process and to those that it starts."""
    take(BYTES)
    ids = torch.randint(50, (1, 12))
    decoder = native_decoder(quickly(gpt(), ids, weights="int8").body)[1]
    assert decoder.rows is not None
    torch.save(decoder, tmp_path / "decoder.pt")
    for again in (copy.deepcopy(decoder), torch.load(tmp_path / "decoder.pt", weights_only=False)):
        assert again.rows.panels.untyped_storage().data_ptr() == again.weights.untyped_storage().data_ptr()
        for one, other in zip(decoder(decoder.embed(ids), None)[:2], again(again.embed(ids), None)[:2], strict=True):
            assert torch.equal(one, other)


def test_only_what_is_read_as_bytes_is_rounded() -> None:
    for options in ({"block": 1}, {"gates": False, "static": True}):
        model = gpt(**{name: value for name, value in options.items() if name != "static"})
        if "static" in options:
            dg.gate_(model, dg.GateConfig(kind="static", block=16), where=ffn_sites(model))
        rounded = rounded_copy(model)
        decoder = stored_in(decoder_of(parts_of(rounded)), "byte panels")
        assert decoder is not None
        for block, before, after in zip(decoder.blocks, parts_of(model).blocks, parts_of(rounded).blocks, strict=True):
            assert [layer.layout for layer in (block.qkv, block.mix, *block.ffn)] == ["byte panels"] * 3 + ["panels"]
            assert torch.equal(before.down.weight, after.down.weight)
            assert not torch.equal(before.up.weight, after.up.weight)


def test_rounded_weights_have_to_be_clearly_faster_than_exact_ones() -> None:
    def chosen(**us: float) -> str:
        names = {"torch": TORCH, "whole": WHOLE, "int8": BYTES}
        return choose([Timed("a token", 1, {names[name]: time for name, time in us.items()})])

    assert chosen(torch=100.0, whole=50.0, int8=49.9) == WHOLE
    assert chosen(torch=100.0, whole=50.0, int8=40.0) == BYTES
    assert chosen(torch=100.0, whole=200.0, int8=99.0) == TORCH


def test_nothing_is_rounded_unless_asked_for_or_where_it_does_not_pay(take: Callable[[str], None]) -> None:
    model, ids = gpt(), torch.randint(50, (1, 12))
    assert BYTES not in quickly(model, ids).plan.regimes[0].times
    take(WHOLE)
    exact = quickly(model, ids, weights="int8")
    assert exact.plan.rounding is None
    with torch.no_grad():
        assert close(exact(ids), copy_in_float64(model)(ids))


def test_int8_is_refused_where_nothing_is_native_as_a_whole() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match="give an example of tokens"):
        dg.compile(nn.Linear(8, 4), x, weights="int8")
    with pytest.raises(ValueError, match="weights must be None or 'int8'"):
        dg.compile(gpt(), torch.randint(50, (1, 12)), weights="int4")
    model = gpt()
    model.norm = nn.BatchNorm1d(model.norm.weight.numel())  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match="models that run natively as a whole: not native as a whole"):
        dg.compile(model, torch.randint(50, (1, 12)), weights="int8", seconds=0.0)
