"""The language models that the CPU benchmarks time, and how their gates come to be open.

Random weights have no gates that know anything: each layer opens the fraction of its blocks that the layers of a small
trained GPT open (`trained_rates.py`), scaled to the mean that is asked for. SmolLM2-135M with its own weights is
converted: `hf.convert_` orders its units and fits its gates to what their blocks add on text, or puts thresholds on all
that its feed-forward layers read (magnitudes).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from trained_rates import trained_rates

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.lab.language.corpora import detokenised
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites

BLOCK = 128
CONVERTED_BLOCK = 32
TIMED, FITTED, LENGTH = (
    8,
    16,
    256,
)  # windows of text that models are timed on, those behind them that gates are fitted to
WINDOW = 512
CHARACTERS = 8  # at most, for a token


@dataclass(frozen=True)
class Case:
    """A model, what it is called with, and how much of it is open."""

    name: str
    build: Callable[[], nn.Module]
    where: Callable[[Any], Any]
    vocabulary: int
    open: tuple[float, ...]
    past: int
    prompt: int
    sequences: int = 1
    narrower: Callable[[], dict[str, nn.Module]] = dict  # other dense rivals by what tells them apart
    rivals_prompt: bool = True  # whether torch.compile and ONNX Runtime are timed on the prompt too
    text: Callable[[int, int], Tensor] | None = None  # windows of text; without, tokens are drawn
    magnitudes: bool = False  # thresholds on what layers read instead of gate networks

    def tokens(self) -> Tensor:
        """What the model reads."""
        shape = (self.sequences, max(self.past, self.prompt))
        if self.text is not None:
            return self.text(*shape)
        return torch.randint(self.vocabulary, shape, generator=torch.Generator().manual_seed(2))


def gpt_case(open: Sequence[float], sequences: int, *, quick: bool) -> Case:
    """A GPT of 512 features, 8 layers and 8,192 hidden units."""
    sizes: dict[str, Any] = {"vocabulary": 4096, "features": 512, "layers": 8, "heads": 8, "width": 8192}
    if quick:
        sizes = {"vocabulary": 256, "features": 128, "layers": 2, "heads": 4, "width": 1024}
    past, prompt = (64, 32) if quick else (512, 256)
    name = f"GPT {sizes['features']} x {sizes['layers']}, FFN {sizes['width']}"

    def build(width: int = sizes["width"]) -> GPT:
        return GPT(GPTConfig(context=1024, **{**sizes, "width": width})).eval().requires_grad_(False)

    def narrower() -> dict[str, nn.Module]:
        return {f"FFN {width}": build(width) for width in (sizes["width"] // 2, sizes["width"] // 4)}

    return Case(name, build, ffn_sites, sizes["vocabulary"], tuple(open), past, prompt, sequences, narrower)


def smollm_case(
    open: Sequence[float], sequences: int, *, quick: bool, weights: str | None = None, text: Path | None = None,
    magnitudes: bool = False,
) -> Case:  # fmt: skip
    """SmolLM2-135M: its shape with random weights, or its weights from a folder, which read text."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
    }  # fmt: skip
    if quick:
        shape |= {"vocab_size": 1024, "num_hidden_layers": 2}
    past, prompt = (32, 32) if quick else (512, 256)

    def build() -> nn.Module:
        if weights is not None:
            return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        llama: Any = LlamaForCausalLM  # typed in some versions of transformers only
        return llama(LlamaConfig(**shape))

    name = "SmolLM2-135M" + ("" if weights else ", random weights") + (", 2 layers" if quick and not weights else "")
    return Case(
        name + (", magnitudes" if magnitudes else ""), build, lambda _: "mlp", shape["vocab_size"], tuple(open), past,
        prompt, sequences, rivals_prompt=False, magnitudes=magnitudes,
        text=None if weights is None or text is None else lambda *shape: text_windows(weights, text, *shape),
    )  # fmt: skip


def minilm_case(
    open: Sequence[float], shape: tuple[int, int], *, quick: bool, weights: Path | None, text: Path | None
) -> Case:
    """MiniLM: its shape with random weights, or its weights from a folder, which read text.

    shape: sequences and their tokens.
    """
    from transformers import AutoModel, BertConfig, BertModel

    sizes: dict[str, Any] = {
        "vocab_size": 30522, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 12, "max_position_embeddings": 512,
    }  # fmt: skip
    if quick:
        sizes |= {"vocab_size": 512, "num_hidden_layers": 2}

    def build() -> nn.Module:
        if weights is not None:
            return AutoModel.from_pretrained(weights, dtype=torch.float32)
        bert: Any = BertModel  # typed in some versions of transformers only
        return bert(BertConfig(**sizes))

    sequences, tokens = shape
    name = "MiniLM" + ("" if weights else ", random weights") + (", 2 layers" if quick and not weights else "")
    return Case(
        name, build, lambda _: "mlp", sizes["vocab_size"], tuple(open), 0, tokens, sequences,
        text=None if weights is None or text is None else lambda *shape: text_windows(str(weights), text, *shape),
    )  # fmt: skip


def in_bfloat16(case: Case) -> Case:
    """The same with weights that bfloat16 holds, as checkpoints in bfloat16 have them."""

    def rounded(model: nn.Module) -> nn.Module:
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                layer.weight.data = layer.weight.data.bfloat16().float()
        return model

    return replace(
        case, name=f"{case.name}, bfloat16", build=lambda: rounded(case.build()),
        narrower=lambda: {what: rounded(model) for what, model in case.narrower().items()},
    )  # fmt: skip


def gated_of(case: Case, fraction: float, steps: int) -> nn.Module:
    """The gated model, this fraction of its feed-forward layers executed."""
    torch.manual_seed(0)
    model = case.build().eval().requires_grad_(False)
    if case.text is not None:
        return _converted(model, case.text(TIMED + FITTED, LENGTH)[TIMED:], fraction, case.magnitudes)
    ids = torch.randint(case.vocabulary, (4, 256), generator=torch.Generator().manual_seed(1))
    if case.magnitudes:
        return _converted(model, ids, fraction, True)
    dg.gate_(model, dg.GateConfig(block=BLOCK, net="linear"), where=case.where(model))
    set_gates_(model, ids, trained_rates(len(dg.named_gates(model)), fraction, steps))
    return model


@torch.no_grad()
def set_gates_(model: nn.Module, ids: Tensor, rates: Sequence[float]) -> None:
    """Move the threshold of every block so that it is open for the given fraction of the tokens, layer by layer."""
    for (name, gate), rate in zip(dg.named_gates(model).items(), rates, strict=True):
        with dg.usage(model) as used:
            gate.bias.zero_()
            model(ids)
            gate.bias.copy_(-used[name].logits.flatten(0, -2).quantile(1.0 - rate, dim=0))


def _converted(model: nn.Module, ids: Tensor, fraction: float, magnitudes: bool) -> nn.Module:
    """With gates that text was shown to, gate networks counted in the fraction."""
    windows = [{"input_ids": window[None]} for window in ids]
    total = hf.measure(model, windows[:1]).macs["dense"]
    ffn = sum(p.numel() for name, p in model.named_parameters() if _is_ffn(name))  # a MAC for each weight and token
    budget = 1.0 - (1.0 - fraction) * ffn / total
    if magnitudes:
        hf.convert_(model, budget, windows, net="magnitude", show=False)
    else:
        hf.convert_(model, budget, windows, block=CONVERTED_BLOCK, show=False)
    return model.eval().requires_grad_(False)


def _is_ffn(name: str) -> bool:
    """Of a parameter of Llama or BERT."""
    parts = name.split(".")
    return "mlp" in parts or "intermediate" in parts or ("output" in parts and "attention" not in parts)


def text_windows(folder: str, text: Path, count: int, length: int = WINDOW) -> Tensor:
    """The first windows of a text, as tokens of the model in a folder."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    raw = detokenised(text.read_text(encoding="utf-8"))[: CHARACTERS * length * count]
    ids = tokenizer(raw, return_tensors="pt")["input_ids"][0]
    if len(ids) < length * count:
        raise ValueError(f"{text} has {len(ids)} tokens, expected {length * count}: ask for fewer windows")
    return ids[: length * count].view(count, length)


def below(variable: str, name: str) -> Path | None:
    """What lies in the folder that an environment variable names, if it is there."""
    path = Path(os.environ.get(variable, "")) / name
    return path if variable in os.environ and path.exists() else None
