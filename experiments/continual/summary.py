"""The results that docs/continual.md begins with: each question, what our method reaches, and what stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import markdown
from dynamicgate.lab.statistics import interval
from experiments.continual.ages import early, late
from experiments.continual.shown import Rows, kept, mean, percent, plus_minus, relative, with_prototypes

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
           f"{with_prototypes(keep)} non-zero weights with prototypes, " \
           f"{relative(keep, 'relative_to_usual')} of the MACs of 784-2048-2048-10"  # fmt: skip
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
    told = f"told: {percent(read('e2').get('keep', ()), 'acc')}"
    horizon = rows["keep"][0]["settings"]["horizon"]
    ours = f"{percent(rows['keep'], 'acc')}, {found} contexts found, each learned for {horizon:,} steps"
    others = {name: f"{int(name.removeprefix('horizon ')):,} steps" for name in rows if name.startswith("horizon ")}
    sweep = beside(rows, others)
    return "the same, and nothing told in training", ours, "; ".join(part for part in (told, sweep) if part)


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
    for runs in (*read("e5").values(), *read("e5-decay").values()):
        curves |= runs[0]["quality"]["online"]  # what e5-decay has again is tuned further
    name = "set + recycling"
    if name not in curves:
        return None
    others = ["continual backprop", "dense", "redo", "l2", "l2 init", "static + l2", "fresh"]
    parts = []
    for mine in (one for one in (name, "set + l2") if one in curves):
        change = [fmean(late(one)) - fmean(early(one)) for one in curves[mine]]
        parts.append(f"{mine} {last(curves[mine])}, since the second tenth {100 * fmean(change):+.2f}")
    ours = f"half of the connections: {'; '.join(parts)}"
    rest = "; ".join(f"{other} {last(curves[other])}" for other in others if other in curves)
    return f"{len(curves[name][0])} permutations of 10,000 rows, one pass, last tenth", ours, rest


def longer(read: Read) -> Line | None:
    """More rows a task, and wider networks."""
    parts = {"width 100": read("e6").get("width 100"), "2,000": read("e6-wide").get("width 2,000")}
    ours, rest, name = [], [], "set + recycling"
    for width, runs in parts.items():
        curves = runs[0]["quality"]["online"] if runs else {}
        if name in curves:
            ours.append(f"{width}: {last(curves[name])}")
            rest.append(f"{width}: " + ", ".join(f"{m} {last(c)}" for m, c in curves.items() if m != name))
    question = "permutations of 60,000 rows, 200 in width 100 and 50 in width 2,000, last tenth"
    return (question, f"{name}, half of the connections, {'; '.join(ours)}", "; ".join(rest)) if ours else None


def last(curves: Sequence[Sequence[float]]) -> str:
    """Accuracy in the last tenth, over seeds."""
    return plus_minus(interval([100 * fmean(late(curve)) for curve in curves]))


def classes(read: Read) -> Line | None:
    """New digits without a stored image."""
    rows, sizes = read("e8"), {"2": "500", "8": "1000", "32": "2000"}
    if "readout 500, filters" not in rows:
        return None
    names = {f"readout {units}, filters": size for size, units in sizes.items()}
    ours = "readout in closed form, " + "; ".join(
        f"{percent(rows[name], 'acc')} with {mean(rows[name], 'bytes')} bytes of sums" for name in names if name in rows
    )
    replays = {f"er, {size} MB": f"replay with {size} MB of bytes" for size in sizes}
    if not any(name in rows for name in replays):  # runs that were stored with four bytes a pixel
        sized = {name: mean(rows[name], "bytes") for name in ("er 640", "er 2530", "er 20000") if name in rows}
        replays = {name: f"replay with {size} bytes, four a pixel," for name, size in sized.items()}
    names = {**replays, "ewc": "EWC", "lwf": "LwF", "joint": "joint training"}
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
    names = {"er, 32 MB": "replay with as many bytes", "er 2000": "replay of 2,000 rows", "der++ 200": "DER++ 200",
             "ewc": "EWC", "joint": "joint training"}  # fmt: skip
    ours = f"{called}: {percent(rows[name], 'acc')}, {mean(rows[name], 'bytes')} bytes kept"
    return question, ours, beside(rows, names)


OURS = ("chosen readout", "readout", "balanced readout", "nearest mean", "keep")
OTHERS = {"joint": "joint training", "er 200": "replay of 200 cells", "er 50": "of 50", "naive": "plain training"}


def both(runs: Sequence[Run]) -> str:
    """Accuracy over all cells, and over types, and what is kept."""
    room = kept(runs) + (" kept" if kept(runs) == "all rows" else " bytes")
    return f"{percent(runs, 'pooled')} of cells, {percent(runs, 'balanced')} balanced, {room}"


def of_cells(rows: Rows, question: str) -> Line | None:
    """All of ours, also those that lose, and all others."""
    ours = "; ".join(f"{name}: {both(rows[name])}" for name in OURS if name in rows)
    rest = "; ".join(f"{said}: {both(rows[name])}" for name, said in OTHERS.items() if name in rows)
    return (question, ours, rest) if ours else None


def cell_types(read: Read) -> Line | None:
    """Cell types one after the other."""
    return of_cells(read("e10"), "cell types of PBMC 3k, two at a time")


def laboratories(read: Read) -> Line | None:
    """A second laboratory, on genes of the first."""
    return of_cells(read("e10-laboratories"), "PBMC 3k, then a second laboratory, tested on both; genes of the first")


def shared_genes(read: Read) -> Line | None:
    """The same on shared genes."""
    return of_cells(read("e10-shared-genes"), "the same, on the genes that both have")


QUESTIONS = (hundred, nothing_known, released, old_age, longer, classes, rotations, natural, cell_types, laboratories,
             shared_genes)  # fmt: skip
