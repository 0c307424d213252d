"""Compiled language models against dense ones on the CPU: one more token after a cache, and prompts.

All candidates of a case are in one process and take turns; medians are compared. The dense rivals have the parameters
of the gated model: eager torch with the model's own cache, torch.compile (by default and with max-autotune) and ONNX
Runtime of the same step written for a cache of fixed length, and our own dense plan. All score every position of a
prompt; a rival that fails is left out, and the row says why. Narrower dense GPTs stand beside it, by torch.compile and
by our plan: in experiments/results/language the loss of a GPT of 16d hidden units, of which 1d are executed, is on the
mean below those of dense ones of 8d and of 4d, so that a dense model of equal loss is not narrower than these.

`dynamicgate.compile` verifies every plan in float64; the last check generates tokens greedily, and compares scores and
tokens with float64. The models, and how their gates come to be open, are those of `language_cases.py`. On one thread
the time is that of the processor, so that other processes on the machine count less.

    python benchmarks/cpu_language.py            # results/cpu_language.json; half an hour on a quiet machine
    python benchmarks/cpu_language.py --bfloat16 # weights that bfloat16 holds; results/cpu_language_bfloat16.json
    python benchmarks/cpu_language.py --quick    # minutes, a tiny model, prints only

SmolLM2-135M has its own weights, converted, where DYNAMICGATE_MODELS is the folder in which `examples/hf_weights.py`
wrote them and DYNAMICGATE_DATA has the text of WikiText-2; else its shape has random ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from language_cases import Case, below, gated_of, gpt_case, in_bfloat16, smollm_case
from language_rivals import AUTOTUNE, COMPILE, ONNX, RIVALS, decode_rivals, prompt_rivals
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.decoder_parts import CacheKind, cache_kind
from dynamicgate.inference.language.calls import Generation, Inputs
from dynamicgate.inference.language.plan import LanguagePlan
from dynamicgate.inference.language.timing import median_times
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.verify import TOLERANCE

HERE = Path(__file__).resolve().parent
ROUNDS = 21


class Candidates:
    """What takes turns: one more token after a cache, and a prompt."""

    def __init__(self, case: Case, kind: CacheKind, rivals: Sequence[str]) -> None:
        """Nothing yet."""
        self.ids = case.tokens()
        self.case, self.kind, self.rivals = case, kind, rivals
        self.calls: dict[str, dict[str, Callable[[], object]]] = {"decode": {}, "prompt": {}}
        self.skipped: dict[str, str] = {}

    def add(self, name: str, model: nn.Module) -> None:
        """A model with a cache."""
        generation = Generation(model, self.kind)
        generation.step(self.ids[:, : self.case.past])
        tokens = cycle(self.ids.split(1, dim=1))  # others in every round: which blocks they open decides the time
        self.calls["decode"][name] = lambda: generation.step(next(tokens))
        self.calls["prompt"][name] = partial(_prompt, model, self.kind, self.ids[:, : self.case.prompt])

    def add_rivals(self, model: nn.Module, names: Sequence[str], ending: str = "") -> None:
        """A dense model by other means."""
        before, new = self.ids[:, : self.case.past], self.ids[:, -1:]
        found = {"decode": decode_rivals(model, before, new, names)}
        if self.case.rivals_prompt:
            found["prompt"] = prompt_rivals(model, self.ids[:, : self.case.prompt], names)
        for what, rivals in found.items():
            self.calls[what] |= {f"{name}{ending}": call for name, call in rivals.calls.items()}
            self.skipped |= {f"{name}{ending}, {what}": reason for name, reason in rivals.skipped.items()}

    def time(self) -> dict[str, dict[str, float]]:
        """Median microseconds by what was asked."""
        rounds = {"decode": ROUNDS, "prompt": max(3, ROUNDS // 4)}
        return {what: time_in_turns(calls, rounds[what]) for what, calls in self.calls.items()}


def measure(
    case: Case, *, seconds: float, steps: int, generated: int, rivals: Sequence[str]
) -> list[dict[str, Any]]:  # fmt: skip
    """For each open fraction, times of all candidates for one more token and for a prompt, and what the comparison with
    float64 found."""
    torch.manual_seed(0)
    dense = case.build().eval().requires_grad_(False)
    kind = cache_kind(dense)
    assert kind is not None
    candidates = Candidates(case, kind, rivals)
    example = candidates.ids[:, : min(64, case.prompt)]
    ours, exact = {}, {}
    for fraction in case.open:
        gated = gated_of(case, fraction, steps)
        ours[fraction] = dg.compile(gated, example, seconds=seconds)
        references = [LanguageReference(gated, Inputs((row[None],)), kind, generated=generated) for row in example]
        exact[fraction] = agreement(ours[fraction].body, references, kind)
        candidates.add(f"ours {fraction}", ours[fraction].body)
    candidates.add("our dense plan", dg.compile(dense, example, seconds=seconds).body)
    candidates.add("eager", dense)
    candidates.add_rivals(dense, rivals)
    compiled = [name for name in rivals if name in (COMPILE, AUTOTUNE)]
    for what, model in case.narrower().items():
        candidates.add(f"our dense plan, {what}", dg.compile(model, example, seconds=seconds).body)
        candidates.add_rivals(model, compiled, f", {what}")
    us = candidates.time()
    rows = []
    for fraction, fast in ours.items():
        plan = fast.plan
        assert isinstance(plan, LanguagePlan)
        own = {what: _of_one(times, fraction) for what, times in us.items()}
        rows.append({
            "case": case.name, "open": fraction, "sequences": case.sequences, "past": case.past, "prompt": case.prompt,
            "threads": torch.get_num_threads(), "chosen": plan.chosen, "rates": list(plan.open_rates.values()),
            "us": own, "ratios": {what: ratios(times) for what, times in own.items()},
            "plan": plan.to_dict(), "float64": exact[fraction], "skipped": candidates.skipped,
        })  # fmt: skip
    return rows


def _of_one(times: dict[str, float], fraction: float) -> dict[str, float]:
    """The times with those of one open fraction as "ours", and without the others."""
    others = {name: us for name, us in times.items() if not name.startswith("ours ")}
    return {"ours": times[f"ours {fraction}"], **others}


def _prompt(model: nn.Module, kind: CacheKind, ids: Tensor) -> Tensor:
    return Generation(model, kind).step(ids)


@torch.no_grad()
def agreement(body: nn.Module, references: Sequence[LanguageReference], kind: CacheKind) -> dict[str, float]:
    """Greedy tokens of the plan against those of float64, each after the same tokens; all sequences in one batch."""
    tokens = torch.cat([reference.tokens for reference in references if reference.tokens is not None])
    generation, past = Generation(body, kind), 0
    worst, other, close = 0.0, 0, 0
    for steps in zip(*(reference.steps for reference in references), strict=True):
        until = past + steps[0].scores.shape[1]
        got, past = generation.step(tokens[:, past:until])[:, -1].double(), until
        want = torch.cat([step.scores[:, -1] for step in steps])
        scale = want.abs().amax(1)
        worst = max(worst, float(((got - want).abs().amax(1) / scale).max()))
        best = want.topk(2).values
        differs = got.argmax(1) != want.argmax(1)
        is_close = best[:, 0] - best[:, 1] < TOLERANCE * scale
        close, other = close + int((differs & is_close).sum()), other + int((differs & ~is_close).sum())
    verified = [reference.verify(body) for reference in references]
    left_out = [-1 if found is None else found.near_threshold for found in verified]
    return {
        "tokens": len(references[0].steps), "largest_error": worst, "bound": TOLERANCE,
        "near_threshold": min(left_out) if min(left_out) < 0 else sum(left_out),
        "other_tokens": other, "too_close_to_call": close,
    }  # fmt: skip


def ratios(times: dict[str, float]) -> dict[str, float]:
    """How many times faster ours is than each rival, than the fastest dense one of equal parameters, and than the
    fastest of each narrower width."""
    others = {name: us for name, us in times.items() if name != "ours"}
    widths = sorted({name.partition(", ")[2] for name in others} - {""})
    dense = {name: us for name, us in others.items() if ", " not in name}
    narrower = {
        f"over the fastest dense, {width}": min(us for name, us in others.items() if name.endswith(f", {width}"))
        / times["ours"]
        for width in widths
    }
    return (
        {f"over {name}": us / times["ours"] for name, us in others.items()}
        | narrower
        | {
            "over the fastest dense": min(dense.values()) / times["ours"],
            "our dense over the fastest other": min(us for name, us in dense.items() if name != "our dense plan")
            / dense["our dense plan"],
        }
    )


def time_in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median microseconds of each call, one of each in every round."""
    with torch.inference_mode():
        one = torch.get_num_threads() == 1
        return median_times(calls, rounds=rounds, clock=time.process_time if one else time.perf_counter)


def child(args: argparse.Namespace) -> None:
    """Measure with the number of threads of this process."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    rows = []
    cases = [gpt_case(args.open, sequences, quick=args.quick) for sequences in args.sequences if "gpt" in args.models]
    if "smollm" in args.models:
        made = {"quick": args.quick, "weights": args.smollm, "text": args.text}
        cases += [smollm_case([0.5], sequences, **made) for sequences in args.sequences]
        if 1 in args.sequences:  # more rows at once open more together
            cases.append(smollm_case([0.5], 1, magnitudes=True, **made))
    for case in map(in_bfloat16, cases) if args.bfloat16 else cases:
        options = {
            "seconds": 1.0 if args.quick else 4.0,
            "generated": 16 if args.quick else 256,
            "steps": 20 if args.quick else 300,
        }
        for row in measure(case, rivals=args.rivals, **options):  # type: ignore[arg-type]
            rows.append(row)
            show(row)
        write_text(Path(args.child), json.dumps(rows))


def show(row: dict[str, Any]) -> None:
    """Print what was found."""
    for what in ("decode", "prompt"):
        times = ", ".join(f"{name} {us / 1e3:,.2f} ms" for name, us in row["us"][what].items())
        print(f"{row['case']}, open {row['open']}, {row['sequences']} sequences, {what}: {times}")
        print("   " + ", ".join(f"{name} {ratio:.2f} x" for name, ratio in row["ratios"][what].items()), flush=True)
    print("   float64:", row["float64"], flush=True)


def kept_rows(out: Path | None, commit: object, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier run of the same commit that this one did not measure again."""
    if out is None or not out.exists():
        return []
    stored = json.loads(out.read_text(encoding="utf-8"))
    keys = ("case", "open", "sequences", "threads")
    measured = {tuple(row[key] for key in keys) for row in new}
    rows = stored["rows"] if stored["meta"]["commit"] == commit else []
    return [row for row in rows if tuple(row[key] for key in keys) not in measured]


def main() -> None:
    """Measure with each number of threads in its own process: torch.set_num_threads does not limit oneDNN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models; nothing is written unless --out is given")
    parser.add_argument("--models", nargs="+", default=["gpt", "smollm"], choices=["gpt", "smollm"])
    parser.add_argument("--open", nargs="+", type=float, default=[0.25, 0.125])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rivals", nargs="*", default=[COMPILE, AUTOTUNE, ONNX], choices=RIVALS)
    parser.add_argument("--smollm", help="folder of SmolLM2-135M; smollm2 in that of DYNAMICGATE_MODELS by default")
    parser.add_argument("--text", type=Path, help="what it reads; wikitext-2/test.txt in DYNAMICGATE_DATA by default")
    parser.add_argument("--bfloat16", action="store_true", help="weights that bfloat16 holds; a file of its own")
    parser.add_argument(
        "--out", type=Path, help="benchmarks/results/cpu_language.json, or ..._bfloat16.json, by default"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.quick:
        args.smollm = args.smollm or below("DYNAMICGATE_MODELS", "smollm2")
        args.text = args.text or below("DYNAMICGATE_DATA", "wikitext-2/test.txt")
    if (args.smollm is None) != (args.text is None) and (args.smollm is not None or args.quick):
        parser.error("a model that was trained on text reads text: give both --smollm and --text")
    if args.child:
        return child(args)
    shown = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]  # without folders
    command = " ".join(["python benchmarks/cpu_language.py", *shown])
    meta = environment(command) | {"backend": ops.backend()}
    found: dict[str, Any] = {"meta": meta, "rows": []}
    for threads in args.threads[:1] if args.quick else args.threads:
        with tempfile.TemporaryDirectory() as part:
            path = Path(part) / "rows.json"
            env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", str(path)], env=env, check=True)
            found["rows"] += json.loads(path.read_text(encoding="utf-8"))
    name = "cpu_language_bfloat16.json" if args.bfloat16 else "cpu_language.json"
    out = args.out or (None if args.quick else HERE / "results" / name)
    if out is not None:
        found["rows"] = kept_rows(out, meta["commit"], found["rows"]) + found["rows"]
        write_text(out, json.dumps(found, indent=1))
        print(f"wrote {out}")
    return None


if __name__ == "__main__":
    main()
