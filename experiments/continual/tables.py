"""Which runs answer which question: E0 to E11. Settings are chosen by the tables of `tuning`."""

from __future__ import annotations

from typing import Any

from dynamicgate.lab.runner import Change, Experiment, Table
from experiments import ROOT
from experiments.continual import cells, choosing, classes, following, keeping, laboratories, plasticity
from experiments.continual.grids import settings_by, with_chosen
from experiments.continual.settings import (
    BYTES,
    E0_METHODS,
    FIVE,
    GATE_RATES,
    JOINT,
    KEEP,
    KEPT,
    LEARNERS,
    LENGTHS,
    OURS,
    PERIODS,
    QUICK_FOLLOW,
    QUICK_KEEP,
    QUICK_SIDE,
    SMALL,
    STATIC,
    THREE,
    WIDE,
    WORLDS,
    Models,
    all_training_rows,
    asked,
    centred,
    replay_of,
    table,
)
from experiments.continual.side import METHODS
from experiments.continual.tuning import (
    AGEING,
    HORIZONS,
    best_ages,
    best_horizon,
    following_tables,
    joint_rate,
    tuning_horizon,
    tuning_keep,
    tuning_plasticity,
)

TUNED = following_tables()
PUBLISHED = {"rate": 1e-4, "maturity": 100}  # of continual backprop, while tuning-plasticity is not stored
DECAYS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
DECAYED = list(AGEING["tuning-plasticity-decay"])
AGED = [name for name in METHODS if name not in ("fresh", "static + l2", "set + l2", "rigl + l2")]


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
    Weights that are held smaller came later, and have a table of their own on the same rows. E6 has the rows of a
    published stream in batches of 16, not one by one, and as many tasks as show the decline."""
    short = {"tasks": 500, "rows": 10_000, "batch": 16, "hidden": [100, 100], "lr": 1e-3, "seeds": list(FIVE),
             "methods": AGED}  # fmt: skip
    long = {"tasks": 200, "rows": 60_000, "batch": 16, "hidden": [100, 100, 100], "lr": 1e-3, "seeds": list(THREE),
            "methods": ["dense", "l2", "continual backprop", "set + recycling"]}  # fmt: skip
    decay = options_of({**short, "methods": DECAYED}, "tuning-plasticity-decay")
    short, long = (options_of(one) for one in (short, long))
    wide = {**long, "tasks": 50, "hidden": [2000, 2000, 2000], "seeds": [0], "every": 1000}
    return [
        table("e5", {"side by side": short, "fresh": {**short, "methods": ["fresh"], "options": {},
              "tasks": 50}}, plasticity, QUICK_SIDE, (0,)),
        table("e5-decay", {"side by side": decay}, plasticity, QUICK_SIDE, (0,)),
        table("e6", {"width 100": long}, plasticity, {**QUICK_SIDE, "hidden": [20, 20, 20]}, (0,)),
        table("e6-wide", {"width 2,000": wide}, plasticity, {**QUICK_SIDE, "hidden": [30, 30, 30]}, (0,)),
    ]  # fmt: skip


def options_of(one: dict[str, Any], tuned: str = "tuning-plasticity") -> dict[str, Any]:
    """Settings of E5 or E6 with the options of its methods that this table of tuning chose."""
    found = {name: PUBLISHED for name in one["methods"] if "continual backprop" in name} | best_ages(tuned)
    return {**one, "options": {name: found[name] for name in one["methods"] if name in found}}


def e8() -> list[Table]:
    """New digits. Every seed has an order of classes of its own. Replay keeps as many bytes as readouts of 500, 1,000
    and 2,000 numbers do, a byte for a pixel."""
    kinds: Models = {"": {}, ", windows": {"window": 10}, ", filters": {"filters": 7, "decay": 1e-5},
                     ", learned": {"features": "learned"}}  # fmt: skip
    own: Models = {f"readout {units}{name}": {"method": "readout", "units": units, **kind}
                   for name, kind in kinds.items() for units in (500, 1000, 2000)}  # fmt: skip
    replays: Models = {name: replay_of(room, 784) for name, room in BYTES.items()}
    others = with_chosen(asked({**LEARNERS, **replays}, batch=128, epochs=4, lr=1e-3), settings_by(*TUNED["split"]))
    shared = {"stream": "split", "shuffled": True, "hidden": [400, 400]}
    models = {name: {**one, **shared} for name, one in (own | others).items()}
    return [table("e8", models, classes, {"hidden": [32], "epochs": 1, "units": 100}, FIVE, revision=2)]


def e9() -> list[Table]:
    """Rotated digits, where contexts are alike, and pairs of classes of natural images."""
    kept = {"method": "keep", "width": 512, "density": 0.13, "lr": 5e-3}
    rotated = asked({**LEARNERS, **OURS, "keep + reuse": {**kept, "reuse": 1}}, stream="rotated", tasks=20,
                    hidden=[400, 400], batch=128, epochs=1, lr=1e-3)  # fmt: skip
    found = settings_by(*TUNED["rotated"])
    rotated = with_chosen(rotated, found, lambda name: "keep" if name == "keep + reuse" else name)
    replay = {"er, 32 MB": replay_of(BYTES["er, 32 MB"], 3072)}
    images = asked({**LEARNERS, **replay, "readout 2000": {"method": "readout", "units": 2000, "decay": 1e-2},
                    "readout 2000, learned": {"method": "readout", "units": 2000, "features": "learned",
                    "decay": 1e-2}}, hidden=[400, 400], batch=128, epochs=5, lr=1e-3)  # fmt: skip
    images = with_chosen(images, settings_by(*TUNED["natural"]))
    images = {name: {**one, "stream": "split", "shuffled": True} for name, one in images.items()}
    by_pairs = (Change("all training rows", all_training_rows), Change("centred", centred))
    return [
        table("e9", rotated, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, THREE, revision=2),
        table("e9-cifar10", images, classes, {"hidden": [32], "epochs": 1, "units": 100}, THREE, data="cifar10",
              data_options={"augment": False}, changes=by_pairs, revision=2),
    ]  # fmt: skip


def e10() -> list[Table]:
    """Cell types two at a time, and a second laboratory: on genes of the first, or on those that both have. Decays and
    recipes are chosen within each split, by its validation cells."""
    decays = [{"decay": decay} for decay in DECAYS]
    rates = [{"lr": lr} for lr in (1e-4, 3e-4, 1e-3, 3e-3)]
    lengths = [{**own, "epochs": epochs} for own in rates for epochs in (10, 30)]
    every = [{"method": method, **own} for method in ("readout", "balanced readout") for own in decays]
    models: Models = {
        "readout": {"method": "readout", "candidates": decays},
        "balanced readout": {"method": "balanced readout", "candidates": decays},
        "nearest mean": {"method": "nearest mean"},
        "chosen readout": {"method": "readout", "candidates": [*every, {"method": "nearest mean"}]},
        **asked({**{k: LEARNERS[k] for k in ("naive", "er 200")}, "er 50": {"method": "er", "learner": {"rows": 50}},
                "keep": {"width": 64}}, batch=64, epochs=10, lr=1e-3, candidates=rates),
        **asked({"joint": {}}, batch=64, epochs=10, lr=1e-3, candidates=lengths),
    }  # fmt: skip
    shared = {"stream": "split", "shuffled": True, "hidden": [256]}
    models = {name: {**shared, **one} for name, one in models.items()}
    quick = {"hidden": [32], "epochs": 1, "width": 16}
    ten = tuple(range(10))
    second = {"data": "pbmc3k and pbmc68k", "load": laboratories.load, "changes": (), "revision": 2}
    return [
        table("e10", models, choosing, quick, ten, data="pbmc3k", load=cells.load, changes=(), revision=2),
        table("e10-laboratories", models, choosing, quick, ten, **second),
        table("e10-shared-genes", models, choosing, quick, ten, **second, data_options={"genes": "shared"}),
    ]


def e11() -> list[Table]:
    """Two clocks in three worlds; and a third, at which connections are kept for good."""
    clocks: Models = {
        f"{world}, gates {rate:g}, every {every or 'never'}": {
            "method": "gate+rigl", "hidden": [256, 256], "batch": 32, "lr": 1e-3, "gate_lr_scale": rate,
            "every": every or -1, "clock": "constant", "online": True, **own,
        }
        for world, own in WORLDS.items() for rate in GATE_RATES for every in PERIODS
    }  # fmt: skip
    third: Models = {
        f"{world}, every {every}, {f'kept after {after}' if after else 'never kept'}": {
            "method": "gate+rigl", "hidden": [256, 256], "batch": 32, "lr": 1e-3, "gate_lr_scale": 1.0,
            "every": every, "clock": "constant", "online": True, "keep_after": after, **own,
        }
        for world, own in WORLDS.items() for after in (None, 1, 3, 10, 30) for every in (30, 100, 300)
    }  # fmt: skip
    quick = {**QUICK_FOLLOW, "every": 2}
    return [table("e11", clocks, following, quick, THREE), table("e11-consolidation", third, following, quick, THREE)]


def tables() -> tuple[Table, ...]:
    """All tables."""
    xdg = {"hidden": [2000, 2000], "usual": [400, 400]}
    e1 = asked({**LEARNERS, **OURS, "xdg": xdg}, tasks=10, hidden=[400, 400], batch=128, epochs=3, lr=1e-3)
    e1 = with_chosen(e1, settings_by(*TUNED["permuted"]))
    joint = {**JOINT, "smoothing": KEEP["smoothing"], "lr": joint_rate()}
    longer: Models = {"keep": KEPT, "separate": SMALL, "joint": joint}
    rivals = asked({"naive": {}, "si": {"learner": {"strength": 10.0}}, "xdg": {}}, tasks=100, **WIDE)
    rivals = with_chosen(rivals, settings_by(*TUNED["rivals"]))
    e2: Models = {"keep": {**KEPT, "assemble": True}, "separate": SMALL, "static": STATIC, "joint": joint}
    nobody_says = {**KEPT, "tasks": 100, "known": "nothing"}
    e3: Models = {"keep": {**nobody_says, "horizon": best_horizon()}}
    e3 |= {f"horizon {steps}": {**nobody_says, "horizon": steps} for steps in HORIZONS}
    return (
        tuning_keep(),
        tuning_horizon(),
        *(tuned for tuned, _ in TUNED.values()),
        *tuning_plasticity(),
        *e0(),
        table("e1", e1, following, {**QUICK_FOLLOW, "width": 16, "every": 2}, FIVE, revision=2),
        table("e1-longer", {n: {**m, "tasks": 10} for n, m in longer.items()}, keeping, QUICK_KEEP, FIVE),
        table("e2", {n: {**m, "tasks": 100} for n, m in e2.items()}, keeping, QUICK_KEEP, THREE),
        table("e2-rivals", rivals, following, QUICK_FOLLOW, (0,)),
        table("e3", e3, keeping, {**QUICK_KEEP, "horizon": 8}, THREE),
        table("e4", {"keep": {**KEEP, "tasks": 1000, "projections": [64, 256]}}, keeping, QUICK_KEEP, (0,)),
        *e5_and_e6(),
        table("e7", {"keep": {**KEPT, "tasks": 800, "capacity": 100}}, keeping, {**QUICK_KEEP, "capacity": 2}, THREE),
        *e8(),
        *e9(),
        *e10(),
        *e11(),
    )


CONTINUAL = Experiment("continual", tables(), ROOT)
