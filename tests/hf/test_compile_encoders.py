"""Encoders compiled on the CPU: those with the layers of BERT as a whole, others layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.language.plan import BY_LAYER, BYTES, TORCH, WHOLE
from dynamicgate.ops import native

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "BertModel": {}, "BertForMaskedLM": {}, "BertForSequenceClassification": {}, "BertForQuestionAnswering": {},
    "RobertaForTokenClassification": {}, "XLMRobertaModel": {}, "CamembertForMaskedLM": {},
    "ElectraForSequenceClassification": {"embedding_size": 20}, "ErnieModel": {"use_task_id": True},
    "RoCBertModel": {"shape_vocab_size": 61, "pronunciation_vocab_size": 61}, "Data2VecTextModel": {},
    "LayoutLMModel": {"max_2d_position_embeddings": 64},
}  # fmt: skip


def encoder(name: str, *, seed: int = 0, gated: bool = True, **options: Any) -> Any:
    """One with gates on its feed-forward layers, about half of them open."""
    torch.manual_seed(seed)
    model_class = getattr(transformers, name)
    sizes = {**SIZES, **KINDS.get(name, {}), **options}
    model = model_class(model_class.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    if gated:
        dg.gate_(model, dg.GateConfig(block=8, net="linear"), where="mlp")
        for gate in dg.named_gates(model).values():
            nn.init.normal_(gate.bias)
    return model


def padded() -> dict[str, Tensor]:
    """Tokens with padding behind one sequence and before another."""
    generator = torch.Generator().manual_seed(3)
    ids, mask = torch.randint(3, 61, (4, 9), generator=generator), torch.ones(4, 9, dtype=torch.long)
    mask[0, 6:], mask[2, :4] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def compiled(model: nn.Module, example: Mapping[str, Tensor], **options: Any) -> CompiledModel:
    return dg.compile(model, dict(example), seconds=0.01, batches=(4,), **options)


def agrees(fast: CompiledModel, model: nn.Module, inputs: Mapping[str, Tensor], *, within: float = 1e-4) -> bool:
    """Whether every output does, at the positions that are no padding."""
    with torch.no_grad():
        got, want = fast(**inputs), model(**inputs)
    assert type(got) is type(want)
    assert list(got) == list(want)
    seen = inputs.get("attention_mask")
    found = []
    for name in want:
        a, b = got[name].double(), want[name].double()
        if seen is not None and a.shape[:2] == seen.shape:
            a, b = a[seen.bool()], b[seen.bool()]
        found.append(float((a - b).abs().max()) <= within * float(b.abs().max()))
    return all(found)


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("name", KINDS)
def test_an_encoder_runs_as_a_whole(name: str) -> None:
    model, example = encoder(name), padded()
    fast = compiled(model, example)
    assert fast.plan.notes == []
    assert fast.plan.chosen == WHOLE
    for inputs in (
        example,
        {"input_ids": example["input_ids"][:1, :5]},
        {**example, "attention_mask": torch.ones(4, 9)},
        {**example, "attention_mask": example["attention_mask"].bool()},
    ):
        assert agrees(fast, model, inputs), inputs


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_of_both_kinds_of_attention_are_read(attention: str) -> None:
    model, example = encoder("BertModel", attn_implementation=attention), padded()
    fast = compiled(model, example)
    assert fast.plan.chosen == WHOLE
    assert agrees(fast, model, example)
    with torch.no_grad():
        nothing = fast(input_ids=example["input_ids"], attention_mask=torch.zeros(4, 9))
    assert bool(nothing.last_hidden_state.isfinite().all())


@pytest.mark.usefixtures("whole")
def test_arguments_of_the_model_itself_are_those_of_the_plan() -> None:
    ids, mask = padded().values()
    ernie = encoder("ErnieModel")
    assert agrees(
        compiled(ernie, padded()), ernie, {"input_ids": ids, "attention_mask": mask, "task_type_ids": mask * 2}
    )
    bert = encoder("BertModel")
    fast = compiled(bert, padded())
    assert agrees(fast, bert, {**padded(), "token_type_ids": mask, "position_ids": torch.arange(9).flip(0)[None]})
    with torch.no_grad():
        assert torch.allclose(fast(ids, mask)[0][mask == 1], bert(ids, mask)[0][mask == 1], atol=1e-4)
        assert isinstance(fast(ids, mask, return_dict=False), tuple)
        assert fast.body.dtype is torch.float32


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "ElectraForSequenceClassification"])
def test_a_file_holds_all_of_the_plan(name: str, tmp_path: Path) -> None:
    model, example = encoder(name), padded()
    fast = compiled(model, example)
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors", into=encoder(name, seed=1, gated=False))
    with torch.no_grad():
        got, want = again(**example), fast(**example)
    assert all(torch.equal(got[key], want[key]) for key in want)
    with pytest.raises(ValueError, match="another architecture"):
        CompiledModel.load(tmp_path / "plan.safetensors", into=encoder(name, hidden_size=24))


@pytest.mark.usefixtures("whole")
def test_a_head_that_is_tied_to_the_embedding_stays_so() -> None:
    fast = compiled(encoder("BertForMaskedLM"), padded())
    words, head = (fast.body.get_submodule(name) for name in ("bert.embeddings.word_embeddings", "cls.predictions"))
    assert words.weight is head.decoder.weight  # type: ignore[union-attr]


@pytest.mark.usefixtures("whole")
def test_a_plan_has_no_dropout() -> None:
    model = encoder("BertForSequenceClassification")
    fast = compiled(model, padded())
    fast.train()
    assert agrees(fast, model, padded())


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForQuestionAnswering"])
def test_weights_rounded_to_int8(name: str, take: Callable[[str], None]) -> None:
    take(BYTES)
    model = encoder(name, vocab_size=300)
    fast = compiled(model, padded(), weights="int8")
    assert fast.plan.chosen == BYTES
    assert "int8 weights change outputs of the example by up to" in " ".join(fast.plan.notes)
    assert fast.plan.rounding is None  # type: ignore[union-attr]
    assert agrees(fast, model, padded(), within=0.3)


@pytest.mark.usefixtures("whole")
def test_what_a_native_encoder_cannot_do_is_refused_with_a_remedy() -> None:
    fast, (ids, mask) = compiled(encoder("BertForSequenceClassification"), padded()), padded().values()
    between = torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1, 1]] * 4)
    with pytest.raises(ValueError, match="none between"):
        fast(input_ids=ids, attention_mask=between)
    with pytest.raises(ValueError, match="the same for all queries"):
        fast(input_ids=ids, attention_mask=torch.ones(4, 1, 9, 9).tril().bool())
    for options in ({"output_hidden_states": True}, {"output_attentions": True}, {"is_causal": True}):
        with pytest.raises(ValueError, match=f"leave out {next(iter(options))}"):
            fast(input_ids=ids, attention_mask=mask, **options)


def test_an_example_that_a_native_encoder_cannot_read_leaves_the_model_in_torch_or_layer_by_layer() -> None:
    example = padded()
    example["attention_mask"][1, 4] = 0
    fast = compiled(encoder("BertModel"), example)
    assert fast.plan.chosen in (BY_LAYER, TORCH)
    assert "none between" in " ".join(fast.plan.notes)
    assert agrees(fast, encoder("BertModel"), example)


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "decodes": ("BertModel", {"is_decoder": True, "use_cache": False}, "used as a decoder"),
    "another attention": (
        "BigBirdModel",
        {"attention_type": "original_full"},
        "not known to compute what that of BERT",
    ),
    "an odd size of heads": ("BertModel", {"num_attention_heads": 12}, "an even number"),
    "keeps all layers": ("BertModel", {"output_hidden_states": True}, "leave out output_hidden_states"),
    "no layers": ("BertModel", {"num_hidden_layers": 0}, "no layers"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_encoders_say_why_they_do_not_run_as_a_whole(case: str) -> None:
    name, options, reason = OTHERS[case]
    model = encoder(name, gated=case != "no layers", **options)
    fast = compiled(model, padded())
    assert reason in " ".join(fast.plan.notes)
    assert fast.plan.chosen in (BY_LAYER, TORCH)


class Halved(transformers.BertModel):
    """One that is not called as it is built."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state / 2
        return found


class HalfAsMuch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.usefixtures("whole")
def test_what_a_model_does_around_its_layers_stays_and_changed_layers_are_seen() -> None:
    model = Halved(transformers.BertConfig(**SIZES)).eval()  # type: ignore[no-untyped-call]
    fast = compiled(model, padded())
    assert fast.plan.chosen == WHOLE
    assert agrees(fast, model, padded())
    model.encoder.layer[1].output.dropout = HalfAsMuch()
    fast = compiled(model, padded())
    assert fast.plan.chosen == TORCH
    assert agrees(fast, model, padded())


@pytest.mark.usefixtures("whole")
def test_an_encoder_that_could_decode_but_does_not_has_no_cache() -> None:
    model = encoder("BertLMHeadModel")
    fast = dg.compile(model, padded(), seconds=0.01)
    assert fast.plan.chosen == WHOLE
    assert next(regime.name for regime in fast.plan.regimes) == "batch 1"  # type: ignore[union-attr]
    assert agrees(fast, model, padded())


@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM"])
def test_gates_on_heads_are_a_reason(name: str) -> None:
    options = {"num_key_value_heads": 2} if name == "LlamaForCausalLM" else {}
    model = encoder(name, gated=False, **options)
    dg.gate_(model, dg.GateConfig(), where="heads")
    fast = dg.compile(model, padded()["input_ids"][1:2], seconds=0.01)
    assert "has a hook or a gate of its own" in " ".join(fast.plan.notes)
    assert fast.plan.chosen == TORCH
