"""The top of the page: its title, and where the numbers come from."""

from typing import Any

from dynamicgate.lab.report.number_format import counted, format_date
from dynamicgate.lab.report.reading import Results, get_object
from dynamicgate.lab.report.run_metrics import number
from dynamicgate.lab.report.summary import dataset_names

MAX_DATASETS = 3


def header_content(results: Results) -> dict[str, Any]:
    """The title, facts about dataset, training and machine, and the command; what is unknown is left out."""
    meta = get_object(results, "meta")
    dataset = get_object(meta, "data")
    budget, majority = number(meta.get("budget")), number(dataset.get("majority"))
    versions = get_object(meta, "versions")
    facts = {
        "budget": f"{budget:.2f} of the dense MACs" if budget is not None else "",
        "samples": sample_counts(dataset),
        "task": task_size(dataset),
        "most frequent class": f"{majority * 100:.2f} % of the samples" if majority is not None else "",
        "training": training_facts(meta),
        "machine": machine_facts(get_object(meta, "machine")),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": str(meta.get("commit") or ""),
        "created": format_date(meta["created"]) if meta.get("created") else "",
    }
    names = dataset_names(results)
    if len(names) > MAX_DATASETS:
        names = [*names[:MAX_DATASETS], f"and {len(names) - MAX_DATASETS} more"]
    return {
        "title": ", ".join(names) + (f" at a budget of {budget:.2f}" if budget is not None else ""),
        "facts": [(name, value) for name, value in facts.items() if value],
        "command": str(meta.get("command") or ""),
    }


def sample_counts(dataset: dict[str, Any]) -> str:
    """How many samples each part of the dataset has."""
    names = {"train": "training", "valid": "validation", "test": "test"}
    return ", ".join(f"{dataset[key]:,} {name}" for key, name in names.items() if isinstance(dataset.get(key), int))


def task_size(dataset: dict[str, Any]) -> str:
    """How many features and classes there are."""
    found = [counted(dataset["features"], "feature")] if isinstance(dataset.get("features"), int) else []
    if isinstance(dataset.get("classes"), int):
        found.append(f"{dataset['classes']:,} classes")
    return ", ".join(found)


def training_facts(meta: dict[str, Any]) -> str:
    """Epochs, hidden widths and seeds."""
    found = [counted(meta["epochs"], "epoch")] if isinstance(meta.get("epochs"), int) else []
    if isinstance(meta.get("hidden"), list):
        found.append("hidden widths " + " – ".join(str(width) for width in meta["hidden"]))
    if isinstance(meta.get("seeds"), list):
        found.append("seeds " + ", ".join(str(seed) for seed in meta["seeds"]))
    return ", ".join(found)


def machine_facts(machine: dict[str, Any]) -> str:
    """System, architecture, cores and threads."""
    found = [str(machine[key]) for key in ("system", "arch") if machine.get(key)]
    nouns = {"cores": "core", "threads": "thread"}
    found += [counted(machine[key], noun) for key, noun in nouns.items() if isinstance(machine.get(key), int)]
    return ", ".join(found)
