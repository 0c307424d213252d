"""Fills in what the benchmarks measured between the `<!-- results:NAME -->` markers of pages.

python benchmarks/pages.py       # after a benchmark; a test compares the pages with the results
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from dynamicgate.lab.runner.docs_pages import markdown, write_pages

ROOT = Path(__file__).resolve().parents[1]
COMPILE = "docs/compile.md"
FFN = "src/dynamicgate/ops/ffn/README.md"
DECODE = "src/dynamicgate/ops/ffn/decode.md"
RIVALS = {
    "our dense plan": "over our dense plan", "torch.compile": "over torch.compile",
    "max-autotune": "over torch.compile max-autotune", "onnxruntime": "over onnxruntime", "eager": "over eager",
}  # fmt: skip
DECODE_BLOCK = 64  # of the table by tokens
DECODE_TARGETS = {(1, 0.1): 5.5, (1, 0.25): 3.0, (8, 0.1): 1.4}  # by tokens and open fraction; also in gpu_decode.py
SIZES = {"S1": "784-256-10", "S2": "2000-1000-500-10", "S3": "1024-4096-1024", "S4": "4096-16384-4096"}


@dataclass(frozen=True)
class Table:
    """The page of a table, the results it is made from, and how."""

    page: str
    results: str
    make: Callable[[dict[str, Any]], str]


def gated(results: dict[str, Any]) -> str:
    """Speed-up over eager dense by size, batch and open fraction, one thread, beside other dense candidates."""
    rows = [row for row in results["rows"] if row["kind"] == "gate" and row["threads"] == 1]
    fractions = sorted({row["share"] for row in rows})
    found = []
    for size, batch in dict.fromkeys((row["size"], row["batch"]) for row in rows):
        mine = {row["share"]: row for row in rows if (row["size"], row["batch"]) == (size, batch)}
        dense = [
            f"{mine[fractions[0]]['speedup'][name]:.2f}" if name in mine[fractions[0]]["speedup"] else "-"
            for name in ("own", "frozen", "int8")
        ]
        ours = [f"{mine[fraction]['speedup']['ours']:.1f}" if fraction in mine else "-" for fraction in fractions]
        found.append([SIZES[size], f"{batch:,}", *dense, *ours])
    return markdown(
        ["network", "batch", "our dense", "compiled dense", "int8 dense", *[f"open {s:g}" for s in fractions]],
        found,
        numbers=True,
    )


def sparse(results: dict[str, Any]) -> str:
    """Speed-up over eager dense of networks with masks, one thread."""
    rows = [row for row in results["rows"] if row["kind"] != "gate" and row["threads"] == 1]
    columns = list(dict.fromkeys((row["kind"], row["share"]) for row in rows))
    columns.sort(key=lambda c: (c[0] != "16x1", c[1]))
    found = []
    for size, batch in dict.fromkeys((row["size"], row["batch"]) for row in rows):
        mine = {(r["kind"], r["share"]): r for r in rows if (r["size"], r["batch"]) == (size, batch)}
        found.append([SIZES[size], f"{batch:,}", *[f"{mine[c]['speedup']['ours']:.1f}" for c in columns]])
    return markdown(["network", "batch", *[f"{kind} {fraction:g}" for kind, fraction in columns]], found, numbers=True)


def never_slower(results: dict[str, Any]) -> str:
    """The worst case of the grid, by number of threads."""
    found = []
    for threads in sorted({row["threads"] for row in results["rows"]}):
        rows = [row for row in results["rows"] if row["threads"] == threads]
        worst = min(rows, key=lambda row: row["over_best_dense"])
        where = f"{SIZES[worst['size']]}, {worst['kind']} {worst['share']:g}, batch {worst['batch']}"
        found.append([f"{threads}", f"{len(rows)}", f"{worst['over_best_dense']:.3f}", where])
    return markdown(["threads", "cases", "least ratio", "where"], found, numbers=True)


def ops(results: dict[str, Any]) -> str:
    """What the kernels reach without a plan around them."""
    found = [
        [row["name"], f"{row['batch']:,}", f"{row['speedup']:.1f}", f"{row['q1']:.1f} to {row['q3']:.1f}"]
        for row in results["rows"]
    ]
    return markdown(["chain", "batch", "times as fast", "quartiles"], found, numbers=True)


def compile_cost(results: dict[str, Any]) -> str:
    """Seconds and memory of packing and of compiling."""
    found = [
        [
            what,
            *[f"{results[what][key]:.{digits}f}" for key, digits in (("seconds", 0), ("peak", 2), ("held_after", 2))],
        ]
        for what in ("pack", "compile")
    ]
    return markdown(["step", "seconds", "peak, x weights", "held after, x weights"], found, numbers=True)


def sample_plan(results: dict[str, Any]) -> str:
    """A plan as it is printed."""
    return f"```text\n{results['plan']}\n```"


def latency(results: dict[str, Any]) -> str:
    """Counted work and latency of trained models."""
    found = []
    for row in results["runs"]:
        times = [f"{row['batches'][b]['ratio']:.3f} ({1 / row['batches'][b]['ratio']:.1f}x)" for b in ("1", "256")]
        macs = [f"{row[key]:.3f}" for key in ("relative", "relative_zero_skip")]
        found.append([f"{row['data']}: {row['model']}", f"{100 * row['accuracy']:.2f}", *macs, *times])
    return markdown(
        ["model", "accuracy", "MACs", "MACs without zeros", "latency, batch 1", "latency, batch 256"],
        found,
        numbers=True,
    )


def gpu_speedups(results: dict[str, Any], part: str) -> str:
    """Speed-up of gated layers over the faster dense one, by layer, tokens, block and open fraction."""
    rows = [row for row in results["runs"] if row["part"] == part and row["as"].startswith("ours")]
    rows.sort(key=lambda r: (r["shape"] != "4096/16384", r["shape"], -r["tokens"], r["block"], r["patterns"]))
    fractions = sorted({row["share"] for row in rows})
    found: dict[tuple[str, int, int], dict[float, str]] = {}
    for row in rows:
        dense = ", dense gate gradient" * (row["as"] == "ours exact")
        gates = f", {row['patterns']} patterns" if row["patterns"] else dense
        speedups = found.setdefault((row["shape"] + gates, row["tokens"], row["block"]), {})
        speedups[row["share"]] = f"{row['speedup']:.2f}" if row["speedup"] < 9.95 else f"{row['speedup']:.1f}"
    lines = [[n, f"{t:,}", f"{b:,}", *[x.get(s, "") for s in fractions]] for (n, t, b), x in found.items()]
    return markdown(
        ["layer", "tokens", "block", *[f"open {fraction:g}" for fraction in fractions]], lines, numbers=True
    )


def gpu_model(results: dict[str, Any]) -> str:
    """How much faster a gated language model is than dense ones, by size, part and tokens."""
    order = ("decoding", "inference", "training")
    what = {
        "decoding": "one more token of {} sequences after {}", "inference": "{} tokens, no cache",
        "training": "a training step of {} tokens",
    }  # fmt: skip
    rows = sorted(results["runs"], key=lambda row: (int(row["size"]), order.index(row["part"]), row["tokens"]))
    found = []
    for row in rows:
        ours = min(ms for name, ms in row["ms"].items() if name == "plan" or name.startswith("gated"))
        ratios = [row.get(f"over {rival}") for rival in ("dense 8d", "dense 4d", "dense 1d", "union")]
        done = what[row["part"]].format(f"{row['tokens']:,}", row.get("cached")).replace("1 sequences", "a sequence")
        shared = f"{row['union']:.2f}" if "union" in row else "-"
        found.append([row["size"], done, f"{ours:.2f}", *(f"{r:.2f}" if r else "-" for r in ratios), shared])
    columns = [
        "features",
        "what",
        "ms",
        "dense 8d",
        "dense 4d",
        "dense 1d",
        "dense, as wide as what is open",
        "blocks open for any",
    ]
    return markdown(columns, found, numbers=True)


def gpu_plan(results: dict[str, Any]) -> str:
    """Least and median ratio of dense torch to chosen plans, by open fraction and tokens, and the overall count."""
    rows = results["runs"]
    tokens, fractions = (sorted({row[key] for row in rows}) for key in ("tokens", "share"))
    lines = []
    for fraction in fractions:
        ratios = [[r["ratio"] for r in rows if (r["share"], r["tokens"]) == (fraction, count)] for count in tokens]
        lines.append([f"open {fraction:g}", *(f"{min(found):.2f} / {median(found):.2f}" for found in ratios)])
    least, target = results["meta"]["least_ratio"], results["meta"]["target"]
    overall = (
        f"{sum(row['ratio'] >= target for row in rows)} of {len(rows)} at {target} or more, the least {least:.3f}."
    )
    return markdown(["least / median", *(f"{count:,}" for count in tokens)], lines, numbers=True) + f"\n\n{overall}"


def gpu_decode(results: dict[str, Any]) -> str:
    """Speed-up of the layer for few tokens, by tokens and open fraction; by block for one token; and the targets."""
    rows = [row for row in results["runs"] if row["shape"] == "4096/16384"]
    found = {(row["tokens"], row["block"], row["share"]): row for row in rows}
    tokens, blocks, fractions = (sorted({key[at] for key in found}) for at in range(3))
    lines = []
    for count in tokens:
        mine = [found[count, DECODE_BLOCK, fraction] for fraction in fractions]
        lines.append([f"{count}", *(f"{row['speedup']:.2f} ({100 * row['of_union']:.0f} %)" for row in mine)])
    dense = [min(row["dense us"], row["dense compiled us"]) for row in rows if row["block"] == DECODE_BLOCK]
    table = markdown(["tokens", *(f"open {fraction:g}" for fraction in fractions)], lines, numbers=True)
    by_block = ", ".join(f"{found[1, block, 0.1]['speedup']:.2f} with {block}" for block in blocks)
    targets = []
    for (count, fraction), target in DECODE_TARGETS.items():
        reached = {
            block: found[count, block, fraction]["speedup"] for block in blocks if (count, block, fraction) in found
        }
        met = [f"{block}" for block, speedup in reached.items() if speedup >= target]
        span = f"{min(reached.values()):.2f} to {max(reached.values()):.2f}"
        met_with = f"met with blocks of {', '.join(met)}" if met else "not met"
        plural = "s" * (count > 1)
        targets.append(f"- {count} token{plural}, open {fraction:g}: {target:g} asked for, {span} reached; {met_with}.")
    return (
        f"{table}\n\nBlocks of {DECODE_BLOCK} units; dense takes {min(dense):.0f} to {max(dense):.0f} µs. One token at "
        f"open 0.1, by units in a block: {by_block}.\n\nThe targets:\n\n" + "\n".join(targets)
    )


def onnx_export(results: dict[str, Any]) -> str:
    """Speed-up over the dense network in the same runtime, by network, open fraction, form and batch."""
    rows = results["rows"]
    batches = sorted({row["batch"] for row in rows})
    lines = []
    for kind, sizes, fraction in dict.fromkeys((row["kind"], row["sizes"], row["open"]) for row in rows):
        for form in ("skip", "masks"):
            mine = {
                row["batch"]: row["speedup"]
                for row in rows
                if (row["kind"], row["sizes"], row["open"], row["form"]) == (kind, sizes, fraction, form)
            }
            opened = f"{fraction:g}" if kind == "gates" else f"{fraction:g} open stage 2"
            lines.append([f"{sizes}, {kind}", opened, form, *(f"{mine[batch]:.2f}" for batch in batches)])
    head = ["network", "open", "form", *(f"batch {batch}" for batch in batches)]
    return markdown(head, lines, numbers=True)


def language(results: dict[str, Any]) -> str:
    """How many times faster a gated language model is than each dense rival, by model, what is asked of it, sequences
    and threads."""
    rows = results["rows"]
    timed = {name for row in rows for ratios in row["ratios"].values() for name in ratios}
    names = {name: key for name, key in RIVALS.items() if key in timed}
    narrower = sorted(name for name in timed if name.startswith("over the fastest dense, "))
    lines = []
    for row in rows:
        for what in ("decode", "prompt"):
            ratios = row["ratios"][what]
            cells = [_ratio(ratios.get(key)) for key in (*names.values(), *reversed(narrower))]
            opened = f"{sum(row['rates']) / len(row['rates']):.3f}"
            shape = [f"{row['sequences']}", f"{row['threads']}", f"{row['us'][what]['ours'] / 1e3:.1f}"]
            lines.append([row["case"], opened, _asked(row, what), *shape, *cells])
    head = [*names, *(f"dense, {name.rpartition(', ')[2]}" for name in reversed(narrower))]
    return markdown(["model", "open", "asked", "sequences", "threads", "ours, ms", *head], lines, numbers=True)


def encoders(results: dict[str, Any]) -> str:
    """How many times faster gated sentence encoders are than each dense rival, by shape and open fraction."""
    lines = []
    for row in results["rows"]:
        cells = [_ratio(row["ratios"].get(key)) for key in RIVALS.values()]
        opened = f"{sum(row['rates']) / len(row['rates']):.3f}"
        shape = [f"{row['sequences']} x {row['tokens']}", f"{row['us']['ours'] / 1e3:.2f}"]
        lines.append([row["case"], opened, *shape, *cells, row["chosen"]])
    return markdown(["model", "open", "sequences x tokens", "ours, ms", *RIVALS, "runs as"], lines, numbers=True)


def _asked(row: dict[str, Any], what: str) -> str:
    return f"one token after {row['past']}" if what == "decode" else f"a prompt of {row['prompt']}"


def int8_weights(results: dict[str, Any]) -> str:
    """How many times faster plans with rounded weights are, and what rounding costs in perplexity."""
    lines = []
    rivals = sorted({name for row in results["rows"] for name in row.get("int8 over rivals", {})})
    for row in results["rows"]:
        for what in ("decode", "prompt"):
            us, found = row["us"][what], row.get("loss") if what == "decode" else None
            loss = f"{found['perplexity']:.2f}, {found['perplexity, int8']:.2f}" if found else "-"
            over = ("int8 over exact", "int8 over exact dense", "int8 over dense in int8")
            lines.append([
                f"{row['case']}, {row['model']}", _asked(row, what),
                *(f"{us[name] / 1e3:.1f}" for name in ("exact", "int8")), *(f"{row[name][what]:.2f}" for name in over),
                *(_ratio(row.get("int8 over rivals", {}).get(name, {}).get(what)) for name in rivals), loss,
            ])  # fmt: skip
    head = ["exact, ms", "int8, ms", "over exact", "over exact dense", "over int8 dense"]
    head += [*(f"over {name}" for name in rivals), "perplexity, exact and int8"]
    return markdown(["model", "asked", *head], lines, numbers=True)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def language_exact(results: dict[str, Any]) -> str:
    """Greedy tokens and scores against float64."""
    lines = [
        [
            row["case"], f"{row['open']:g}", f"{row['sequences']}", f"{row['threads']}", f"{exact['tokens']}",
            f"{exact['largest_error']:.1e}", f"{exact['bound']:.0e}", f"{exact['other_tokens']}",
            f"{exact['too_close_to_call']}", f"{exact['near_threshold']}",
        ]
        for row in results["rows"]
        for exact in [row["float64"]]
    ]  # fmt: skip
    head = ["model", "open", "sequences", "threads", "tokens", "largest error", "bound"]
    head += ["other tokens", "too close to call", "behind a close gate"]
    return markdown(head, lines, numbers=True)


def language_grid(results: dict[str, Any]) -> str:
    """How many times faster than our dense plan, by model, tokens and open fraction."""
    rows = results["rows"]
    fractions = list(dict.fromkeys(row["open"] for row in rows))
    lines = []
    for model, tokens in dict.fromkeys((row["model"], row["tokens"]) for row in rows):
        mine = {row["open"]: row for row in rows if (row["model"], row["tokens"]) == (model, tokens)}
        lines.append([model, f"{tokens:,}", *(f"{mine[fraction]['over our dense']:.2f}" for fraction in fractions)])
    return markdown(["model", "tokens", *(f"open {fraction:g}" for fraction in fractions)], lines, numbers=True)


TABLES = {
    "language": Table(COMPILE, "benchmarks/results/cpu_language.json", language),
    "language-bfloat16": Table(COMPILE, "benchmarks/results/cpu_language_bfloat16.json", language),
    "int8": Table(COMPILE, "benchmarks/results/int8_weights.json", int8_weights),
    "language-exact": Table(COMPILE, "benchmarks/results/cpu_language.json", language_exact),
    "encoder": Table(COMPILE, "benchmarks/results/cpu_encoder.json", encoders),
    "language-grid": Table(COMPILE, "benchmarks/results/cpu_language_grid.json", language_grid),
    "gated": Table(COMPILE, "benchmarks/results/cpu.json", gated),
    "sparse": Table(COMPILE, "benchmarks/results/cpu.json", sparse),
    "never-slower": Table(COMPILE, "benchmarks/results/cpu.json", never_slower),
    "compile-cost": Table(COMPILE, "benchmarks/results/compile_cost.json", compile_cost),
    "plan": Table(COMPILE, "benchmarks/results/compile_cost.json", sample_plan),
    "latency": Table(COMPILE, "experiments/results/latency.json", latency),
    "ops": Table("src/dynamicgate/ops/chain/README.md", "benchmarks/results/cpu_ops.json", ops),
    "gpu-forward": Table(FFN, "benchmarks/results/gpu.json", partial(gpu_speedups, part="forward")),
    "gpu-plan": Table("docs/gpu.md", "benchmarks/results/gpu_plan.json", gpu_plan),
    "gpu-model": Table("docs/gpu.md", "benchmarks/results/gpu_model.json", gpu_model),
    "gpu-decode": Table(DECODE, "benchmarks/results/gpu_decode.json", gpu_decode),
    "onnx-export": Table("docs/export.md", "benchmarks/results/onnx_export.json", onnx_export),
    "gpu-backward": Table(FFN, "benchmarks/results/gpu.json", partial(gpu_speedups, part="backward")),
}


def pages() -> dict[str, dict[str, str]]:
    """All tables, by page and marker."""
    found: dict[str, dict[str, str]] = {}
    for name, table in TABLES.items():
        results = json.loads((ROOT / table.results).read_text(encoding="utf-8"))
        found.setdefault(table.page, {})[name] = table.make(results)
    return found


def main() -> None:
    """Fill every page."""
    write_pages(ROOT, pages())


if __name__ == "__main__":
    main()
