"""Gates and masks survive `save_pretrained`, and nothing loads a gated model without them."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BitNetQuantConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
)

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.sparsity import Static
from tests.hf.tiny import FAMILIES, gated, mlp_sites, padded, tiny_llama, tokens


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**padded(tokens(2, 6), 2)).logits


def equal_tensors(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name]) for name in mine
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_loaded_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = gated(FAMILIES[family](), tau=0.7, theta=0.55)
    with torch.no_grad():
        next(iter(dg.named_gates(model).values())).tau.fill_(0.3)  # as a budget does
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert equal_tensors(model, back)
    assert torch.equal(logits(model), logits(back))
    gates, loaded = dg.named_gates(model), dg.named_gates(back)
    assert [(gate.config, gate.site) for gate in gates.values()] == [(g.config, g.site) for g in loaded.values()]
    assert equal_tensors(model, hf.load(tmp_path))


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    model = gated(tiny_llama(tied=True))
    model.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert back.lm_head.weight is back.model.embed_tokens.weight
    assert torch.equal(logits(model), logits(back))


@pytest.mark.parametrize("family", FAMILIES)
def test_thresholds_stay_float32_under_any_dtype(family: str, tmp_path: Path) -> None:
    model = gated(FAMILIES[family](), tau=0.7, theta=0.55)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    converted = model.to(torch.bfloat16)
    for found in (loaded, converted, copy.deepcopy(model).to(torch.float64), loaded.half()):
        for gate in dg.named_gates(found).values():
            assert gate.tau.dtype == gate.theta.dtype == torch.float32
            assert float(gate.tau) == pytest.approx(0.7, abs=1e-7)
            assert float(gate.theta) == pytest.approx(0.55, abs=1e-7)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert equal_tensors(converted, loaded)
    assert next(iter(dg.named_gates(loaded).values())).bias.dtype == torch.bfloat16


def test_masks_of_sparse_layers_are_kept_with_and_without_gates(tmp_path: Path) -> None:
    for gates in (False, True):
        model = gated(tiny_llama()) if gates else tiny_llama()
        Static(model, density=0.5, include=["*down_proj", "*up_proj"])
        model.save_pretrained(tmp_path)
        back = hf.load(tmp_path)
        assert equal_tensors(model, back)
        assert any(name.endswith("down_proj.mask") for name in back.state_dict())
        assert torch.equal(logits(model), logits(back))


def test_the_config_says_what_the_model_has_when_it_is_saved(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    dg.ungate_(model, "model.layers.0.mlp.down_proj")
    model.save_pretrained(tmp_path / "one")
    assert list(dg.named_gates(hf.load(tmp_path / "one"))) == ["model.layers.1.mlp.down_proj"]
    dg.ungate_(model)
    model.save_pretrained(tmp_path / "none")
    written = json.loads((tmp_path / "none" / "config.json").read_text())
    assert not {"quantization_config", "fusion_config", "dynamicgate"} & written.keys()


def test_a_loaded_model_can_be_changed_and_saved_again(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path / "a")
    model = hf.load(tmp_path / "a")
    copied = copy.deepcopy(model)
    dg.ungate_(model, "model.layers.1.mlp.down_proj")
    model.save_pretrained(tmp_path / "b")
    copied.save_pretrained(tmp_path / "c")
    assert len(dg.named_gates(hf.load(tmp_path / "b"))) == 1
    assert equal_tensors(hf.load(tmp_path / "c"), hf.load(tmp_path / "a"))


def test_a_loaded_model_is_an_ordinary_one(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path)
    model = hf.load(tmp_path)
    assert getattr(model, "hf_quantizer", None) is None
    assert not model.is_quantized
    assert model.half().dtype == torch.float16
    assert model.float().generate(tokens(1, 4), max_new_tokens=3, do_sample=False).shape == (1, 7)


def test_gates_follow_the_base_model_under_another_head(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    model.save_pretrained(tmp_path / "causal")
    base = AutoModel.from_pretrained(tmp_path / "causal")
    assert isinstance(base, LlamaModel)
    assert list(dg.named_gates(base)) == ["layers.0.mlp.down_proj", "layers.1.mlp.down_proj"]
    base.save_pretrained(tmp_path / "base")
    back = hf.load(tmp_path / "base", AutoModelForCausalLM)
    assert list(dg.named_gates(back)) == list(dg.named_gates(model))
    assert equal_tensors(back.model, model.model)


def test_gates_on_a_part_are_saved_with_the_whole(tmp_path: Path) -> None:
    model = tiny_llama()
    dg.gate_(model.model, where=mlp_sites(model.model))
    model.save_pretrained(tmp_path)
    assert equal_tensors(model, hf.load(tmp_path))


def test_without_this_package_loading_fails_and_says_why(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path)
    code = f"""
from transformers import AutoModelForCausalLM, LlamaForCausalLM
for cls in (AutoModelForCausalLM, LlamaForCausalLM):
    try:
        cls.from_pretrained({str(tmp_path)!r})
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.count("import dynamicgate.hf") for line in done.stdout.splitlines()] == [1, 1]


def test_a_folder_without_gates_is_refused(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a model without gates"):
        hf.load(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["format"] = 99
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="upgrade dynamicgate"):
        hf.load(tmp_path)


# Transformers' BitNet is compiled when it is imported, and torch's compiler uses what torch has deprecated.
IMPORTS_COMPILER = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture
def quantised(tmp_path: Path) -> PreTrainedModel:
    """A model that somebody else quantises: BitNet's layers, which need no package and no GPU to be loaded."""
    tiny_llama().save_pretrained(tmp_path / "plain")
    path = tmp_path / "plain" / "config.json"
    quantisation = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantisation}))
    return AutoModelForCausalLM.from_pretrained(tmp_path / "plain")


@IMPORTS_COMPILER
def test_gates_beside_another_quantisation_are_saved_and_loaded(quantised: PreTrainedModel, tmp_path: Path) -> None:
    model = gated(quantised)
    model.save_pretrained(tmp_path / "both")
    back = hf.load(tmp_path / "both")
    assert equal_tensors(model, back)
    assert type(back.model.layers[0].mlp.down_proj) is type(model.model.layers[0].mlp.down_proj) is not torch.nn.Linear
    assert back.config.quantization_config.quant_method == "bitnet"
    back.save_pretrained(tmp_path / "again")
    assert equal_tensors(model, hf.load(tmp_path / "again", dtype=torch.float32))


@IMPORTS_COMPILER
def test_gates_beside_another_quantisation_are_not_lost_without_a_word(
    quantised: PreTrainedModel, tmp_path: Path
) -> None:
    gated(quantised).save_pretrained(tmp_path / "both")
    with pytest.raises(ValueError, match=r"load it with dynamicgate\.hf\.load"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "both")


def test_the_config_of_a_gated_model_loads_alone(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert len(config.quantization_config["gates"]) == 2


def test_a_config_of_a_gated_model_can_be_passed_and_is_left_alone(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    model.save_pretrained(tmp_path)
    before = json.loads(model.config.to_json_string())
    for load in (hf.load, type(model).from_pretrained):
        assert equal_tensors(model, load(tmp_path, config=model.config))
        assert json.loads(model.config.to_json_string()) == before


def test_a_pickled_config_says_the_same(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    assert pickle.loads(pickle.dumps(model.config)).to_dict() == model.config.to_dict()
    assert copy.deepcopy(model.config).to_dict() == model.config.to_dict()


def test_a_second_quantisation_of_a_gated_folder_is_refused(tmp_path: Path) -> None:
    gated(tiny_llama()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BitNetQuantConfig"):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=BitNetQuantConfig())


def test_a_class_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    class MyLlama(LlamaForCausalLM):
        pass

    model = gated(MyLlama(tiny_llama().config))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pass model_class="):
        hf.load(tmp_path)
    assert equal_tensors(model, hf.load(tmp_path, MyLlama))
    assert equal_tensors(model, hf.load(tmp_path, AutoModelForCausalLM, local_files_only=True))
