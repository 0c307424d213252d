"""A gated model has a config of its own, so that models that were built from one config keep their gates apart."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dynamicgate as dg
import dynamicgate.hf
from tests.hf.tiny import gated, tiny_llama, tokens


def described(folder: Path) -> int:
    config = LlamaConfig.from_pretrained(folder)
    return len((getattr(config, "quantization_config", None) or {"gates": []})["gates"])


def test_models_that_were_built_from_one_config_keep_their_gates_apart(tmp_path: Path) -> None:
    config = tiny_llama().config
    before = config.to_dict()
    first, second, dense = (LlamaForCausalLM(config) for _ in range(3))
    gated(first, tau=0.7)
    gated(second)
    dg.ungate_(second, "model.layers.0.mlp.down_proj")
    assert config.to_dict() == before
    later = LlamaForCausalLM(config)
    for name, model, count in (("a", first, 2), ("b", second, 1), ("c", dense, 0), ("d", later, 0)):
        model.save_pretrained(tmp_path / name)
        assert described(tmp_path / name) == count
        back = LlamaForCausalLM.from_pretrained(tmp_path / name)
        assert list(dg.named_gates(back)) == list(dg.named_gates(model))
        assert {gate.config.tau for gate in dg.named_gates(back).values()} <= ({0.7} if model is first else {1.0})
        with torch.no_grad():
            assert torch.equal(back(tokens(2, 6)).logits, model.eval()(tokens(2, 6)).logits)


def test_the_parts_of_a_gated_model_share_its_new_config() -> None:
    model = tiny_llama()
    old = model.config
    gated(model)
    assert model.config is not old
    held = [value for m in model.modules() for value in vars(m).values() if isinstance(value, LlamaConfig)]
    assert len(held) > 3
    assert all(value is model.config for value in held)
    new = model.config
    dg.ungate_(model, "model.layers.0.mlp.down_proj")
    assert model.config is new, "one copy is enough"
