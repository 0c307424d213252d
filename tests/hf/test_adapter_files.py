"""Gates that are trained beside LoRA are in the adapter's file, and come back with it."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors import safe_open
from transformers import PreTrainedModel

import dynamicgate as dg
from dynamicgate import hf
from tests.hf.test_trainer import BLOCKS, StopAt, largest_difference, trainer
from tests.hf.tiny import gated, tiny_llama, tokens

ORDERS = ("gates first", "LoRA first", "LoRA first, gates on the inner model", "LoRA first, gates on layers")
orders = pytest.mark.parametrize("order", ORDERS)


def lora() -> LoraConfig:
    return LoraConfig(r=2, target_modules=["q_proj", "down_proj", "up_proj"], init_lora_weights=False)


def gated_lora(order: str, base: PreTrainedModel | None = None, **config: Any) -> PeftModel:
    """A gated model with LoRA, both with values that no fresh one has."""
    base = tiny_llama() if base is None else base
    if order == "gates first":
        model = get_peft_model(gated(base, **config), lora())
    else:
        model = get_peft_model(base, lora())
        part: Any = {
            ORDERS[1]: model,
            ORDERS[2]: model.get_base_model(),
            ORDERS[3]: model.get_base_model().model.layers,
        }
        dg.gate_(part[order], dg.GateConfig(**{"block": 8, "open": 0.6, **config}), where="mlp")
        for seed, gate in enumerate(dg.named_gates(model).values()):
            with torch.no_grad():
                gate.bias.add_(torch.randn(gate.bias.shape, generator=torch.Generator().manual_seed(seed)))
    for gate in dg.named_gates(model).values():
        gate.tau.fill_(0.7)
    return hf.train_gates_(model)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=tokens(2, 6)).logits


@orders
def test_a_saved_adapter_brings_its_gates_to_the_base_model(order: str, tmp_path: Path) -> None:
    model = gated_lora(order)
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = PeftModel.from_pretrained(tiny_llama(), tmp_path)
    assert list(dg.named_gates(back)) == list(dg.named_gates(model))
    assert largest_difference(model, back) == 0.0
    assert torch.equal(logits(model), logits(back))
    assert not torch.equal(logits(model), logits(dg.ungate_(copy.deepcopy(model))))
    assert not any(p.requires_grad for gate in dg.named_gates(back).values() for p in gate.parameters())


def test_it_is_loaded_into_the_same_gates_and_refused_by_others(tmp_path: Path) -> None:
    model = gated_lora(ORDERS[0])
    model.save_pretrained(tmp_path)
    back = PeftModel.from_pretrained(gated(tiny_llama(), spread=0.0), tmp_path)
    assert largest_difference(model, back) == 0.0
    with pytest.raises(ValueError, match="not those of the model"):
        PeftModel.from_pretrained(gated(tiny_llama(), block=16), tmp_path)


@pytest.mark.parametrize("order", ORDERS[1:])
def test_a_model_that_had_its_adapter_before_this_package_was_imported(order: str, tmp_path: Path) -> None:
    """Its construction was not seen: putting gates on it, or on a part of it, has to be enough."""
    model = get_peft_model(tiny_llama(), lora())
    model._state_dict_pre_hooks.clear()
    model._load_state_dict_pre_hooks.clear()
    dg.gate_(
        {ORDERS[1]: model, ORDERS[2]: model.get_base_model()}.get(order, model.get_base_model().model), where="mlp"
    )
    model.save_pretrained(tmp_path)
    assert len(dg.named_gates(PeftModel.from_pretrained(tiny_llama(), tmp_path))) == 2


def test_an_adapter_is_not_taken_for_a_model(tmp_path: Path) -> None:
    gated_lora(ORDERS[0]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"peft\.PeftModel\.from_pretrained"):
        hf.load(tmp_path)


def test_an_adapter_without_gates_says_so_to_a_model_with_some(tmp_path: Path) -> None:
    get_peft_model(tiny_llama(), lora()).save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PeftModel.from_pretrained(tiny_llama(), tmp_path)
    with pytest.warns(UserWarning, match="saved without gates"):
        PeftModel.from_pretrained(gated(tiny_llama()), tmp_path)


def test_a_model_without_gates_is_saved_as_before(tmp_path: Path) -> None:
    model = get_peft_model(tiny_llama(), lora())
    model.save_pretrained(tmp_path / "never")
    assert "dynamicgate" not in dict(model.named_children())
    taken_off = gated_lora(ORDERS[0])
    taken_off.save_pretrained(tmp_path / "with")
    dg.ungate_(taken_off)
    taken_off.save_pretrained(tmp_path / "off")
    for folder in ("never", "off"):
        with safe_open(tmp_path / folder / "adapter_model.safetensors", "pt") as file:
            assert all("lora_" in key for key in file.keys()), folder  # noqa: SIM118


def test_copies_other_adapters_and_merging_keep_the_gates(tmp_path: Path) -> None:
    model = gated_lora(ORDERS[0])
    model.save_pretrained(tmp_path / "first")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.add_(1.0)
    copied.add_adapter("net", lora())  # a name that is also a part of the names of gates
    copied.set_adapter("net")
    copied.save_pretrained(tmp_path / "copied")
    back = PeftModel.from_pretrained(tiny_llama(), tmp_path / "copied" / "net", "net")
    for (name, one), two in zip(dg.named_gates(copied).items(), dg.named_gates(back).values(), strict=True):
        assert torch.equal(one.bias, two.bias), name
    copied.set_adapter("default")
    copied.delete_adapter("net")
    expected = logits(copied)
    merged = copied.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(hf.load(tmp_path / "merged")), logits(merged))


def test_prompt_tuning_and_bfloat16(tmp_path: Path) -> None:
    base = gated(tiny_llama()).to(torch.bfloat16)
    model = get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    model.save_pretrained(tmp_path)
    back = PeftModel.from_pretrained(tiny_llama().to(torch.bfloat16), tmp_path)
    assert largest_difference(model, back) == 0.0
    assert {gate.tau.dtype for gate in dg.named_gates(back).values()} == {torch.float32}


def test_adapters_that_transformers_itself_adds_are_saved_with_gates(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    model.add_adapter(lora())
    model.save_pretrained(tmp_path)
    back = PeftModel.from_pretrained(tiny_llama(), tmp_path)
    assert len(dg.named_gates(back)) == 2
    assert torch.equal(logits(model), logits(back))


@orders
def test_a_trainer_resumes_gates_beside_lora_to_the_bit(order: str, tmp_path: Path) -> None:
    def run(folder: str, model: PeftModel, *more: Any) -> Any:
        budget = dg.Budget(target=BLOCKS, tau=dg.schedule.linear(1.0, 0.5))
        options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5}
        made = trainer(model, hf.GateCallback(budget, calibrate=4), tmp_path / folder, **options)
        for callback in more:
            made.add_callback(callback)
        return made

    settings: dict[str, Any] = {"open": 0.9, "train": "bernoulli"}
    whole, stopped, resumed = (gated_lora(order, **settings) for _ in range(3))
    run("whole", whole).train()
    run("two", stopped, StopAt(5)).train()
    with torch.no_grad():
        for gate in dg.named_gates(resumed).values():
            gate.bias.fill_(3.0)  # whatever it starts with
    run("two", resumed).train(resume_from_checkpoint=True)
    assert largest_difference(whole, stopped) > 1e-4
    assert largest_difference(whole, resumed) == 0.0
    last = PeftModel.from_pretrained(tiny_llama(), tmp_path / "two" / "checkpoint-12")
    assert largest_difference(whole, last) == 0.0


def test_the_best_adapter_is_loaded_with_its_gates(tmp_path: Path) -> None:
    model = gated_lora(ORDERS[0])
    before = {name: gate.bias.detach().clone() for name, gate in dg.named_gates(model).items()}
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.zero_()
    model.load_adapter(tmp_path, "default")  # what load_best_model_at_end calls
    assert all(torch.equal(gate.bias, before[name]) for name, gate in dg.named_gates(model).items())


def test_frozen_gates_are_warned_of(tmp_path: Path) -> None:
    model = get_peft_model(gated(tiny_llama()), lora())  # which freezes everything but itself
    run = trainer(model, hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0), tmp_path, max_steps=1)
    with pytest.warns(UserWarning, match="all gates are frozen.*train_gates_"):
        run.train()
