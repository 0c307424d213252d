"""The results that docs/continual.md begins with: each question, what our method reaches, and what stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import markdown
from dynamicgate.lab.statistics import interval
from experiments.continual.shown import Rows, mean, percent, plus_minus, relative

LATE = 10  # the last tasks of a stream of plasticity: one in so many
Line = tuple[str, str, str]


def summary(tables: Mapping[str, Rows]) -> str:
    """A line for each question to which runs are stored."""
    found = [line for ask in QUESTIONS if (line := ask(tables.__getitem__)) is not None]
    columns = ["question", "ours, accuracy in points", "beside it"]
    return markdown(columns, [list(line) for line in found]) if found else "No run is stored yet."


Read = Callable[[str], Rows]


def beside(rows: Rows, names: Mapping[str, str], measure: str = "acc") -> str:
    """What others reach, each with what to call it; fewer seeds than others have are named."""
    most = max(len(runs) for runs in rows.values())
    return "; ".join(
        f"{said} {percent(rows[name], measure)}"
        + (f" ({len(rows[name])} of {most} seeds)" if len(rows[name]) < most else "")
        for name, said in names.items()
        if name in rows
    )


def hundred(read: Read) -> Line | None:
    """A hundred permutations."""
    rows = read("e2")
    if "keep" not in rows:
        return None
    keep = rows["keep"]
    ours = f"contexts, sparse and kept: {percent(keep, 'acc')}, forgetting {percent(keep, 'forgetting')}, " \
           f"{mean(keep, 'params')} non-zero weights, {relative(keep, 'relative_to_usual')} of the MACs of " \
           "784-2048-2048-10"  # fmt: skip
    names = {"separate": "separate small networks behind the same router", "static": "the same with fixed connections",
             "joint": "joint training of 784-2048-2048-10 with as many steps"}  # fmt: skip
    return "100 permutations of MNIST, no task told in testing", ours, beside(rows, names)


def nothing_known(read: Read) -> Line | None:
    """Nobody says when a task ends."""
    rows = read("e3")
    if "keep" not in rows:
        return None
    counts = sorted({run["quality"]["contexts"] for run in rows["keep"]})
    found = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return ("the same, and nothing told in training", f"{percent(rows['keep'], 'acc')}, {found} contexts found",
            f"told: {percent(read('e2').get('keep', ()), 'acc')}")  # fmt: skip


def released(read: Read) -> Line | None:
    """Room for a hundred contexts and eight hundred tasks."""
    rows = read("e7")
    if "keep" not in rows:
        return None
    room = rows["keep"][0]["settings"]["capacity"]
    ages = [run["quality"]["by_age"] for run in rows["keep"]]
    young, old = ([100 * fmean(one[part]) for one in ages] for part in (slice(0, room), slice(room, None)))
    ours = f"the last {room}: {plus_minus(interval(young))}; those before: {plus_minus(interval(old))}"
    return f"{len(ages[0])} permutations with room for {room}", ours, "released contexts are gone, whole"


def old_age(read: Read) -> Line | None:
    """Does a network grow old?"""
    curves: dict[str, list[list[float]]] = {}
    for runs in read("e5").values():
        curves |= runs[0]["quality"]["online"]
    name = "set + recycling"
    if name not in curves:
        return None
    others = ["continual backprop", "dense", "redo", "l2 init", "fresh"]
    change = [fmean(late(one)) - fmean(early(one)) for one in curves[name]]
    ours = f"{name}, half of the connections: {last(curves[name])}, since the second tenth " \
           f"{100 * fmean(change):+.2f}"  # fmt: skip
    rest = "; ".join(f"{other} {last(curves[other])}" for other in others if other in curves)
    return f"{len(curves[name][0])} permutations of 10,000 rows, one pass, last tenth", ours, rest


def early(curve: Sequence[float]) -> Sequence[float]:
    """The second tenth."""
    tenth = max(1, len(curve) // LATE)
    return curve[tenth : 2 * tenth] or curve


def late(curve: Sequence[float]) -> Sequence[float]:
    """The last tenth."""
    return curve[-max(1, len(curve) // LATE) :]


def last(curves: Sequence[Sequence[float]]) -> str:
    """Accuracy in the last tenth, over seeds."""
    return plus_minus(interval([100 * fmean(late(curve)) for curve in curves]))


def classes(read: Read) -> Line | None:
    """New digits without a stored image."""
    rows, name = read("e8"), "readout 500, filters"
    if name not in rows:
        return None
    ours = f"readout in closed form: {percent(rows[name], 'acc')} with {mean(rows[name], 'bytes')} bytes of sums"
    more = f"with {mean(rows['er 20000'], 'bytes')}" if "er 20000" in rows else ""
    names = {"er 640": "replay with as many bytes", "er 20000": more, "ewc": "EWC", "lwf": "LwF",
             "joint": "joint training"}  # fmt: skip
    return "new digits, two at a time, no image kept", ours, beside(rows, names)


def rotations(read: Read) -> Line | None:
    """Contexts that are alike."""
    return against_replay(read("e9"), "keep + reuse", "20 rotations: tasks that are alike", "contexts")


def natural(read: Read) -> Line | None:
    """Pairs of natural classes."""
    return against_replay(read("e9-cifar10"), "readout 2000, learned", "CIFAR-10, two new classes at a time", "readout")


def against_replay(rows: Rows, name: str, question: str, called: str) -> Line | None:
    """One of our models beside the usual ones."""
    if name not in rows:
        return None
    names = {"er 2000": "replay of 2,000 rows", "der++ 200": "DER++ 200", "ewc": "EWC", "joint": "joint training"}
    return question, f"{called}: {percent(rows[name], 'acc')}", beside(rows, names)


def both(runs: Sequence[Run]) -> str:
    """Accuracy over all cells, and over types."""
    return f"{percent(runs, 'pooled')} of cells, {percent(runs, 'balanced')} balanced"


def cell_types(read: Read) -> Line | None:
    """Cell types one after the other."""
    rows, name = read("e10"), "balanced readout"
    if name not in rows:
        return None
    names = {"joint": "joint training", "er 200": "replay of 200 cells"}
    rest = "; ".join(f"{said} {both(rows[of])}" for of, said in names.items() if of in rows)
    return "cell types of PBMC 3k, two at a time, no cell kept", f"balanced readout: {both(rows[name])}", rest


def laboratories(read: Read) -> Line | None:
    """A second laboratory."""
    rows, name = read("e10-shared-genes"), "readout"
    if name not in rows:
        return None
    names = {"naive": "plain training", "er 200": "replay of 200 cells", "joint": "joint training"}
    ours = f"readout on shared genes: {percent(rows[name], 'pooled')} of cells"
    return "PBMC 3k, then a second laboratory, tested on both", ours, beside(rows, names, "pooled")


QUESTIONS = (hundred, nothing_known, released, old_age, classes, rotations, natural, cell_types, laboratories)
