"""Time a saved language model: a prompt, and the tokens after it, one by one. `dynamicgate bench` calls it for language
models."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.decoder_parts import cache_kind
from dynamicgate.inference.language.calls import Generation
from dynamicgate.lab.language.model_file import load_gpt

ROUNDS = 3


def bench_language(
    path: Path, *, prompt_tokens: int, new_tokens: int, seconds: float = 8.0, weights: str | None = None,
    out: Path | None = None, command: str = "dynamicgate bench",
) -> int:  # fmt: skip
    """Compile, time against the dense model and the gated one in torch, print, and write the times as JSON.

    path: a file of `save_gpt`, or a folder of a Hugging Face model. The prompt is random tokens: give a model that was
    trained on text its own text to see what that opens. weights: as in `dynamicgate.compile`.
    """
    if prompt_tokens < 1 or new_tokens < 1:
        raise ValueError(f"expected at least one token of each, received {prompt_tokens} and {new_tokens}")
    model, vocabulary = load_language_model(path)
    kind = cache_kind(model)
    if kind is None:
        raise ValueError(f"{path} holds a {type(model).__name__}, which has no cache: expected a decoder")
    ids = torch.randint(vocabulary, (1, prompt_tokens), generator=torch.Generator().manual_seed(0))
    fast = compile(model, ids, seconds=seconds, weights=weights)
    print(fast.plan, end="\n\n")
    candidates: dict[str, nn.Module] = {"dense": ungate_(load_language_model(path)[0])}
    if named_gates(model):
        candidates["gates in torch"] = model
    candidates["ours"] = fast.body
    times: dict[str, dict[str, float]] = {name: {} for name in candidates}
    for _ in range(ROUNDS):  # they take turns, and the fastest of each counts: other processes only add
        for name, candidate in candidates.items():
            for what, taken in time_generation(candidate, kind, ids, new_tokens).items():
                times[name][what] = min(taken, times[name].get(what, taken))
    print(table(times, prompt_tokens))
    found = {"meta": environment(command), "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "seconds": times}
    target = out or (path / "timing.json" if path.is_dir() else path.with_name("timing.json"))
    write_text(target, json.dumps({**found, "plan": fast.plan.to_dict()}, indent=1))
    print(f"\nwrote {target}")
    return 0


def load_language_model(path: Path) -> tuple[nn.Module, int]:
    """A saved model in evaluation mode, and the size of its vocabulary."""
    if path.is_file():
        model, _, _ = load_gpt(path)
        return model.eval(), model.config.vocabulary
    from transformers import AutoModelForCausalLM

    import dynamicgate.hf  # noqa: F401  (from_pretrained then understands gates)

    found: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return found.eval(), int(found.config.vocab_size)


@torch.no_grad()
def time_generation(model: nn.Module, kind: Any, ids_BT: Tensor, new_tokens: int) -> dict[str, float]:
    """Seconds of the prompt, and of each token after it. Tokens are those that score best."""
    generation = Generation(model.eval(), kind)
    start = time.perf_counter()
    new = generation.step(ids_BT)[:, -1:].argmax(-1)
    first = time.perf_counter()
    for _ in range(new_tokens):
        new = generation.step(new)[:, -1:].argmax(-1)
    return {"prompt": first - start, "token": (time.perf_counter() - first) / new_tokens}


def table(times: Mapping[str, Mapping[str, float]], prompt_tokens: int) -> str:
    """One line for each way to run the model."""
    dense = times["dense"]
    lines = [f"{'':<16}{'prompt ms':>12}{'tokens/s':>12}{'speedup':>10}{'token ms':>12}{'tokens/s':>12}{'speedup':>10}"]
    for name, found in times.items():
        prompt, token = found["prompt"], found["token"]
        lines.append(
            f"{name:<16}{1e3 * prompt:>12,.1f}{prompt_tokens / prompt:>12,.0f}{dense['prompt'] / prompt:>8.2f} x"
            f"{1e3 * token:>12,.2f}{1 / token:>12,.1f}{dense['token'] / token:>8.2f} x"
        )
    return "\n".join(lines)
