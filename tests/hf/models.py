"""Tiny random models of every family that gates are tested on: `tiny(name)`, and `inputs(name)` to run them on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn

WIDTH, FFN_WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 32, 64, 4, 2, 2, 64
BATCH, TOKENS = 2, 6

SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": FFN_WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY, "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": KV_HEADS}
TOKEN_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Family(NamedTuple):
    """How a family is built, and what is to be found in it."""

    model: str
    config: str
    options: dict[str, Any]
    ffn: str
    """The class around each feed-forward layer."""
    input: str = "tokens"
    generates: bool = True
    ffns: int = LAYERS
    attentions: int = LAYERS
    kv_heads: int = HEADS


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, "LlamaMLP", kv_heads=KV_HEADS),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", GROUPED, "Qwen2MLP", kv_heads=KV_HEADS),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"head_dim": 8}, "Qwen3MLP", kv_heads=KV_HEADS),
    "mistral": Family("MistralForCausalLM", "MistralConfig", GROUPED, "MistralMLP", kv_heads=KV_HEADS),
    "gemma3": Family(
        "Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {"head_dim": 16, "sliding_window": 4}, "Gemma3MLP",
        kv_heads=KV_HEADS,
    ),
    "phi": Family("PhiForCausalLM", "PhiConfig", SIZES, "PhiMLP"),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", GROUPED, "Phi3MLP", kv_heads=KV_HEADS),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES, "GPTNeoXMLP"),
    "gpt2": Family(
        "GPT2LMHeadModel", "GPT2Config",
        {"n_embd": WIDTH, "n_inner": FFN_WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY,
         "n_positions": 32},
        "GPT2MLP",
    ),
    "opt": Family(
        "OPTForCausalLM", "OPTConfig",
        {"hidden_size": WIDTH, "ffn_dim": FFN_WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "vocab_size": VOCABULARY, "max_position_embeddings": 32, "word_embed_proj_dim": WIDTH},
        "OPTDecoderLayer",
    ),
    "bert": Family("BertForMaskedLM", "BertConfig", SIZES, "BertLayer", generates=False),
    "roberta": Family("RobertaForMaskedLM", "RobertaConfig", SIZES, "RobertaLayer", generates=False),
    "modernbert": Family(
        "ModernBertForMaskedLM", "ModernBertConfig", SIZES | {"cls_token_id": 1, "sep_token_id": 2},
        "ModernBertMLP", generates=False,
    ),
    "vit": Family(
        "ViTForImageClassification", "ViTConfig",
        {name: SIZES[name] for name in SIZES if name not in ("vocab_size", "max_position_embeddings")}
        | {"image_size": 8, "patch_size": 4, "num_labels": 3},
        "ViTMLP", input="image", generates=False,
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
         "decoder_attention_heads": HEADS, "encoder_ffn_dim": FFN_WIDTH, "decoder_ffn_dim": FFN_WIDTH,
         "vocab_size": VOCABULARY, "max_source_positions": 10, "max_target_positions": 32, "num_mel_bins": 4,
         "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
        "WhisperEncoderLayer", input="sound", ffns=2 * LAYERS, attentions=3 * LAYERS,
    ),
    "t5": Family(
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": FFN_WIDTH, "num_layers": LAYERS, "num_heads": HEADS,
         "vocab_size": VOCABULARY, "decoder_start_token_id": 0},
        "T5DenseActDense", input="pair", ffns=2 * LAYERS, attentions=3 * LAYERS,
    ),
}  # fmt: skip
NAMES = list(FAMILIES)
GENERATING = [name for name in NAMES if FAMILIES[name].generates]
DECODERS = [name for name in GENERATING if FAMILIES[name].input == "tokens"]


def tiny(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    """A random model of a family in evaluation mode; `options` are settings of its configuration."""
    family = FAMILIES[name]
    special = {} if family.input == "image" else TOKEN_IDS
    config = getattr(hf, family.config)(**{**special, **family.options, **options})
    torch.manual_seed(seed)
    model: nn.Module = getattr(hf, family.model)(config).eval()
    return model


def inputs(name: str, *, batch: int = BATCH, tokens: int = TOKENS, seed: int = 1) -> dict[str, Tensor]:
    """Keyword arguments for one forward pass. No token is padding, the start or the end of a text."""
    drawn = torch.Generator().manual_seed(seed)

    def ids(count: int) -> Tensor:
        return torch.randint(3, VOCABULARY, (batch, count), generator=drawn)

    match FAMILIES[name].input:
        case "image":
            return {"pixel_values": torch.randn(batch, 3, 8, 8, generator=drawn)}
        case "sound":
            features = torch.randn(batch, 4, 20, generator=drawn)
            return {"input_features": features, "decoder_input_ids": ids(tokens)}
        case "pair":
            return {"input_ids": ids(tokens), "decoder_input_ids": ids(tokens - 2)}
        case _:
            return {"input_ids": ids(tokens), "attention_mask": torch.ones(batch, tokens, dtype=torch.long)}


def prompt(name: str) -> dict[str, Tensor]:
    """What `generate` starts from."""
    return {key: value for key, value in inputs(name).items() if not key.startswith("decoder")}
