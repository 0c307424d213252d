"""Language models with weights rounded to int8 on the CPU: how much faster, and what that costs in loss.

`dynamicgate.compile` with and without `weights="int8"`, dense and gated, in one process and in turns; medians are
compared, in processor time on one thread. Rivals are the dense model with int8 weights by ONNX Runtime and by dynamic
quantization of torch; both round the inputs of every product too, which ours do not. A rival that fails is left out,
and the row says why. The plan without is the fastest that rounds nothing: for weights that
bfloat16 holds it reads them from half of the bytes. With the weights of SmolLM2-135M (`python examples/hf_weights.py
smollm2 FOLDER`, where FOLDER/smollm2 is then given here) the loss is that of WikiText-2, by both plans; random weights
have no loss worth naming.

    python benchmarks/int8_weights.py --smollm FOLDER/smollm2 --text wiki.test.tokens   # results/int8_weights.json
    python benchmarks/int8_weights.py --quick                                           # a minute, prints only
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from cpu_language import Candidates, time_in_turns
from language_cases import WINDOW, Case, below, gated_of, gpt_case, smollm_case, text_windows
from language_rivals import ONNX_INT8, left_out, torch_int8
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.decoder_parts import cache_kind
from dynamicgate.inference.language.plan import LanguagePlan

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "int8_weights.json"
ROUNDS = {"decode": 21, "prompt": 5}
DENSE, TORCH_INT8 = "dense", "torch int8"
RIVALS = (ONNX_INT8, TORCH_INT8)


def measure(case: Case, *, seconds: float, steps: int, windows: Tensor | None) -> list[dict[str, Any]]:
    """A row for the dense model and one for each open fraction."""
    torch.manual_seed(0)
    dense = case.build().eval().requires_grad_(False)
    models = {DENSE: dense} | {f"{fraction:g} open": gated_of(case, fraction, steps) for fraction in case.open}
    kind = cache_kind(dense)
    assert kind is not None
    candidates = Candidates(case, kind, ())
    example = candidates.ids[:, : min(64, case.prompt)]
    plans: dict[str, LanguagePlan] = {}
    losses: dict[str, float] = {}
    for name, model in models.items():
        for what, weights in (("exact", None), ("int8", "int8")):
            fast = dg.compile(model, example, seconds=seconds, weights=weights)
            assert isinstance(fast.plan, LanguagePlan)
            plans[f"{name}, {what}"] = fast.plan
            candidates.add(f"{name}, {what}", fast.body)
            if windows is not None and name == DENSE:
                losses[what] = loss(fast, windows)
    rounded = add_rivals(candidates, dense)
    if windows is not None and rounded is not None:
        losses[TORCH_INT8] = loss(rounded, windows)
    us = {what: time_in_turns(calls, ROUNDS[what]) for what, calls in candidates.calls.items()}
    rows = []
    for name in models:
        exact, int8 = f"{name}, exact", f"{name}, int8"
        row = {
            "case": case.name, "model": name, "past": case.past, "prompt": case.prompt,
            "threads": torch.get_num_threads(), "chosen": [plans[exact].chosen, plans[int8].chosen],
            "us": {what: {"exact": times[exact], "int8": times[int8]} for what, times in us.items()},
            "int8 over exact": {what: times[exact] / times[int8] for what, times in us.items()},
            "int8 over dense in int8": {what: times[f"{DENSE}, int8"] / times[int8] for what, times in us.items()},
            "int8 over exact dense": {what: times[f"{DENSE}, exact"] / times[int8] for what, times in us.items()},
            "us of rivals": {what: {key: times[key] for key in RIVALS if key in times} for what, times in us.items()},
            "int8 over rivals": {
                key: {what: times[key] / times[int8] for what, times in us.items() if key in times}
                for key in RIVALS if any(key in times for times in us.values())
            },
            "skipped": candidates.skipped,
            "memory": [plans[exact].memory, plans[int8].memory], "plan": plans[int8].to_dict(),
        }  # fmt: skip
        if losses and name == DENSE:
            assert windows is not None
            before, after = losses["exact"], losses["int8"]
            row["loss"] = {
                "nats": before, "nats, int8": after, "perplexity": math.exp(before),
                "perplexity, int8": math.exp(after), "more perplexity": math.exp(after - before) - 1.0,
                "tokens": windows.numel(),
            }  # fmt: skip
            if TORCH_INT8 in losses:
                row["loss of rivals"] = {TORCH_INT8: losses[TORCH_INT8]}
        rows.append(row)
        show(row)
    return rows


def add_rivals(candidates: Candidates, dense: nn.Module) -> nn.Module | None:
    """Let the dense model in int8 by others take its turn; that of torch, if it runs."""
    candidates.add_rivals(dense, [ONNX_INT8])
    try:
        rounded = torch_int8(dense)
        candidates.add(TORCH_INT8, rounded)
    except Exception as error:
        candidates.skipped[TORCH_INT8] = left_out(TORCH_INT8, error)
        return None
    return rounded


@torch.no_grad()
def loss(model: nn.Module, windows: Tensor) -> float:
    """Nats a token, over windows of text."""
    found = []
    for window in windows:
        scores = model(input_ids=window[None]).logits[0, :-1]
        found.append(float(F.cross_entropy(scores, window[1:])))
    return sum(found) / len(found)


def show(row: dict[str, Any]) -> None:
    """Print what was found."""
    for what in ROUNDS:
        exact, int8 = row["us"][what]["exact"], row["us"][what]["int8"]
        print(
            f"{row['case']}, {row['model']}, {what}: exact {exact / 1e3:,.2f} ms, int8 {int8 / 1e3:,.2f} ms, "
            f"{exact / int8:.2f} x; over the exact dense plan {row['int8 over exact dense'][what]:.2f} x, "
            f"over the dense plan in int8 {row['int8 over dense in int8'][what]:.2f} x",
            flush=True,
        )
        for name, ratios in row["int8 over rivals"].items():
            if what in ratios:
                print(f"   over the dense model by {name} {ratios[what]:.2f} x", flush=True)
    if "loss" in row:
        print("   loss:", row["loss"], flush=True)


def main() -> None:
    """Measure on one thread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models; nothing is written unless --out is given")
    parser.add_argument("--smollm", help="folder of SmolLM2-135M; smollm2 in that of DYNAMICGATE_MODELS by default")
    parser.add_argument("--text", type=Path, help="for the loss; wikitext-2/test.txt in DYNAMICGATE_DATA by default")
    parser.add_argument("--windows", type=int, default=48, help=f"of {WINDOW} tokens of the text")
    parser.add_argument("--out", type=Path, help="benchmarks/results/int8_weights.json by default")
    args = parser.parse_args()
    if not args.quick:
        args.smollm = args.smollm or below("DYNAMICGATE_MODELS", "smollm2")
        args.text = args.text or below("DYNAMICGATE_DATA", "wikitext-2/test.txt")
        if args.out is None and (args.smollm is None or args.text is None):
            parser.error("the stored result has a loss: give --smollm and --text, or --out for another file")
    if args.text is not None and args.smollm is None:
        parser.error("--text is for a model that was trained on text: give --smollm too")
    torch.set_num_threads(1)
    options = {"seconds": 1.0 if args.quick else 4.0, "steps": 20 if args.quick else 300}
    rows = measure(gpt_case([0.25, 0.125], 1, quick=args.quick), windows=None, **options)  # type: ignore[arg-type]
    windows = None if args.text is None else text_windows(str(args.smollm), args.text, args.windows)
    smollm = smollm_case([0.5], 1, quick=args.quick, weights=args.smollm and str(args.smollm), text=args.text)
    rows += measure(smollm, windows=windows, **options)  # type: ignore[arg-type]
    out = args.out or (None if args.quick else OUT)
    if out is not None:
        shown = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]  # without folders
        meta = environment(" ".join(["python benchmarks/int8_weights.py", *shown])) | {"backend": ops.backend()}
        write_text(out, json.dumps({"meta": meta, "rows": rows}, indent=1))
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
