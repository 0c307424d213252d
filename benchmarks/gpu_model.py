"""Whole language models on a CUDA GPU: a gated GPT by `dynamicgate.compile` alone, against dense ones.

    python benchmarks/gpu_model.py --size 2048            # minutes on an H200; adds to results/gpu_model.json
    python benchmarks/gpu_model.py --size 4096 1024 --part decoding,inference --tokens 1 4 16 4096
    python benchmarks/gpu_model.py --size quick           # a model of two layers

The gated model has a feed-forward layer of 16 d and executes as much as one of 1 d. It is trained for some hundred
steps first, so that its gates decide about real text as gates do. The rivals are dense models of 8 d, which has about
its quality, and of 1 d, each by the faster of eager torch, torch.compile, and either captured as a CUDA graph. "union"
is a dense model as wide as the blocks that the tokens of a call open together: what reading weights allows. One more
token is another one of the text at every call, as in use; "open" is the mean share of a token, "union" of a call.
All calls of a row take turns in one process; ratios are medians over the rounds. Gates are inside. "ms" has medians,
"kernels" says where the time of ours goes, in microseconds. Each row names the commit it was measured at, because sizes
and parts are measured one by one.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_common import gpu, kernels_of, time_in_turns
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.files import environment, read_json, write_results
from dynamicgate.inference.gpu.choose_decoding import PlainFFN, captured_decoders, continuing
from dynamicgate.inference.gpu.cuda_graph import CapturedCall
from dynamicgate.inference.gpu.decoding import CachedDecoder, OneToken, Pairs
from dynamicgate.inference.gpu.whole_model import MOST_CAPTURED, compiled_for_one_shape, inputs_of_tokens
from dynamicgate.lab.language.corpora import load_text
from dynamicgate.lab.language.ffn_methods import FFNSettings
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.lab.language.text import Text
from dynamicgate.lab.language.training import LanguageRun, Loss, Training

HERE = Path(__file__).resolve().parent
VOCABULARY, CONTEXT = 32_000, 1024
BATCH = 16  # windows of a step of training


class Size(NamedTuple):
    """Of the models, and how long the gated one is trained before it is timed."""

    features: int
    layers: int
    block: int
    steps: int
    windows: int = BATCH
    """Of a step: with more, a model of 4.9 billion parameters does not fit beside its optimizer."""


SIZES = {
    "2048": Size(2048, 4, 256, 300),
    "4096": Size(4096, 8, 512, 150, windows=4),
    "1024": Size(1024, 12, 128, 300),
    "quick": Size(256, 2, 32, 20),
}
PARTS = ("training", "decoding", "inference")
TOKENS = (1, 4, 16, 4096, 16384)
SEQUENCES, CACHED = (1, 4, 16), 512  # that decode together, and the positions before
NEXT = 64  # tokens of the text that follow, one at a call; then from the first again
TRAINED_WIDTHS = (1, 4, 8)  # of the dense models whose training steps are timed
STEPS_BEFORE = 5  # of training, before steps are timed: the first are never captured
RECIPE: dict[str, Any] = {
    "method": "gate", "width": 16, "executes": 1, "scale": "softmax", "always_open": 1, "open": 0.33, "ramp": 0.01,
    "gate_balance": 0.1, "kernels": "always",
}  # fmt: skip
Call = Callable[[], Any]
Store = Callable[[list[dict[str, Any]]], None]


def sizes_of(size: str) -> GPTConfig:
    """All but the width."""
    features, layers = SIZES[size].features, SIZES[size].layers
    heads = max(2, features // 128)
    return GPTConfig(vocabulary=VOCABULARY, features=features, layers=layers, heads=heads, width=1, context=CONTEXT)


def run_of(size: str, text: Text, device: torch.device, folder: Path, **ffn: Any) -> LanguageRun:
    """A run with these feed-forward layers, in windows of 1,024 tokens. Weights are drawn on the GPU, which takes
    seconds where a CPU takes a minute."""
    asked = SIZES[size]
    training = Training(steps=asked.steps, batch=asked.windows, lr=3e-4, checkpoint_seconds=1e9)
    return LanguageRun(
        FFNSettings(**ffn), sizes_of(size), training, text, device=device, folder=folder, drawn_on=device
    )  # fmt: skip


def dense(size: str, width: int, device: torch.device) -> GPT:
    """A dense model with so many hidden units, random weights."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT(replace(sizes_of(size), width=width))
    return model.to(torch.bfloat16).eval()


def ways(model: nn.Module, ids: Tensor) -> dict[str, Call]:
    """Eager, compiled, and both captured where calls are small."""
    found: dict[str, Callable[[Tensor], Tensor]] = {"eager": model, "compiled": compiled_for_one_shape(model)}
    for call in found.values():
        call(ids)
    if ids.numel() <= MOST_CAPTURED:
        found |= {f"{name}, captured": CapturedCall(call, ids) for name, call in list(found.items())}
    return {name: partial(call, ids) for name, call in found.items()}


class Shares(NamedTuple):
    """Of all blocks of a model: what a token opens on average, and what at least one token of a call opens."""

    open: float
    union: float


@torch.no_grad()
def shares_of(model: GPT, ids: Tensor, cache: Pairs | None = None) -> Shares:
    """What the tokens of one call open."""
    with dg.usage(model) as used:
        model(ids, cache)
        open_NB = [(used[name].open != 0).flatten(0, -2).float() for name in used]
    return Shares(*(statistics.mean(float(each) for each in found) for found in (
        [g.mean() for g in open_NB], [g.amax(0).mean() for g in open_NB]
    )))  # fmt: skip


def mean_shares(model: GPT, ids: Tensor, following: Sequence[Tensor]) -> Shares:
    """The same as the mean over calls of one more token each."""
    cache = _cached(model, ids)
    each = [shares_of(model, last, cache) for last in following]
    return Shares(*(statistics.mean(found) for found in zip(*each, strict=True)))


def in_turn(call: Callable[[Tensor], Any], following: Sequence[Tensor]) -> Call:
    """A call that takes the next of these each time."""
    tokens = itertools.cycle(following)
    return lambda: call(next(tokens))


@torch.no_grad()
def inference_rows(size: str, model: GPT, fast: nn.Module, ids_BT: Tensor, each: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each number of tokens of prompts, without a cache; a few tokens are what `decoding_rows` is for."""
    features = model.config.features
    device, rows = ids_BT.device, []
    rivals = {f"{width}d": dense(size, width * features, device) for width in (1, 8)}
    for tokens in filter(lambda tokens: tokens > max(SEQUENCES), each):
        ids = inputs_of_tokens(ids_BT, tokens)
        shares = shares_of(model, ids)
        calls: dict[str, Call] = {"plan": partial(fast, ids)}
        for name, rival in rivals.items():
            calls |= {f"dense {name} {way}": call for way, call in ways(rival, ids).items()}
        if tokens <= MOST_CAPTURED:
            width = union_width(size, model, shares.union)
            calls |= {f"union {way}": call for way, call in ways(dense(size, width, device), ids).items()}
        times = time_in_turns(calls, rounds=11, least_ms=20.0)
        row: dict[str, Any] = {"size": size, "part": "inference", "tokens": tokens, "shape": list(ids.shape)}
        row |= {"open": round(shares.open, 4), "union": round(shares.union, 4)}
        for other in ("dense 1d", "dense 8d", "union"):
            if any(name.startswith(other) for name in times):
                row[f"over {other}"] = ratio(times, other, "plan")
        row["ms"] = medians(times)
        print(row, flush=True)
        rows.append(row | {"kernels": kernels_of(calls["plan"])})
        free_memory()
    return rows


@torch.no_grad()
def decoding_rows(size: str, model: GPT, fast: nn.Module, ids_BT: Tensor) -> list[dict[str, Any]]:
    """One more token of each sequence after 512 in a cache. Dense models get the same captured step, eager or compiled;
    "union" is dense and as wide as the blocks that the tokens open together."""
    rows: list[dict[str, Any]] = []
    for sequences in SEQUENCES:
        ids, following = ids_BT[:sequences, :CACHED], ids_BT[:sequences, CACHED : CACHED + NEXT].split(1, dim=1)
        shares = mean_shares(model, ids, following)
        plan = continuing(lambda new, cache: fast(new, cache=cache), _cached(fast, ids))
        calls: dict[str, Call] = {"plan": in_turn(plan, following)}
        features = model.config.features
        widths = {"dense 1d": features, "dense 8d": 8 * features, "union": union_width(size, model, shares.union)}
        for name, width in widths.items():
            rival = dense(size, width, ids.device)
            for way, decoder in decoders_of(rival).items():
                calls[f"{name} {way}"] = in_turn(continuing(decoder.step, _cached(rival, ids)), following)
        times = time_in_turns(calls, rounds=11, least_ms=20.0)
        row: dict[str, Any] = {"size": size, "part": "decoding", "tokens": sequences, "cached": CACHED}
        row |= {"open": round(shares.open, 4), "union": round(shares.union, 4)}
        row |= {f"over {rival}": ratio(times, rival, "plan") for rival in widths}
        rows.append(row | {"ms": medians(times)})
        print(rows[-1], flush=True)
        free_memory()
    return rows


def decoders_of(model: GPT) -> dict[str, CachedDecoder]:
    """A dense model with a cache, eager and compiled, each captured."""
    parts = model.decoder_parts()
    return captured_decoders(OneToken(parts, [PlainFFN(block) for block in parts.blocks]))


def _cached(model: nn.Module, ids: Tensor) -> Pairs:
    pairs: Pairs = []
    model(ids, cache=pairs)
    return pairs


def union_width(size: str, model: GPT, union: float) -> int:
    """The hidden units of a dense model as wide as this fraction of the blocks, at least one block."""
    block = SIZES[size].block
    return max(1, round(union * model.config.width / block)) * block


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Milliseconds of every call."""
    return {name: round(statistics.median(each), 4) for name, each in times.items()}


def free_memory() -> None:
    """Let go of models and graphs that nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()


def ratio(times: dict[str, list[float]], rival: str, ours: str) -> float:
    """How much faster than the fastest way of the rival, round by round."""
    best = min((times[n] for n in times if n.startswith(rival)), key=statistics.median)
    return round(statistics.median(a / b for a, b in zip(best, times[ours], strict=True)), 3)


def training_row(size: str, gated: LanguageRun, text: Text, folder: Path) -> dict[str, Any]:
    """Whole steps on windows of 1,024 tokens, bfloat16 autocast: forward, backward, the budget's step, AdamW."""
    ms: dict[str, float] = {}

    def fastest(name: str, run: LanguageRun) -> tuple[str, Call]:
        times = medians(time_in_turns(calls := ways_to_train(run), rounds=5, least_ms=50.0))
        ms.update({f"{name} {way}": median for way, median in times.items()})
        way = min(times, key=lambda way: times[way])
        return f"{name} {way}", calls[way]  # the others hold the memory of their graphs

    ours, step = fastest("gated", gated)
    row: dict[str, Any] = {"size": size, "part": "training", "tokens": SIZES[size].windows * CONTEXT}
    for width in TRAINED_WIDTHS:  # one after the other: two models and their optimizers fit beside each other
        free_memory()
        name, rival = fastest(f"dense {width}d", run_of(size, text, gated.device, folder, width=width))
        times = time_in_turns({name: rival, ours: step}, rounds=9, least_ms=50.0)
        row[f"over dense {width}d"] = ratio(times, name, ours)
        ms |= medians(times)
        del rival
    row["ms"] = ms
    print(row, flush=True)
    return row | {"kernels": kernels_of(step)}


def ways_to_train(run: LanguageRun) -> dict[str, Call]:
    """A step by eager torch, with the model and its loss compiled, and both captured."""
    found: dict[str, Call] = {}
    ways: dict[str, Callable[[Loss], Loss]] = {
        "eager": lambda loss: loss,
        "compiled": partial(torch.compile, dynamic=False),
    }
    for way, make in ways.items():
        for capture in (False, True):
            other = run.run_by(make, capture=capture)
            for _ in range(STEPS_BEFORE):
                other.optimize()
            found[f"{way}{', captured' if capture else ''}"] = other.optimize
    return found


def measure(size: str, parts: Sequence[str], args: argparse.Namespace, text: Text, store: Store) -> None:
    """Train, compile and time the models of one size."""
    device = torch.device("cuda", 0)
    start = len(text.tokens["test"]) // 2
    piece = torch.from_numpy(text.tokens["test"][start : start + 16 * CONTEXT].astype("int64"))
    ids_BT = piece.view(16, CONTEXT).to(device)
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(size, text, device, Path(folder), **RECIPE, block=SIZES[size].block)
        run.train(lambda step, loss: print(f"step {step}: loss {loss:.3f}", flush=True) if step % 50 == 0 else None)
        model = run.model
        if "training" in parts:  # timed steps train on: what is compiled is the model as it was before
            trained = {name: value.cpu() for name, value in model.state_dict().items()}
            store([training_row(size, run, text, Path(folder))])
            model.load_state_dict(trained)
        del run  # with its optimizer and its captured step, which hold several times the weights
        free_memory()
        if {"decoding", "inference"} & set(parts):
            model = model.to(torch.bfloat16).eval()
            fast = dg.compile(model, ids_BT, batches=args.tokens, seconds=args.seconds)
            print(fast.plan, flush=True)
            if "decoding" in parts:
                store(decoding_rows(size, model, fast, ids_BT))
            if "inference" in parts:
                store(inference_rows(size, model, fast, ids_BT, args.tokens))


def main() -> None:
    """Measure each size, and replace those of its rows in the results that are measured again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, nargs="+", default=["2048"])
    parser.add_argument("--part", default=",".join(PARTS), help="some of them")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="of a call that is compiled for")
    parser.add_argument("--text", default="python")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the timing of compile")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu_model.json")
    args = parser.parse_args()
    parts = args.part.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(unknown)}: there are {', '.join(PARTS)}")

    def store(new: list[dict[str, Any]]) -> None:
        meta = environment(" ".join(["python benchmarks/gpu_model.py", *sys.argv[1:]])) | {"gpu": gpu()}
        before = read_json(args.out)["runs"] if args.out.exists() else []
        again = {place_of(row) for row in new}
        rows = [row for row in before if place_of(row) not in again]
        write_results(args.out, meta, rows + [{**row, "commit": meta["commit"]} for row in new])

    text = load_text(args.text, "bytes")
    for size in args.size:
        measure(size, parts, args, text, store)
        free_memory()


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row measures."""
    return row["size"], row["part"], row["tokens"]


if __name__ == "__main__":
    main()
