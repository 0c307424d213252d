"""The top of the page: its title, and where the numbers come from."""

from typing import Any

from dynamicgate.lab.report.number_format import counted, date
from dynamicgate.lab.report.reading import Results, part
from dynamicgate.lab.report.summary import data_names, number

MOST_NAMES = 3


def heading(results: Results) -> dict[str, Any]:
    """The title and where the numbers come from; what is unknown is left out."""
    meta = part(results, "meta")
    data, machine = part(meta, "data"), part(meta, "machine")
    budget = number(meta.get("budget"))
    sizes = [
        f"{data[key]:,} {word}"
        for key, word in (("train", "train"), ("valid", "validation"), ("test", "test"))
        if isinstance(data.get(key), int)
    ]
    shape = [counted(data[key], noun) for key, noun in (("features", "feature"),) if isinstance(data.get(key), int)]
    if isinstance(data.get("classes"), int):
        shape.append(f"{data['classes']:,} classes")
    majority = number(data.get("majority"))
    place = [str(machine[key]) for key in ("system", "arch") if machine.get(key)]
    place += [
        counted(machine[key], noun)
        for key, noun in (("cores", "core"), ("threads", "thread"))
        if isinstance(machine.get(key), int)
    ]
    training = [counted(meta["epochs"], "epoch")] if isinstance(meta.get("epochs"), int) else []
    if isinstance(meta.get("hidden"), list):
        training.append("hidden " + " – ".join(str(width) for width in meta["hidden"]))
    if isinstance(meta.get("seeds"), list):
        training.append("seeds " + ", ".join(str(seed) for seed in meta["seeds"]))
    facts = [
        ("budget asked", f"{budget:.2f} of the dense MACs" if budget is not None else ""),
        ("samples", ", ".join(sizes)),
        ("task", ", ".join(shape)),
        ("majority class", f"{majority * 100:.2f} %" if majority is not None else ""),
        ("training", ", ".join(training)),
        ("machine", ", ".join(place)),
        ("versions", ", ".join(f"{name} {version}" for name, version in part(meta, "versions").items())),
        ("commit", str(meta.get("commit") or "")),
        ("made", date(meta["created"]) if meta.get("created") else ""),
    ]
    names = data_names(results)
    if len(names) > MOST_NAMES:
        names = [*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more"]
    return {
        "title": ", ".join(names) + (f" at a budget of {budget:.2f}" if budget is not None else ""),
        "facts": [(name, value) for name, value in facts if value],
        "command": str(meta.get("command") or ""),
    }
