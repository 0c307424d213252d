"""Is a compiled gated language model ever slower than the dense one of the same size? On one thread, over sizes, open
fractions and numbers of tokens.

For each model the dense one without gates runs in our own kernels and in eager torch, the gated ones in our kernels.
All take turns in one process, and the medians of processor time are compared. One token and four come after a cache of
512, more are prompts.

    OMP_NUM_THREADS=1 python benchmarks/cpu_language_grid.py            # results/cpu_language_grid.json
    OMP_NUM_THREADS=1 python benchmarks/cpu_language_grid.py --quick    # a tiny model, prints only
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from language_cases import BLOCK, set_gates_
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.decoder_parts import cache_kind, parts_of
from dynamicgate.inference.language.calls import Generation
from dynamicgate.inference.language.pipeline import native_body
from dynamicgate.inference.language.timing import median_times
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites

OUT = Path(__file__).resolve().parent / "results" / "cpu_language_grid.json"
OPEN = (1.0, 0.95, 0.75, 0.5, 0.25, 0.1, 0.05)
TOKENS = (1, 4, 16, 64, 256, 1024)
VOCABULARY, PAST = 512, 512


def gpt(features: int, layers: int, width: int) -> nn.Module:
    """A GPT with random weights."""
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "features": features, "heads": features // 64}
    return GPT(GPTConfig(layers=layers, width=width, context=2048, **sizes))


def llama(features: int, layers: int, width: int) -> nn.Module:
    """A model of the Llama kind with random weights: SwiGLU, three heads of queries share their keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = features // 64
    shape = {"hidden_size": features, "intermediate_size": width, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    config = LlamaConfig(**shape, num_attention_heads=heads, num_key_value_heads=heads // 3)  # type: ignore[arg-type]
    llama: Any = LlamaForCausalLM  # typed in some versions of transformers only
    return llama(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT 128 x 4, FFN 1024": partial(gpt, 128, 4, 1024),
    "GPT 512 x 2, FFN 8192": partial(gpt, 512, 2, 8192),
    "Llama 576 x 4, FFN 1536": partial(llama, 576, 4, 1536),
}


def gated(build: Callable[[], nn.Module], fraction: float, ids: Tensor) -> nn.Module:
    """The model with gates of which this fraction is open."""
    torch.manual_seed(0)
    model = build().eval().requires_grad_(False)
    where = ffn_sites(model) if isinstance(model, GPT) else "mlp"
    dg.gate_(model, dg.GateConfig(block=BLOCK, net="linear"), where=where)
    if fraction == 1.0:
        for gate in dg.named_gates(model).values():
            gate.bias.fill_(1e3)
    else:
        set_gates_(model, ids, [fraction] * len(dg.named_gates(model)))
    return model


def call_of(model: nn.Module, tokens: int, ids: Tensor) -> Callable[[], object]:
    """One step: few tokens after a cache, or a prompt."""
    kind = cache_kind(model)
    assert kind is not None
    if tokens > 4:
        return lambda: Generation(model, kind).step(ids[:, :tokens])
    generation = Generation(model, kind)
    generation.step(ids[:, :PAST])
    return partial(generation.step, ids[:, PAST : PAST + tokens])


@torch.no_grad()
def measure(name: str, seconds: float, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
    """All open fractions and numbers of tokens of one model."""
    build = MODELS[name]
    ids = torch.randint(VOCABULARY, (1, 2048), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    dense = build().eval().requires_grad_(False)
    bodies: dict[str, nn.Module] = {"eager dense": dense, "our dense": native_body(parts_of(dense)).eval()}
    for fraction in OPEN:
        model = gated(build, fraction, ids[:, :256].view(4, 64))
        bodies[str(fraction)] = native_body(parts_of(model)).eval()
    rows = []
    for count in tokens:
        calls = {of: call_of(body, count, ids) for of, body in bodies.items()}
        with torch.inference_mode():
            us = median_times(calls, seconds=seconds, rounds=3, clock=time.process_time)
        for fraction in OPEN:
            over = {f"over {of}": us[of] / us[str(fraction)] for of in ("our dense", "eager dense")}
            row = {"model": name, "open": fraction, "tokens": count, "us": us[str(fraction)], **over}
            rows.append(row)
        found = ", ".join(f"{row['open']}: {row['over our dense']:.3f}" for row in rows[-len(OPEN) :])
        print(
            f"{name}, {count} tokens: our dense over eager {us['eager dense'] / us['our dense']:.2f}; {found}",
            flush=True,
        )
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model, few tokens, nothing is written")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each model and number of tokens")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if torch.get_num_threads() != 1:
        raise SystemExit("set OMP_NUM_THREADS=1: processor time is that of all threads")
    meta = environment("OMP_NUM_THREADS=1 python benchmarks/cpu_language_grid.py") | {"backend": ops.backend()}
    names = list(MODELS)[:1] if args.quick else list(MODELS)
    rows = [
        row
        for name in names
        for row in measure(name, 1.0 if args.quick else args.seconds, TOKENS[:4] if args.quick else TOKENS)
    ]
    least = min(rows, key=lambda row: row["over our dense"])
    print(f"least: {least['over our dense']:.3f} at {least['model']}, {least['open']} open, {least['tokens']} tokens")
    if not args.quick:
        write_text(args.out, json.dumps({"meta": meta, "rows": rows}, indent=1))
        print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
