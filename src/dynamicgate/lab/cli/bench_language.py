"""Time a saved language model: a prompt, and the tokens after it, one by one. `dynamicgate bench` calls it for language
models."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.decoder_parts import CacheKind, cache_kind, parts_of
from dynamicgate.inference.language.calls import Generation
from dynamicgate.inference.timing import RoundRobin
from dynamicgate.lab.cli.decoder_step import DecoderStep
from dynamicgate.lab.language.model_file import load_gpt
from dynamicgate.lab.report.language_timing import DENSE, OURS, write_language_timing

LEAST_ROUNDS, MOST_ROUNDS = 5, 25
PROMPT_TOKENS, NEW_TOKENS = 1024, 128
TORCH_COMPILE, OWN_DENSE, GATED = f"{DENSE}, torch.compile", f"{DENSE}, compiled", "gates in torch"
Turn = Callable[[], tuple[float, float]]
"""Runs a prompt and the tokens after it; seconds of the prompt, and of one token."""


class Loaded(NamedTuple):
    """A saved model in evaluation mode."""

    model: nn.Module
    vocabulary: int
    context: int | None
    """The positions that it was made for, if it says so."""


def bench_language(
    path: Path, *, prompt_tokens: int | None = None, new_tokens: int | None = None, seconds: float = 8.0,
    weights: str | None = None, torch_compile: bool = True, out: Path | None = None,
    command: str = "dynamicgate bench",
) -> int:  # fmt: skip
    """Compile, time against the dense model, print, and write the times as JSON and as a page beside it.

    path: a file of `save_gpt`, or a folder of a Hugging Face model. The prompt is random tokens: give a model that was
    trained on text its own text to see what that opens. prompt_tokens, new_tokens: 1,024 and 128 by default, fewer
    where the context is shorter. weights: as in `dynamicgate.compile`, for the dense model as well.
    """
    for count in (prompt_tokens, new_tokens):
        if count is not None and count < 1:
            raise ValueError(f"expected at least one token of each, received {prompt_tokens} and {new_tokens}")
    loaded = load_language_model(path)
    prompt_tokens, new_tokens = token_counts(loaded.context, prompt_tokens, new_tokens)
    model, kind = loaded.model, cache_kind(loaded.model)
    if kind is None:
        raise ValueError(f"{path} holds a {type(model).__name__}, which has no cache: expected a decoder")
    ids = torch.randint(loaded.vocabulary, (1, prompt_tokens), generator=torch.Generator().manual_seed(0))
    fast = compile(model, ids, seconds=seconds, weights=weights)
    print(fast.plan, end="\n\n")
    dense = ungate_(load_language_model(path).model)
    own = compile(dense, ids, seconds=seconds, weights=weights)
    turns: dict[str, Turn] = {DENSE: _generating(dense, kind, ids, new_tokens)}
    notes = []
    if torch_compile:
        try:
            turns[TORCH_COMPILE] = _compiled_by_torch(dense, ids, new_tokens)
        except Exception as error:  # whatever its compiler says: without it there is one rival less
            first = next(iter(str(error).splitlines()), "")
            notes.append(f"torch.compile is left out: {type(error).__name__}: {first:.200}")
    turns[OWN_DENSE] = _generating(own.body, kind, ids, new_tokens)
    if named_gates(model):
        turns[GATED] = _generating(model, kind, ids, new_tokens)
    turns[OURS] = _generating(fast.body, kind, ids, new_tokens)
    rounds = time_in_turns(turns, seconds)
    rows = [
        {"what": f"a prompt of {prompt_tokens:,} tokens", "tokens": prompt_tokens, **_row(rounds, 0)},
        {"what": f"one more token, mean of {new_tokens:,}", "tokens": 1, **_row(rounds, 1)},
    ]
    print(table(rows, notes))
    found = {
        "meta": environment(command), "model": path.name, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens,
        "rounds": len(rounds[DENSE]), "rows": rows, "notes": notes, "plan": fast.plan.to_dict(),
        "plan_text": str(fast.plan), "dense_plan": own.plan.to_dict(),
    }  # fmt: skip
    target = out or (path / "timing.json" if path.is_dir() else path.with_name("timing.json"))
    write_text(target, json.dumps(found, indent=1))
    print(f"\nwrote {target} and {write_language_timing(found, target.with_suffix('.html'))}")
    return 0


def load_language_model(path: Path) -> Loaded:
    """A model that was saved with its gates."""
    if path.is_file():
        model, _, _ = load_gpt(path)
        return Loaded(model.eval(), model.config.vocabulary, model.config.context)
    from transformers import AutoModelForCausalLM

    import dynamicgate.hf  # noqa: F401  (from_pretrained then understands gates)

    found: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    context = getattr(found.config, "max_position_embeddings", None)
    return Loaded(found.eval(), int(found.config.vocab_size), context)


def token_counts(context: int | None, prompt: int | None, new: int | None) -> tuple[int, int]:
    """How many tokens to time: those asked for, otherwise 1,024 and 128, or as many as the context has room for."""
    room = PROMPT_TOKENS + NEW_TOKENS if context is None else context
    if new is None:
        new = max(1, min(NEW_TOKENS, room // 2 if prompt is None else room - prompt))
    return (max(1, min(PROMPT_TOKENS, room - new)) if prompt is None else prompt), new


def _generating(model: nn.Module, kind: CacheKind, ids_BT: Tensor, new_tokens: int) -> Turn:
    """The model as it is called, with its own cache. Tokens are those that score best."""
    model.eval()

    def turn() -> tuple[float, float]:
        generation = Generation(model, kind)
        start = time.perf_counter()
        new = generation.step(ids_BT)[:, -1:].argmax(-1)
        first = time.perf_counter()
        for _ in range(new_tokens):
            new = generation.step(new)[:, -1:].argmax(-1)
        return first - start, (time.perf_counter() - first) / new_tokens

    return turn


def _compiled_by_torch(dense: nn.Module, ids_BT: Tensor, new_tokens: int) -> Turn:
    """The same step written for a cache of fixed room. All tokens are at the mean position of those generated, which
    costs as much as their mean."""
    parts = parts_of(dense)
    with torch.inference_mode():
        steps = DecoderStep(parts, 0).eval(), DecoderStep(parts, ids_BT.shape[1] + new_tokens // 2).eval()
        caches = steps[0].cache(1, ids_BT.shape[1]), steps[1].cache(1, 1)
        prompt, one = (torch.compile(step, dynamic=False, fullgraph=True) for step in steps)
        last = ids_BT[:, -1:]
        prompt(ids_BT, caches[0])  # compiles
        one(last, caches[1])

    @torch.inference_mode()
    def turn() -> tuple[float, float]:
        start = time.perf_counter()
        new = prompt(ids_BT, caches[0])[:, -1:].argmax(-1)
        first = time.perf_counter()
        for _ in range(new_tokens):
            new = one(new, caches[1])[:, -1:].argmax(-1)
        return first - start, (time.perf_counter() - first) / new_tokens

    return turn


def time_in_turns(turns: Mapping[str, Turn], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Seconds of every turn by candidate: one of each per round, for `seconds` and a few rounds at least."""
    for turn in turns.values():
        turn()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}

    def measure(name: str) -> float:
        found[name].append(turns[name]())
        return sum(found[name][-1])

    robin, started = RoundRobin(turns), time.perf_counter()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - started > seconds:
            break
        robin.run(measure)
    return found


def _row(rounds: Mapping[str, Sequence[tuple[float, float]]], part: int) -> dict[str, Any]:
    """Median microseconds of each candidate, and both gains as lowest, median and highest over rounds."""
    us = {name: [1e6 * turn[part] for turn in turns] for name, turns in rounds.items()}
    medians = {name: statistics.median(times) for name, times in us.items()}
    rival = min((name for name in medians if name.startswith(DENSE)), key=lambda name: medians[name])
    return {
        "us": medians,
        "rival": rival,
        "kernel_gain": _low_mid_high([a / b for a, b in zip(us[DENSE], us[rival], strict=True)]),
        "gate_gain": _low_mid_high([a / b for a, b in zip(us[rival], us[OURS], strict=True)]),
    }


def _low_mid_high(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]


def table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """One line for each way to run the model, then both gains for prompts and for tokens."""
    prompt, token = rows
    lines = [f"{'':<24}{'prompt ms':>12}{'tokens/s':>12}{'token ms':>12}{'tokens/s':>12}"]
    for name, us in prompt["us"].items():
        one = token["us"][name]
        lines.append(f"{name:<24}{us / 1e3:>12,.1f}{1e6 * prompt['tokens'] / us:>12,.0f}"
                     f"{one / 1e3:>12,.2f}{1e6 / one:>12,.1f}")  # fmt: skip
    lines.append("")
    for row in rows:
        kernel, gate = (
            f"{mid:.2f} x ({low:.2f} to {high:.2f})" for low, mid, high in (row["kernel_gain"], row["gate_gain"])
        )
        lines.append(f"{row['what']}: kernel gain {kernel}, gate gain {gate} over {row['rival']}")
    return "\n".join([*lines, *notes])
