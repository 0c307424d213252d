"""Which language models are compared: every kind of feed-forward layer at equal executed MACs.

Everything is asked for in multiples of the features d; `executes` includes gate networks and routers, see
`dynamicgate.lab.language.ffn_methods`. What was chosen by validation text is said in docs/language-models.md; a run
tests once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamicgate.lab.language.corpora import PLAIN, load_text, with_other_text
from dynamicgate.lab.language.ffn_methods import FFNSettings, affordable
from dynamicgate.lab.language.text import Text
from dynamicgate.lab.runner import Experiment, Job, Table
from experiments import ROOT
from experiments.language.train import train

SMALL = {"features": 512, "layers": 6, "heads": 8, "context": 256, "batch": 64}
LARGE = {"features": 1024, "layers": 8, "heads": 16, "context": 512, "batch": 64, "compiled": True}
QUICK = {"features": 32, "layers": 2, "heads": 2, "context": 32, "batch": 4, "steps": 20, "windows": 16}
SEEDS = (0, 1, 2)
MORE_SEEDS = (0, 1, 2, 3, 4, 5)  # of the models that carry a claim
TWO_SEEDS, ONE_SEED = (0, 1), (0,)  # of the others, and where a table only says that something holds elsewhere too
GATE = "gate 16d"
SPARSE_START = {"open": 0.33, "ramp": 0.01}  # about 5 % of the blocks of a random gate network are open at first
FLOOR = 3 / 64  # of the blocks are open for every token: four fifths of what the budget pays for
SHARES = {**SPARSE_START, "scale": "softmax", "always_open": FLOOR}  # open blocks compete, as experts do
LARGE_BLOCKS = {"block": 128, "kernels": "always"}
RECIPE: dict[str, Any] = {
    "method": "gate", "width": 16, "executes": 1, **SHARES, "gate_balance": 1e-1, **LARGE_BLOCKS,
}  # fmt: skip
ROUTER: dict[str, Any] = {"method": "router", "width": 16, "executes": 1, **LARGE_BLOCKS}
AT_1D: dict[str, dict[str, Any]] = {  # all execute as many MACs as the dense model with 1 d
    "dense 1d": {"width": 1},
    GATE: RECIPE,
    "scaled gate 16d": {"method": "gate", "width": 16, "executes": 1},
    "top-k 16d": {"method": "top-k", "width": 16, "executes": 1},
    "router 16d": ROUTER,
    "balanced router 16d": {**ROUTER, "balance": 1e-1},
    "router 16d, blocks of 64": {**ROUTER, "block": 64},
    "relu router 16d": {"method": "relu router", "width": 16, "executes": 1, "block": 128},
    "static 16d": {"method": "static", "width": 16, "executes": 1},
    "random 16d": {"method": "random", "width": 16, "executes": 1},
    "rigl 4d": {"method": "rigl", "width": 4, "executes": 1},
    "magnitude 4d": {"method": "magnitude", "width": 4, "executes": 1},
    "rigl 16d": {"method": "rigl", "width": 16, "executes": 1},
    "gate+rigl 16d": {"method": "gate+rigl", "width": 16, "executes": 1},
    "gate 4d": {**RECIPE, "width": 4},
}
EXPERTS = {**ROUTER, "executes": 1.02, "block": 512}  # as wide as d: with its router 1.016 d
ROUNDED_UP = {**ROUTER, "executes": 1.07}  # at 1 d a router pays for fewer blocks than the gate opens in the mean


def named_by_experts(asked: Mapping[str, Any], features: int) -> str:
    """A router at 16 d, by the number of its experts that are open: that follows from the features."""
    return f"router 16d, {affordable(FFNSettings(**asked), features)} experts"


FOUR_EXPERTS = named_by_experts(ROUNDED_UP, SMALL["features"])
EIGHT_EXPERTS = named_by_experts(ROUNDED_UP, LARGE["features"])
DENSER = {f"dense {width}d": {"width": width} for width in (2, 4, 8)}
FRONTIER = {**AT_1D, **DENSER, "experts 16 x 1d": EXPERTS, FOUR_EXPERTS: ROUNDED_UP}
MAIN = ("dense 1d", GATE, "top-k 16d", "router 16d", FOUR_EXPERTS, "dense 4d", "dense 8d")
OTHERS = tuple(name for name in FRONTIER if name not in MAIN)
EQUAL_COST = {  # steps of training that cost as many MACs as 1,500 of the dense model with 4 d; a test counts them
    "dense 1d": 2771, GATE: 2771, "top-k 16d": 1149, "router 16d": 2771, FOUR_EXPERTS: 2717,
    "dense 4d": 1500, "dense 8d": 931,
}  # fmt: skip
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
ALONE = {"scale": True, "always_open": 0, "gate_balance": 0.0}  # every block scaled by its own gate, exact gradient
RELU = {"scale": "relu", "always_open": 0, "gate_balance": 0.0, "open": 0.5, "ramp": 0.1}  # blocks do not compete
NONE_ALWAYS = "no block always open"
SAME_FOR_ALL_TOKENS = {"method": "top-k", "always_open": 0}  # with the network, the scale and the balance of the gate
FOUND = tuple(blocks / 64 for blocks in (5, 3, 3, 4, 4, 4))  # what the gate opens in each layer, rounded to blocks
VARIANTS: dict[str, dict[str, Any]] = {  # of the gate at 16 d: one thing changed at a time, by validation text
    "as it is": {},
    "no balanced load": {"gate_balance": 0.0},
    "balanced load .01": {"gate_balance": 1e-2},
    "balanced load 1": {"gate_balance": 1.0},
    "equal layers": {"layers": "equal"},
    NONE_ALWAYS: {"always_open": 0},
    "one block always open": {"always_open": 1},
    "two blocks always open": {"always_open": 2},
    "dense start": {"open": 0.8, "ramp": 0.1},
    "ramp .25": {"ramp": 0.25},
    "blocks of 32": {"block": 32},
    "blocks of 64": {"block": 64},
    "blocks of 256": {"block": 256},
    "blocks of 512": {"block": 512},
    "low-rank gate": {"net": "low-rank", "rank": 16},
    "floor 0": {"floor": 0.0},
    "floor .04": {"floor": 0.04},
    "collapse reported": {"on_collapse": "report"},
    "scaled alone": ALONE,
    "scaled alone, balanced load .01": {**ALONE, "gate_balance": 1e-2},
    "scaled alone, dense start": {**ALONE, "open": 0.8, "ramp": 0.1},
    "scaled alone, sparse gradient": {**ALONE, "gate_gradient": "sparse", "kernels": "always"},
    "not scaled": {**ALONE, "scale": False},
    "blocks of 64, one always open": {"block": 64, "always_open": 1},
    # FLOOR leaves blocks of 32, 256 and 512 no choice, and is above the floors of .04 and 0 that a budget holds.
    **{f"{NONE_ALWAYS}, blocks of {block}": {"always_open": 0, "block": block} for block in (32, 64, 256, 512)},
    f"{NONE_ALWAYS}, floor 0": {"always_open": 0, "floor": 0.0},
    f"{NONE_ALWAYS}, floor .04": {"always_open": 0, "floor": 0.04},
    f"{NONE_ALWAYS}, collapse reported": {"always_open": 0, "on_collapse": "report"},
    "floor .055": {"floor": 0.055},
    "equal tokens": {**SAME_FOR_ALL_TOKENS, "rates": FOUND},
    "equal tokens and layers, 3 blocks": {**SAME_FOR_ALL_TOKENS, "rates": (3 / 64,) * 6},
    "equal tokens and layers, 4 blocks": {**SAME_FOR_ALL_TOKENS, "rates": (4 / 64,) * 6},
    "relu": RELU,
    "relu, ramp .25": {**RELU, "ramp": 0.25},
    "relu, ramp .5": {**RELU, "ramp": 0.5},
    "relu, ramp .25, balanced load .01": {**RELU, "ramp": 0.25, "gate_balance": 1e-2},
    "relu, ramp .25, blocks of 64": {**RELU, "ramp": 0.25, "block": 64},
}


def load(job: Job, data_dir: Path | None) -> Text:
    """The text of a table, and what else its models are measured on."""
    options = job.table.data_options
    text = load_text(job.table.data, options.get("tokenizer", "bytes"), data_dir=data_dir)
    return with_other_text(text, options["also"], data_dir=data_dir) if "also" in options else text


def table_of(
    name: str,
    data: str,
    models: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    rates: Sequence[float] = (),
    steps: Mapping[str, int] | None = None,
    seeds: Sequence[int] = SEEDS,
    own_seeds: Mapping[str, tuple[int, ...]] | None = None,
    **options: str,
) -> Table:
    """A table of models on a text; with `rates` each model with each of these learning rates, with `steps` each trained
    for its own number of steps. own_seeds: of models that have others. options: of the text."""
    asked = {model: {**shared, "ffn": dict(ffn)} for model, ffn in models.items()}
    if steps is not None:
        asked = {model: {**one, "steps": steps[model]} for model, one in asked.items()}
    if rates:
        asked = {f"{model} {rate:g}": {**one, "lr": rate} for model, one in asked.items() for rate in rates}
    if data == "books" and all(one.get("test", True) for one in asked.values()):
        options = {"also": PLAIN, **options}
    return Table(
        name=name, data=data, models=asked, train=train, load=load, data_options=options, seeds=tuple(seeds),
        own_seeds=own_seeds or {}, quick=QUICK,
    )  # fmt: skip


def tables() -> tuple[Table, ...]:
    """All tables."""
    made = []
    for data in ("python", "books"):
        short, long = {**SMALL, "steps": 1500}, {**SMALL, "steps": 4000}
        main = {name: FRONTIER[name] for name in MAIN}
        variants = {name: {**AT_1D[GATE], **changed} for name, changed in VARIANTS.items()}
        made += [
            table_of(data, data, FRONTIER, short, seeds=MORE_SEEDS, own_seeds=dict.fromkeys(OTHERS, TWO_SEEDS)),
            table_of(f"{data}-equal-cost", data, main, short, steps=EQUAL_COST, seeds=TWO_SEEDS),
            table_of(f"{data}-long", data, main, long, seeds=ONE_SEED),
        ]
        if data == "python":
            made.append(table_of(f"{data}-variants", data, variants, {**short, "test": False}, seeds=ONE_SEED))
    main = {name: FRONTIER[name] for name in MAIN}
    large = {EIGHT_EXPERTS if name == FOUR_EXPERTS else name: asked for name, asked in main.items()}
    made += [
        table_of("books-rates", "books", main, {**SMALL, "steps": 1500, "test": False}, rates=RATES, seeds=ONE_SEED),
        table_of("books-bpe", "books", main, {**SMALL, "steps": 1500}, seeds=ONE_SEED, tokenizer="bpe8192"),
        table_of("books-large", "books", large, {**LARGE, "steps": 3200, "lr": 6e-4}, own_seeds={"dense 1d": ONE_SEED}),
    ]
    return tuple(made)


LANGUAGE = Experiment("language", tables(), ROOT)
