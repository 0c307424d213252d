"""Which runs answer which question: E0 to E11.

Sizes and settings come from small probes on plain MNIST and from published code. The tables "tuning-..." compare
settings on three permutations of other seeds, from 1,000 on, and on validation rows; nothing is chosen on the streams
that are reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Experiment, Table
from experiments import ROOT
from experiments.continual import cells, classes, following, keeping, laboratories, plasticity
from experiments.continual.side import METHODS

Models = dict[str, dict[str, Any]]

# What 58 k connections of a task reach on validation rows of other permutations (seed 1000): 98.08 in 3 epochs at a
# rate of 5e-3, 98.40 in 10; in 10 at 3e-3 with labels smoothed by 0.1, 98.54; dropout of 0.3 and 0.1, 98.42, smoothed
# as well 98.42; decay of 0.1 instead, 98.30; 1,024 units, dropout: 98.48. One run each on 5,000 rows, so a tenth
# or two is chance: only the length is clear, and tuning-keep decides the rest. It is not routing: mean images named all
# of 40,000 rows of 20 tasks among 100.
KEEP = {"width": 512, "density": 0.13, "lr": 3e-3, "batch": 128, "epochs": 10, "smoothing": 0.1, "at_once": 100}
SEPARATE = {**KEEP, "width": 73, "density": None, "rewire": None}
STATIC = {**KEEP, "rewire": False}
JOINT = {"method": "joint", "hidden": [2048, 2048], "batch": 128, "epochs": 10, "lr": 1e-3}
WIDE = {"hidden": [2048, 2048], "batch": 256, "epochs": 3, "lr": 1e-3}
QUICK_KEEP = {"tasks": 3, "width": 32, "epochs": 1, "batch": 50, "at_once": 2, "hidden": [32, 32]}
QUICK_FOLLOW = {"tasks": 2, "hidden": [32, 32], "epochs": 1, "batch": 50, "rows": 200}
QUICK_SIDE = {"tasks": 3, "hidden": [20, 20], "rows": 400, "seeds": [0, 1]}
THREE, FIVE, OTHERS = (0, 1, 2), (0, 1, 2, 3, 4), (1000, 1001)

LENGTHS: Models = {"short": {"epochs": 1, "rows": 20_000}, "middle": {"epochs": 1}, "long": {"epochs": 2}}
E0_METHODS: Models = {
    "dense": {}, "small": {"budget": 0.35}, "gate": {"budget": 0.35}, "gate in blocks": {"method": "gate", "block": 16,
    "budget": 0.35}, "top-k": {}, "static-sparse": {}, "rigl": {}, "gate+rigl": {},
}  # fmt: skip
LEARNERS: Models = {
    "naive": {}, "ewc": {"learner": {"strength": 100.0}}, "si": {"learner": {"strength": 10.0}}, "lwf": {},
    "er 200": {"method": "er", "learner": {"rows": 200}}, "er 2000": {"method": "er", "learner": {"rows": 2000}},
    "der++ 200": {"method": "der++", "learner": {"rows": 200}}, "a-gem 200": {"method": "a-gem", "learner":
    {"rows": 200}}, "joint": {},
}  # fmt: skip
OURS: Models = {
    "keep": {"width": 512, "density": 0.13, "lr": 5e-3},
    "separate": {"method": "keep", "width": 73, "lr": 5e-3},
}
AGED = [name for name in METHODS if name != "fresh"]
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
    """A table on MNIST unless other data are asked for. Settings are not chosen by its runs, so that validation rows
    are learned as well, as published streams do."""
    more = {"data": "mnist", "changes": (Change("all training rows", all_training_rows),), **more}
    return Table(name=name, models=models, train=kind.train, seeds=seeds, quick=quick, **more)


def on_validation_rows(splits: Splits) -> Splits:
    """Test on validation rows: settings are chosen by them."""
    return replace(splits, test=splits.valid)


def all_training_rows(splits: Splits) -> Splits:
    """Learn from training and validation rows."""
    train, valid, test = (
        replace(part, x=part.values, prepare=None) for part in (splits.train, splits.valid, splits.test)
    )
    train = replace(train, x=torch.cat([train.values, valid.values]), y=torch.cat([train.y, valid.y]))
    return replace(splits, train=train, valid=valid.take(torch.arange(1)), test=test)


def centred(splits: Splits) -> Splits:
    """Pixels about 0 by numbers that no image was looked at for."""
    flat = splits.flat()
    train, valid, test = (
        replace(part, x=(part.values - 0.5) / 0.25, prepare=None, augment=None)
        for part in (flat.train, flat.valid, flat.test)
    )
    return replace(flat, train=train, valid=valid, test=test, mean=0.0, std=1.0)


def tuning() -> list[Table]:
    """Settings on other permutations, tested on validation rows."""
    keep: Models = {
        f"width {width}, lr {lr:g}": {**KEEP, "tasks": 3, "width": width, "density": density, "lr": lr}
        for width, density in ((256, 0.27), (512, 0.13), (1024, 0.058)) for lr in (1e-3, 3e-3, 1e-2)
    }  # fmt: skip
    keep |= {f"{epochs} epochs": {**KEEP, "tasks": 3, "epochs": epochs} for epochs in (3, 5, 20)}
    keep |= {"labels as they are": {**KEEP, "tasks": 3, "smoothing": 0.0},
             "dropout": {**KEEP, "tasks": 3, "drop": 0.3, "drop_inputs": 0.1},
             "decay": {**KEEP, "tasks": 3, "decay": 0.1}}  # fmt: skip
    separate: Models = {f"separate, lr {lr:g}": {**SEPARATE, "tasks": 3, "lr": lr} for lr in (1e-3, 3e-3, 1e-2)}
    joint: Models = {f"joint, lr {lr:g}": {**JOINT, "tasks": 10, "epochs": 3, "lr": lr} for lr in (3e-4, 1e-3, 3e-3)}
    learners: Models = {
        **{f"naive, lr {lr:g}": {"method": "naive", "lr": lr} for lr in (1e-5, 1e-4, 1e-3)},
        **{f"ewc {s:g}": {"method": "ewc", "learner": {"strength": s}} for s in (1.0, 10.0, 100.0, 1000.0)},
        **{f"si {s:g}": {"method": "si", "learner": {"strength": s}} for s in (0.1, 1.0, 10.0, 100.0)},
        **{f"lwf {s:g}": {"method": "lwf", "learner": {"strength": s}} for s in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)},
    }
    shared = {"tasks": 10, "hidden": [400, 400], "batch": 128, "epochs": 3, "lr": 1e-3}
    change = (Change("validation rows", on_validation_rows),)
    return [
        table("tuning-keep", {**keep, **separate, **joint}, keeping, QUICK_KEEP, OTHERS, changes=change),
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


def e5_and_e6() -> list[Table]:
    """Does a network grow old? Five seeds learn side by side; networks that are new in every task need fewer tasks.
    E6 has the rows of a published stream in batches of 16, not one by one, and as many tasks as show the decline."""
    short = {"tasks": 500, "rows": 10_000, "batch": 16, "hidden": [100, 100], "lr": 1e-3, "seeds": list(FIVE)}
    long = {"tasks": 200, "rows": 60_000, "batch": 16, "hidden": [100, 100, 100], "lr": 1e-3, "seeds": list(THREE),
            "methods": ["dense", "l2", "continual backprop", "set + recycling"]}  # fmt: skip
    wide = {**long, "tasks": 50, "hidden": [2000, 2000, 2000], "seeds": [0], "every": 1000}
    return [
        table("e5", {"side by side": {**short, "methods": AGED}, "fresh": {**short, "methods": ["fresh"],
              "tasks": 50}}, plasticity, QUICK_SIDE, (0,)),
        table("e6", {"width 100": long}, plasticity, {**QUICK_SIDE, "hidden": [20, 20, 20]}, (0,)),
        table("e6-wide", {"width 2,000": wide}, plasticity, {**QUICK_SIDE, "hidden": [30, 30, 30]}, (0,)),
    ]  # fmt: skip


def e8() -> list[Table]:
    """New digits. Every seed has an order of classes of its own. A readout of 500 numbers takes as much room as 640
    images, one of 1,000 as 2,530."""
    kinds: Models = {"": {}, ", windows": {"window": 10}, ", filters": {"filters": 7, "decay": 1e-5},
                     ", learned": {"features": "learned"}}  # fmt: skip
    own: Models = {f"readout {units}{name}": {"method": "readout", "units": units, **kind}
                   for name, kind in kinds.items() for units in (500, 1000, 2000)}  # fmt: skip
    others = asked({**LEARNERS, **{f"er {n}": {"method": "er", "learner": {"rows": n}} for n in (640, 2530, 20_000)}},
                   batch=128, epochs=4, lr=1e-3)  # fmt: skip
    shared = {"stream": "split", "shuffled": True, "hidden": [400, 400]}
    models = {name: {**one, **shared} for name, one in (own | others).items()}
    return [table("e8", models, classes, {"hidden": [32], "epochs": 1, "units": 100}, FIVE)]


def e9() -> list[Table]:
    """Rotated digits, where contexts are alike, and pairs of classes of natural images."""
    kept = {"method": "keep", "width": 512, "density": 0.13, "lr": 5e-3}
    rotated = asked({**LEARNERS, **OURS, "keep + reuse": {**kept, "reuse": 1}}, stream="rotated", tasks=20,
                    hidden=[400, 400], batch=128, epochs=1, lr=1e-3)  # fmt: skip
    images = asked({**LEARNERS, "readout 2000": {"method": "readout", "units": 2000, "decay": 1e-2},
                    "readout 2000, learned": {"method": "readout", "units": 2000, "features": "learned",
                    "decay": 1e-2}}, hidden=[400, 400], batch=128, epochs=5, lr=1e-3)  # fmt: skip
    images = {name: {**one, "stream": "split", "shuffled": True} for name, one in images.items()}
    by_pairs = (Change("all training rows", all_training_rows), Change("centred", centred))
    return [
        table("e9", rotated, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, THREE),
        table("e9-cifar10", images, classes, {"hidden": [32], "epochs": 1, "units": 100}, THREE, data="cifar10",
              data_options={"augment": False}, changes=by_pairs),
    ]  # fmt: skip


def e10() -> list[Table]:
    """Cell types two at a time, and a second laboratory: on genes of the first, or on those that both have. Decay of
    readouts (seven values) and rate, length and depth of joint training (five recipes) were chosen for cell types, by
    test cells of four splits of other seeds. The cells are the same 2,638, so that these are not wholly new to it; for
    the laboratories nothing was chosen."""
    models: Models = {
        "readout": {"method": "readout", "decay": 0.3}, "balanced readout": {"method": "balanced readout",
        "decay": 3.0}, "nearest mean": {"method": "nearest mean"},
        **asked({**{k: LEARNERS[k] for k in ("naive", "er 200")}, "er 50": {"method": "er", "learner": {"rows": 50}},
                "keep": {"width": 64}, "joint": {"epochs": 30, "lr": 3e-4}}, batch=64, epochs=10, lr=1e-3),
    }  # fmt: skip
    shared = {"stream": "split", "shuffled": True, "hidden": [256]}
    models = {name: {**shared, **one} for name, one in models.items()}
    quick = {"hidden": [32], "epochs": 1, "width": 16}
    ten = tuple(range(10))
    second = {"data": "pbmc3k and pbmc68k", "load": laboratories.load, "changes": ()}
    return [
        table("e10", models, classes, quick, ten, data="pbmc3k", load=cells.load, changes=()),
        table("e10-laboratories", models, classes, quick, ten, **second),
        table("e10-shared-genes", models, classes, quick, ten, **second, data_options={"genes": "shared"}),
    ]


def e11() -> list[Table]:
    """Two clocks in three worlds."""
    clocks: Models = {
        f"{world}, gates {rate:g}, every {every or 'never'}": {
            "method": "gate+rigl", "hidden": [256, 256], "batch": 32, "lr": 1e-3, "gate_lr_scale": rate,
            "every": every or -1, "clock": "constant", "online": True, **own,
        }
        for world, own in WORLDS.items() for rate in GATE_RATES for every in PERIODS
    }  # fmt: skip
    return [table("e11", clocks, following, {**QUICK_FOLLOW, "every": 2}, THREE)]


def tables() -> tuple[Table, ...]:
    """All tables."""
    e1 = asked({**LEARNERS, **OURS, "xdg": {"hidden": [2000, 2000]}}, tasks=10, hidden=[400, 400], batch=128, epochs=3,
               lr=1e-3)  # fmt: skip
    longer: Models = {"keep": KEEP, "separate": SEPARATE, "joint": JOINT}
    rivals = asked({"naive": {}, "si": {"learner": {"strength": 10.0}}, "xdg": {}}, tasks=100, **WIDE)
    e2: Models = {"keep": {**KEEP, "assemble": True}, "separate": SEPARATE, "static": STATIC, "joint": JOINT}
    nobody_says = {**KEEP, "tasks": 100, "known": "nothing", "horizon": 4600}
    return (
        *tuning(),
        *e0(),
        table("e1", e1, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, FIVE),
        table("e1-longer", {n: {**m, "tasks": 10} for n, m in longer.items()}, keeping, QUICK_KEEP, FIVE),
        table("e2", {n: {**m, "tasks": 100} for n, m in e2.items()}, keeping, QUICK_KEEP, THREE),
        table("e2-rivals", rivals, following, QUICK_FOLLOW, (0,)),
        table("e3", {"keep": nobody_says}, keeping, {**QUICK_KEEP, "horizon": 8}, THREE),
        table("e4", {"keep": {**KEEP, "tasks": 1000, "projections": [64, 256]}}, keeping, QUICK_KEEP, (0,)),
        *e5_and_e6(),
        table("e7", {"keep": {**KEEP, "tasks": 800, "capacity": 100}}, keeping, {**QUICK_KEEP, "capacity": 2}, THREE),
        *e8(),
        *e9(),
        *e10(),
        *e11(),
    )


CONTINUAL = Experiment("continual", tables(), ROOT)
