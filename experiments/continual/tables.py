"""Which runs answer which question: E0 to E11.

Sizes and settings come from small probes on plain MNIST and from published code. The tables "tuning-..." compare
settings on three permutations of other seeds, from 1,000 on, and on validation rows; nothing is chosen on the streams
that are reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Experiment, Table
from experiments import ROOT
from experiments.continual import classes, following, keeping, laboratories, plasticity

Models = dict[str, dict[str, Any]]

KEEP = {"width": 512, "density": 0.13, "lr": 5e-3, "batch": 128, "epochs": 3, "at_once": 100}
SEPARATE = {**KEEP, "width": 73, "density": None, "rewire": None}
STATIC = {**KEEP, "rewire": False}
WIDE = {"hidden": [2048, 2048], "batch": 256, "epochs": 3, "lr": 1e-3}
QUICK_KEEP = {"tasks": 3, "width": 32, "epochs": 1, "batch": 50, "at_once": 2}
QUICK_FOLLOW = {"tasks": 2, "hidden": [32, 32], "epochs": 1, "batch": 50, "rows": 200}
QUICK_SIDE = {"tasks": 3, "hidden": [20, 20], "rows": 400}
THREE, FIVE, OTHERS = (0, 1, 2), (0, 1, 2, 3, 4), (1000, 1001)

LENGTHS: Models = {"short": {"epochs": 1, "rows": 20_000}, "long": {"epochs": 3, "rows": None}}
E0_METHODS: Models = {
    "dense": {}, "small": {"budget": 0.35}, "gate": {"budget": 0.35}, "gate in blocks": {"method": "gate", "block": 16,
    "budget": 0.35}, "top-k": {}, "static-sparse": {}, "rigl": {}, "gate+rigl": {},
}  # fmt: skip
LEARNERS: Models = {
    "naive": {}, "ewc": {"learner": {"strength": 1000.0}}, "si": {"learner": {"strength": 0.1}}, "lwf": {},
    "er 200": {"method": "er", "learner": {"rows": 200}}, "er 2000": {"method": "er", "learner": {"rows": 2000}},
    "der++ 200": {"method": "der++", "learner": {"rows": 200}}, "a-gem 200": {"method": "a-gem", "learner":
    {"rows": 200}}, "joint": {},
}  # fmt: skip
OURS: Models = {
    "keep": {"width": 512, "density": 0.13, "lr": 5e-3},
    "separate": {"method": "keep", "width": 73, "lr": 5e-3},
}
GATE_RATES, PERIODS = (0.1, 0.3, 1.0, 3.0, 10.0), (10, 30, 100, 300, 1000, 0)
WORLDS = {
    "still": {"stream": "still", "tasks": 1, "epochs": 2},
    "jumping": {"stream": "permuted", "tasks": 5, "rows": 32_000, "epochs": 1},
    "turning": {"stream": "drifting", "tasks": 20, "epochs": 1},
}


def asked(models: Models, **shared: Any) -> Models:
    """Models with what all of them are asked for; a model is a method of its own name unless it says another."""
    return {name: {"method": name, **shared, **own} for name, own in models.items()}


def table(name: str, models: Models, kind: Any, quick: dict[str, Any], seeds: tuple[int, ...], **more: Any) -> Table:
    """A table on MNIST."""
    data = more.pop("data", "mnist")
    return Table(name=name, data=data, models=models, train=kind.train, seeds=seeds, quick=quick, **more)


def on_validation_rows(splits: Splits) -> Splits:
    """Test on validation rows: settings are chosen by them."""
    return replace(splits, test=splits.valid)


def tuning() -> list[Table]:
    """Settings on other permutations, tested on validation rows."""
    keep: Models = {
        f"width {width}, lr {lr:g}": {**KEEP, "tasks": 3, "width": width, "density": density, "lr": lr}
        for width, density in ((256, 0.27), (512, 0.13), (1024, 0.06)) for lr in (2e-3, 5e-3, 1e-2)
    }  # fmt: skip
    separate: Models = {f"separate, lr {lr:g}": {**SEPARATE, "tasks": 3, "lr": lr} for lr in (2e-3, 5e-3, 1e-2)}
    learners: Models = {
        **{f"naive, lr {lr:g}": {"method": "naive", "lr": lr} for lr in (1e-5, 1e-4, 1e-3)},
        **{f"ewc {s:g}": {"method": "ewc", "learner": {"strength": s}} for s in (100.0, 1000.0, 10_000.0)},
        **{f"si {s:g}": {"method": "si", "learner": {"strength": s}} for s in (0.01, 0.1, 1.0)},
        **{f"lwf {s:g}": {"method": "lwf", "learner": {"strength": s}} for s in (0.3, 1.0, 3.0)},
    }
    shared = {"tasks": 3, "hidden": [400, 400], "batch": 128, "epochs": 3, "lr": 1e-3}
    change = (Change("validation rows", on_validation_rows),)
    return [
        table("tuning-keep", {**keep, **separate}, keeping, QUICK_KEEP, OTHERS, changes=change),
        table("tuning-learners", asked(learners, **shared), following, QUICK_FOLLOW, OTHERS, changes=change),
    ]


def e0() -> list[Table]:
    """Nothing is kept: do gates, sparse connections or rewiring forget less?"""
    made = []
    for stream, tasks in (("permuted", 5), ("permuted", 10), ("rotated", 5)):
        models: Models = {}
        for length, own in LENGTHS.items():
            shared = {"hidden": [256, 256], "batch": 128, "lr": 1e-3, "stream": stream, "tasks": tasks}
            found = asked(E0_METHODS, **shared, **own, overlap=True)
            models |= {f"{name}, {length}": one for name, one in found.items()}
        made.append(table(f"e0-{stream}-{tasks}", models, following, {**QUICK_FOLLOW, "budget": 0.8}, FIVE))
    return made


def tables() -> tuple[Table, ...]:
    """All tables."""
    e1 = asked(LEARNERS, tasks=10, hidden=[400, 400], batch=128, epochs=3, lr=1e-3)
    e1 |= asked({**OURS, "xdg": {"hidden": [2000, 2000]}}, tasks=10, hidden=[400, 400], batch=128, epochs=3, lr=1e-3)
    rivals = asked({"naive": {}, "si": {"learner": {"strength": 0.1}}, "xdg": {}, "joint": {}}, tasks=100, **WIDE)
    e9 = asked({**LEARNERS, **OURS, "keep + reuse": {"method": "keep", "width": 512, "density": 0.13, "lr": 5e-3,
                "reuse": 1}}, stream="rotated", tasks=20, hidden=[400, 400], batch=128, epochs=1, lr=1e-3)  # fmt: skip
    contexts: Models = {"keep": KEEP, "separate": SEPARATE, "static": STATIC}
    split_models: Models = {
        "readout 1000": {"method": "readout", "units": 1000}, "readout 2000": {"method": "readout", "units": 2000},
        "readout 4000": {"method": "readout", "units": 4000},
        **asked({**LEARNERS, "er 5000": {"method": "er", "learner": {"rows": 5000}}}, stream="split",
                hidden=[400, 400], batch=128, epochs=4, lr=1e-3),
    }  # fmt: skip
    cells: Models = {
        "readout": {"method": "readout", "scale": True}, "balanced readout": {"method": "balanced readout",
        "scale": True}, "nearest mean": {"method": "nearest mean", "scale": True},
        **asked({k: LEARNERS[k] for k in ("naive", "er 200", "joint")}, stream="split", hidden=[256], batch=64,
                epochs=10, lr=1e-3),
    }  # fmt: skip
    clocks: Models = {
        f"{world}, gates {rate:g}, every {every or 'never'}": {
            "method": "gate+rigl", "hidden": [256, 256], "batch": 32, "lr": 1e-3, "gate_lr_scale": rate,
            "every": every or -1, "clock": "constant", "online": True, **own,
        }
        for world, own in WORLDS.items() for rate in GATE_RATES for every in PERIODS
    }  # fmt: skip
    quick_split = {"hidden": [32], "epochs": 1, "units": 100}
    return (
        *tuning(),
        *e0(),
        table("e1", e1, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, FIVE),
        table("e2", {n: {**m, "tasks": 100, "assemble": n == "keep"} for n, m in contexts.items()}, keeping,
              QUICK_KEEP, THREE),
        table("e2-rivals", rivals, following, QUICK_FOLLOW, (0,)),
        table("e3", {"keep": {**KEEP, "tasks": 100, "known": "nothing", "horizon": 1200}}, keeping,
              {**QUICK_KEEP, "horizon": 8}, THREE),
        table("e4", {"keep": {**KEEP, "tasks": 1000}}, keeping, QUICK_KEEP, (0,)),
        table("e5", {"side by side": {"tasks": 500, "rows": 10_000, "batch": 16, "hidden": [100, 100], "lr": 1e-3}},
              plasticity, QUICK_SIDE, FIVE),
        table("e6", {"side by side": {"tasks": 800, "rows": 60_000, "batch": 16, "hidden": [100, 100, 100],
              "lr": 1e-3, "methods": ["dense", "fresh", "l2", "continual backprop", "set + recycling"]}},
              plasticity, {**QUICK_SIDE, "hidden": [20, 20, 20]}, (0,)),
        table("e7", {"keep": {**KEEP, "tasks": 800, "capacity": 100}}, keeping, {**QUICK_KEEP, "capacity": 2}, THREE),
        table("e8", split_models, classes, quick_split, FIVE),
        table("e9", e9, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, THREE),
        table("e10", cells, classes, quick_split, tuple(range(10)), data="pbmc3k"),
        table("e10-laboratories", cells, classes, quick_split, tuple(range(10)), data="pbmc3k and pbmc68k",
              load=laboratories.load),
        table("e11", clocks, following, {**QUICK_FOLLOW, "every": 2}, THREE),
    )  # fmt: skip


CONTINUAL = Experiment("continual", tables(), ROOT)
