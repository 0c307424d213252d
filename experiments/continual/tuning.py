"""Settings on other permutations and orders, tested on validation rows: which learning rates and strengths, for every
method; which recipe and horizon for kept contexts; which rule for units that are drawn anew."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from dynamicgate.lab.runner import Change, Job, Table
from experiments.continual import classes, following, keeping, plasticity
from experiments.continual.ages import late_mean
from experiments.continual.grids import Grids, points, reached_by, stored_runs, tried
from experiments.continual.settings import (
    BYTES,
    JOINT,
    KEEP,
    OTHERS,
    QUICK_FOLLOW,
    QUICK_KEEP,
    QUICK_SIDE,
    SEPARATE,
    WIDE,
    Models,
    asked,
    centred,
    on_validation_rows,
    replay_of,
    table,
)

ON_VALIDATION = (Change("validation rows", on_validation_rows),)
REPLAYS = ("er 200", "er 2000", "der++ 200", "a-gem 200")
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
PERMUTED: Grids = {
    "naive": points((1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)),
    "ewc": [*points((1e-3,), (1.0, 10.0, 100.0, 1000.0)), *points((1e-4, 3e-4, 3e-3), (10.0, 100.0, 1000.0, 1e4))],
    "si": [*points((1e-3,), (0.1, 1.0, 10.0, 100.0)), *points((1e-4, 3e-4, 3e-3), (1.0, 10.0, 100.0, 1000.0)),
           *points((3e-3,), (0.1,)), *points((1e-2,), (0.1, 1.0, 10.0))],
    "lwf": [*points((1e-3,), (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)),
            *points((3e-6, 1e-5, 3e-5, 1e-4), (0.03, 0.1, 0.3, 1.0, 3.0))],
    **dict.fromkeys(REPLAYS, points(RATES)),
    "joint": points((1e-4, 3e-4, 1e-3, 3e-3)),
    **dict.fromkeys(("keep", "separate"), points((1e-3, 2e-3, 5e-3, 1e-2))),
    "xdg": points((1e-4, 3e-4, 1e-3, 3e-3)),
}  # fmt: skip
ROTATED: Grids = {
    "naive": points((1e-5, 3e-5, 1e-4, 3e-4, 1e-3)),
    "ewc": [*points((1e-4, 3e-4, 1e-3), (1.0, 10.0, 100.0, 1000.0)), *points((3e-4, 1e-3, 3e-3), (1e4, 1e5)),
            *points((3e-3,), (1000.0,))],
    "si": [*points((1e-4, 3e-4, 1e-3), (1.0, 10.0, 100.0, 1000.0)), *points((1e-4, 3e-4, 1e-3, 3e-3), (1e4, 1e5))],
    "lwf": [*points((1e-5, 1e-4, 1e-3), (0.1, 0.3, 1.0, 3.0)), *points((1e-4, 1e-3, 3e-3), (10.0, 30.0, 100.0)),
            *points((3e-3,), (3.0,))],
    **dict.fromkeys(REPLAYS, points(RATES)),
    "joint": points((1e-4, 3e-4, 1e-3, 3e-3)),
    "keep": points((1e-3, 2e-3, 5e-3, 1e-2)),
    "separate": points((1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)),
}  # fmt: skip
HELD_CLASSES = (
    *points((1e-5, 1e-4, 1e-3), (10.0, 100.0, 1000.0, 1e4)), *points((1e-6,), (1000.0, 1e4, 1e5, 1e6)),
    *points((1e-5, 1e-4, 1e-3), (1e5, 1e6)), *points((1e-4, 1e-3), (1e7,)),
)  # fmt: skip
SPLIT: Grids = {
    "naive": points((1e-6, 1e-5, 1e-4, 1e-3, 1e-2)),
    **dict.fromkeys(("ewc", "si"), HELD_CLASSES),
    "lwf": [*points((1e-4, 3e-4, 1e-3, 3e-3), (0.3, 1.0, 3.0, 10.0)), *points((1e-5, 3e-5), (0.3, 1.0, 3.0)),
            *points((1e-5, 3e-5, 1e-4), (0.1,)), *points((1e-5, 3e-5), (10.0,)), *points((3e-6,), (1.0, 3.0, 10.0)),
            *points((1e-5,), (30.0,))],
    **dict.fromkeys((*REPLAYS, *BYTES), points(RATES)),
    "a-gem 200": points((3e-6, 1e-5, *RATES)),
    "joint": points((1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
}  # fmt: skip
NATURAL: Grids = {
    **{row: grid for row, grid in SPLIT.items() if row not in BYTES}, "er, 32 MB": points(RATES),
    "naive": points((1e-7, 3e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)),
    "si": [*HELD_CLASSES, *points((3e-3, 1e-2), (1e4, 1e5, 1e6))],
    "er 200": points((3e-6, 1e-5, *RATES)),
}  # fmt: skip
RIVALS: Grids = {
    "naive": points((1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4)),
    "si": points((1e-4, 3e-4, 1e-3, 3e-3), (1.0, 10.0, 100.0)),
    "xdg": points((1e-4, 3e-4, 1e-3, 3e-3)),
}
JOINT_RATES = (3e-4, 1e-3, 3e-3)
HORIZONS, LONGEST = (1000, 2300, 4600, 9200), 18_400
REPLACED, MATURE, SILENT = (1e-5, 1e-4, 1e-3, 1e-2), (10, 100, 1000), (0.03, 0.1, 0.3)
AgeGrids = dict[str, dict[str, tuple[float, ...]]]
"""What is tried of each method that keeps networks young."""
AGES: AgeGrids = {
    "l2": {"l2": (1e-5, 1e-4, 1e-3)}, "l2 init": {"l2_init": (1e-4, 1e-3, 1e-2)},
    "shrink and perturb": {"shrink": (1e-6, 1e-5, 1e-4), "noise": (1e-5, 1e-4, 1e-3)},
    "redo": {"silent": SILENT}, "set + recycling": {"silent": SILENT},
    "continual backprop": {"rate": REPLACED, "maturity": MATURE},
    "set + continual backprop": {"rate": REPLACED, "maturity": MATURE},
}  # fmt: skip
HELD: dict[str, tuple[float, ...]] = {"l2": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}
DECAYING: AgeGrids = {  # weights held smaller than in the first table, where the most was best; dense and sparse
    "l2": HELD, "shrink and perturb": {"shrink": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3), "noise": (1e-5, 1e-4, 1e-3)},
    **dict.fromkeys(("static + l2", "set + l2", "rigl + l2"), HELD),
    "set + recycling + l2": {"silent": SILENT, **HELD},
}  # fmt: skip
AGEING = {"tuning-plasticity": AGES, "tuning-plasticity-decay": DECAYING}


def tuning_keep() -> Table:
    """The recipe of kept contexts, and the rates of what stands beside them. Joint training has the same loss."""
    models: Models = {
        f"width {width}, lr {lr:g}": {**KEEP, "tasks": 3, "width": width, "density": density, "lr": lr}
        for width, density in ((256, 0.27), (512, 0.13), (1024, 0.058)) for lr in (1e-3, 3e-3, 1e-2)
    }  # fmt: skip
    models |= {f"{epochs} epochs": {**KEEP, "tasks": 3, "epochs": epochs} for epochs in (3, 5, 20)}
    models |= {"labels as they are": {**KEEP, "tasks": 3, "smoothing": 0.0},
               "dropout": {**KEEP, "tasks": 3, "drop": 0.3, "drop_inputs": 0.1},
               "decay": {**KEEP, "tasks": 3, "decay": 0.1}}  # fmt: skip
    models |= {f"separate, lr {lr:g}": {**SEPARATE, "tasks": 3, "lr": lr} for lr in (1e-3, 3e-3, 1e-2)}
    for smoothed in (False, True):
        own = {"tasks": 10, "epochs": 3, **({"smoothing": KEEP["smoothing"]} if smoothed else {})}
        name = "joint, labels smoothed" if smoothed else "joint"
        models |= {f"{name}, lr {lr:g}": {**JOINT, **own, "lr": lr} for lr in JOINT_RATES}
    return table("tuning-keep", models, keeping, QUICK_KEEP, OTHERS, changes=ON_VALIDATION)


def joint_rate() -> float:
    """The rate of joint training with smoothed labels that the stored runs choose; 0.001 while they are not stored."""
    run_table = tuning_keep()
    reached = {lr: reached_by(run_table, f"joint, labels smoothed, lr {lr:g}") for lr in JOINT_RATES}
    known = {lr: value for lr, value in reached.items() if value is not None}
    return max(known, key=known.__getitem__) if len(known) == len(reached) else 1e-3


def tuning_horizon() -> Table:
    """After how many steps a context that was noticed counts as learned; a task here has 4,290 steps."""
    nobody_says = {**KEEP, "tasks": 10, "known": "nothing"}
    models: Models = {f"horizon {steps}": {**nobody_says, "horizon": steps} for steps in (*HORIZONS, LONGEST)}
    return table("tuning-horizon", models, keeping, {**QUICK_KEEP, "horizon": 8}, OTHERS, changes=ON_VALIDATION)


def following_tables() -> dict[str, tuple[Table, Grids]]:
    """Learning rates and strengths of every method, on each kind of stream."""
    shared: dict[str, Any] = {"hidden": [400, 400], "batch": 128}
    split = {**shared, "stream": "split", "shuffled": True}
    quick = {**QUICK_FOLLOW, "width": 16, "every": 2}
    quick_split = {"hidden": [32], "epochs": 1}
    natural = tried(NATURAL, replays(3072))
    return {
        "permuted": (table("tuning-learners", asked(tried(PERMUTED), **{**shared, "tasks": 10, "epochs": 3}), following,
                           quick, OTHERS, changes=ON_VALIDATION), PERMUTED),
        "rotated": (table("tuning-rotated", asked(tried(ROTATED), **{**shared, "stream": "rotated", "tasks": 20,
                          "epochs": 1}), following, quick, OTHERS[:1], changes=ON_VALIDATION), ROTATED),
        "split": (table("tuning-classes", asked(tried(SPLIT, replays(784)), **{**split, "epochs": 4}),
                        classes, quick_split, OTHERS, changes=ON_VALIDATION), SPLIT),
        "natural": (table("tuning-cifar10", asked(natural, **{**split, "epochs": 5}), classes, quick_split, OTHERS[:1],
                          data="cifar10", data_options={"augment": False},
                          changes=(*ON_VALIDATION, Change("centred", centred))), NATURAL),
        "rivals": (table("tuning-rivals", asked(tried(RIVALS), **{**WIDE, "tasks": 100, "rows": 20_000}), following,
                         QUICK_FOLLOW, OTHERS[:1], changes=ON_VALIDATION), RIVALS),
    }  # fmt: skip


def replays(features: int) -> Models:
    """Replay with as many bytes as a readout keeps."""
    return {row: replay_of(room, features) for row, room in BYTES.items()}


class Tried(NamedTuple):
    """A method of E5 with some of its options."""

    method: str
    options: dict[str, float]

    @property
    def name(self) -> str:
        """With the options."""
        return self.method + ", " + ", ".join(f"{key} {value:g}" for key, value in self.options.items())


def tried_ages(grids: AgeGrids) -> list[Tried]:
    """Every method of E5 that has options, with each of them."""
    return [
        Tried(method, dict(zip(options, values, strict=True)))
        for method, options in grids.items()
        for values in product(*options.values())
    ]


def tuning_plasticity() -> tuple[Table, ...]:
    """What keeps networks young, side by side on a hundred permutations of other seeds; accuracy is on rows before the
    step on them."""
    return tuple(
        table(name, {"side by side": _side_by_side(grids)}, plasticity, QUICK_SIDE, OTHERS[:1])
        for name, grids in AGEING.items()
    )


def _side_by_side(grids: AgeGrids) -> dict[str, Any]:
    options = {one.name: {"like": one.method, **one.options} for one in tried_ages(grids)}
    return {"tasks": 100, "rows": 10_000, "batch": 16, "hidden": [100, 100], "lr": 1e-3, "seeds": list(OTHERS),
            "methods": list(options), "options": options}  # fmt: skip


def best_ages(name: str = "tuning-plasticity") -> dict[str, dict[str, float]]:
    """The options of each method that the stored run chooses, by the last tenth of its tasks; none while none is
    stored."""
    run_table = next(one for one in tuning_plasticity() if one.name == name)
    job = Job(run_table, "side by side", run_table.seeds[0])
    run = stored_runs(run_table.name).get((job.model, job.seed))
    if run is None or run["hash"] != job.hash:
        return {}
    reached = [(late_mean(run["quality"]["online"][one.name]), one) for one in tried_ages(AGEING[name])]
    return {
        method: max((pair for pair in reached if pair[1].method == method), key=lambda pair: pair[0])[1].options
        for method in AGEING[name]
    }


def best_horizon() -> int:
    """The horizon that the stored runs choose; 4,600 while they are not stored."""
    run_table = tuning_horizon()
    reached = {steps: reached_by(run_table, f"horizon {steps}") for steps in (*HORIZONS, LONGEST)}
    known = {steps: value for steps, value in reached.items() if value is not None}
    return max(known, key=known.__getitem__) if len(known) == len(reached) else 4600
