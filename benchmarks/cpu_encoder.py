"""Compiled sentence encoders against dense ones on the CPU: MiniLM, over text.

With its own weights MiniLM is converted by `hf.convert_`, which fits gates to what their blocks add on text, and reads
other text; see `language_cases.py`. All candidates of a shape are in one process and take turns; medians are compared.
The dense rivals have the parameters of the gated model: eager torch, torch.compile (by default and with max-autotune),
ONNX Runtime, and our own dense plan. Sequences are full: nothing is padding. On one thread the time is that of the
processor, so that other processes on the machine count less.

    OMP_NUM_THREADS=1 python benchmarks/cpu_encoder.py          # results/cpu_encoder.json; minutes
    OMP_NUM_THREADS=1 python benchmarks/cpu_encoder.py --quick  # a tiny model, prints only

DYNAMICGATE_MODELS is the folder in which `examples/hf_weights.py minilm` wrote the weights, DYNAMICGATE_DATA has the
text of WikiText-2; without them the shape has random weights, and gates that are open as those of a small trained GPT.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cpu_language import ratios, time_in_turns
from language_cases import Case, below, gated_of, minilm_case
from language_rivals import AUTOTUNE, COMPILE, ONNX, Rivals, add_rival
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.files import environment, write_text
from dynamicgate.inference.language.plan import LanguagePlan

OUT = Path(__file__).resolve().parent / "results" / "cpu_encoder.json"
RIVALS = (COMPILE, AUTOTUNE, ONNX)
SHAPES = ((1, 16), (1, 128), (8, 16), (8, 128))  # sequences and their tokens
ROUNDS = 41


class Features(nn.Module):
    """An encoder that is called with tokens and gives a tensor, as compilers and exporters like it."""

    def __init__(self, model: nn.Module) -> None:
        """Calls `model`."""
        super().__init__()
        self.model = model

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The features of all tokens."""
        found: Tensor = self.model(input_ids=ids_BT).last_hidden_state
        return found


def measure(case: Case, shape: tuple[int, int], *, seconds: float, steps: int) -> list[dict[str, Any]]:
    """A row for each open fraction."""
    sequences, tokens = shape
    ids = case.tokens()[:, :tokens].contiguous()
    torch.manual_seed(0)
    dense = case.build().eval().requires_grad_(False)
    plans: dict[str, LanguagePlan] = {}
    bodies: dict[str, nn.Module] = {"eager": dense}

    def compiled(name: str, model: nn.Module) -> None:
        fast = dg.compile(model, {"input_ids": ids}, seconds=seconds, batches=(sequences,))
        assert isinstance(fast.plan, LanguagePlan)
        plans[name], bodies[name] = fast.plan, fast.body

    for fraction in case.open:
        compiled(f"ours {fraction}", gated_of(case, fraction, steps))
    compiled("our dense plan", dense)
    rivals = Rivals({}, {})
    for name in RIVALS:
        add_rival(rivals, name, Features(dense).eval(), ids)
    own_calls = {name: partial(body, input_ids=ids) for name, body in bodies.items()}
    us = time_in_turns({**own_calls, **rivals.calls}, ROUNDS)
    dense_us = {name: time for name, time in us.items() if not name.startswith("ours ")}
    rows: list[dict[str, Any]] = []
    for fraction in case.open:
        plan, own = plans[f"ours {fraction}"], {"ours": us[f"ours {fraction}"], **dense_us}
        faster = ratios(own)
        rows.append({
            "case": case.name, "open": fraction, "sequences": sequences, "tokens": tokens,
            "threads": torch.get_num_threads(), "chosen": plan.chosen, "rates": list(plan.open_rates.values()),
            "us": own, "ratios": faster, "plan": plan.to_dict(), "skipped": rivals.skipped,
        })  # fmt: skip
        times = ", ".join(f"{name} {time / 1e3:,.2f} ms" for name, time in own.items())
        over = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in faster.items())
        print(f"{case.name}, open {fraction}, {sequences} x {tokens}: {times}\n   {over}", flush=True)
    return rows


def main() -> None:
    """Measure on one thread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model and one shape; prints only")
    parser.add_argument("--open", nargs="+", type=float, default=[0.5, 0.25])
    parser.add_argument("--minilm", type=Path, help="folder of MiniLM; minilm in that of DYNAMICGATE_MODELS by default")
    parser.add_argument("--text", type=Path, help="what it reads; wikitext-2/test.txt in DYNAMICGATE_DATA by default")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if torch.get_num_threads() != 1:
        raise SystemExit("set OMP_NUM_THREADS=1: processor time is that of all threads")
    import torch._inductor.config as inductor

    inductor.freezing = True
    if not args.quick:
        args.minilm = args.minilm or below("DYNAMICGATE_MODELS", "minilm")
        args.text = args.text or below("DYNAMICGATE_DATA", "wikitext-2/test.txt")
    if args.minilm is not None and args.text is None:
        parser.error("a model that was trained on text reads text: give --text too")
    options: dict[str, Any] = {"seconds": 0.2 if args.quick else 2.0, "steps": 20 if args.quick else 300}
    rows = []
    for shape in SHAPES[:1] if args.quick else SHAPES:
        case = minilm_case(args.open, shape, quick=args.quick, weights=args.minilm, text=args.text)
        rows += measure(case, shape, **options)
    if not args.quick:
        words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
        command = " ".join(["OMP_NUM_THREADS=1 python benchmarks/cpu_encoder.py", *words])
        meta = environment(command) | {"backend": ops.backend()}
        write_text(args.out, json.dumps({"meta": meta, "rows": rows}, indent=1))
        print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
