"""Numbers in hand-written pages, and what each of them rests on.

A number that states a result must occur in a result file that its page names, or in a block of the same page that is
made from results. What cannot be looked up like that is listed here: numbers that follow from results, with the
calculation, and numbers that are no results, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dynamicgate.lab.result_file import read_runs
from tests.places import ROOT

NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r"%|points?\b|times\b|x\b|µs\b|ms\b|of\s+the\s+(?:dense\s+)?MACs"
STATEMENT = re.compile(
    rf"(?<![\w.,/±]){NUMBER}(?:\s+(?:to|and|or)\s+{NUMBER})?\s*(?:{UNIT})"  # with a unit
    rf"|(?<![\w.,/]){NUMBER}\s±\s{NUMBER}"
    r"|(?<![\w.,/])\d\d\.\d\d(?![\d.])"  # an accuracy, in percent
)
BLOCK = re.compile(r"<!-- results:(\S+) -->.*?<!-- /results:\1 -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FILE = re.compile(r"(?:experiments|benchmarks)/results/[\w./-]+\.jsonl?")
GENERATED = "do not edit"
DIGITS = 3  # significant ones: a shorter number is found in any large file by chance


class Statement(NamedTuple):
    """A number with its unit, as a page has it."""

    page: str
    text: str

    @property
    def numbers(self) -> list[str]:
        """Its numbers as they are written."""
        return [found.replace(",", "") for found in re.findall(NUMBER, self.text)]


def pages() -> list[Path]:
    """The README, the changelog, the documentation, the protocols of experiments and the pages beside the code."""
    folders = ("docs", "experiments", "src")
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *(p for f in folders for p in sorted((ROOT / f).rglob("*.md")))]


def statements(text: str, page: str) -> Iterator[Statement]:
    """The statements of a page outside code and generated blocks; none of a generated page."""
    if GENERATED in text:
        return
    for found in STATEMENT.finditer(CODE.sub("", BLOCK.sub("", text))):
        yield Statement(page, " ".join(found[0].split()))


def generated_blocks(text: str) -> str:
    """What is made from results on a page, which other tests compare with them."""
    return "\n".join(found[0] for found in BLOCK.finditer(text))


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers of a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@cache
def stored(name: str) -> list[float]:
    """All numbers of a result file."""
    path = ROOT / name
    return list(numbers_in(read_runs(path) if path.suffix == ".jsonl" else json.loads(path.read_text("utf-8"))))


def is_found(statement: Statement, text: str) -> bool:
    """Whether all its numbers are in what is made from results on its page, or in result files that the page names."""
    made = generated_blocks(text)
    if "±" in statement.text and statement.text in made:
        return True
    files = [name for name in set(FILE.findall(text)) if (ROOT / name).is_file()]
    return all(_is_stored(number, made, files) for number in statement.numbers)


def _is_stored(number: str, made: str, files: list[str]) -> bool:
    if len(number.replace(".", "").lstrip("0")) < DIGITS:
        return False
    if re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", made):
        return True
    decimals = len(number.partition(".")[2])
    return any(
        f"{scale * value:.{decimals}f}" == number for name in files for value in stored(name) for scale in (1, 100)
    )


def _json(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def _kernel_training(key: str, *kernels: str) -> list[float]:
    rows = {row["kernels"]: row[key] for row in _json("experiments/results/kernel-training.json")["meta"]["summary"]}
    return sorted(rows[name] for name in kernels)


def _loss(kernels: str) -> list[float]:
    return [*_kernel_training("final", kernels), *_kernel_training("std", kernels)]


def _sparsifier(network: str) -> dict[str, Any]:
    return _json("benchmarks/results/sparsifier_step.json")["networks"][network]


def _updates() -> list[float]:
    found = _json("benchmarks/results/sparsifier_step.json")["networks"].values()
    return [100 * fmean(one["rigl"]["ratio"] - one["static-sparse"]["ratio"] for one in found)]


def _over_fixed_mask() -> list[float]:
    accuracy: dict[str, list[float]] = {}
    for run in read_runs(ROOT / "experiments" / "results" / "sparse-mnist" / "density.jsonl"):
        accuracy.setdefault(run["model"], []).append(100 * run["quality"]["accuracy"])
    return [fmean([*accuracy["rigl"], *accuracy["set"]]) - fmean(accuracy["static-sparse"])]


def _missing_connections() -> list[float]:
    runs = read_runs(ROOT / "experiments" / "results" / "sparse-mnist" / "budget.jsonl")
    return [fmean(run["macs"]["structure_saved"] for run in runs if run["model"] == "gate+rigl")]


def _cifar10(model: str, epochs: int, dropout: float | None = None) -> dict[str, Any]:
    runs = _json("experiments/results/sparse-cifar10.json")["runs"]
    asked = [run for run in runs if (run["model"], run["settings"]["epochs"]) == (model, epochs)]
    return next(run for run in asked if dropout in (None, run["settings"]["dropout"]))


def _explored(model: str) -> list[float]:
    return [100 * _cifar10(model, 650)["sparsity"]["layers.0"]["explored"]]


def _without_dropout() -> list[float]:
    return [100 * _cifar10(model, 400, 0.0)["valid"]["accuracy"] for model in ("rigl", "set")]


def _lost(text: str, dense: str) -> list[float]:
    """What SmolLM2 with thresholds on factors loses in perplexity, in percent."""
    runs = {run["model"]: run for run in _runs("experiments/results/conversion/smollm2-own-text.jsonl")}
    kept, whole = (
        runs[model]["quality"]["test"][text]["perplexity"]
        for model in ("magnitude 50 %, more steps", f"dense + same tokens{dense}")
    )
    return [100.0 * (kept / whole - 1.0)]


@cache
def _runs(name: str) -> list[Mapping[str, Any]]:
    return read_runs(ROOT / name)


FOLLOWS: dict[Statement, Callable[[], list[float]]] = {
    **{
        Statement(page, said): lambda text=text, dense=dense: _lost(text, dense)  # type: ignore[misc]
        for page, said, text, dense in (
            ("CHANGELOG.md", "2.4 %", "books", ""),
            ("CHANGELOG.md", "3.5 %", "python", ""),
            ("CHANGELOG.md", "9.7 %", "wikitext-2-plain", ""),
            ("docs/language-models.md", "2.4 %", "books", ""),
            ("docs/language-models.md", "3.5 %", "python", ""),
            ("docs/language-models.md", "9.7 %", "wikitext-2-plain", ""),
            ("docs/language-models.md", "4.3 %", "books", ", more steps"),
            ("docs/language-models.md", "4.0 %", "python", ", more steps"),
            ("docs/language-models.md", "7.7 %", "wikitext-2-plain", ", more steps"),
        )
    },
    Statement("docs/gpu.md", "26 ms"): lambda: _kernel_training("step_ms", "never"),
    Statement("docs/gpu.md", "32 to 33 ms"): lambda: _kernel_training("step_ms", "exact", "sparse"),
    Statement("docs/gpu.md", "2.311 ± 0.006"): lambda: _loss("never"),
    Statement("docs/gpu.md", "2.311 ± 0.007"): lambda: _loss("exact"),
    Statement("docs/gpu.md", "2.314 ± 0.007"): lambda: _loss("sparse"),
    Statement("docs/sparsity.md", "2.0 ms"): lambda: [_sparsifier("784-256-10")["dense_ms"]],
    Statement("docs/sparsity.md", "4.6 %"): _updates,
    Statement("docs/sparsity.md", "0.1 ms"): lambda: [
        _sparsifier("784-256-10")["dense_ms"] * (_sparsifier("784-256-10")["static-sparse"]["ratio"] - 1)
    ],
    Statement("docs/sparsity.md", "0.4 points"): _over_fixed_mask,
    Statement("docs/sparsity.md", "0.869 of the dense MACs"): _missing_connections,
    Statement("docs/sparsity.md", "8 %"): lambda: _explored("rigl"),
    Statement("docs/sparsity.md", "42 %"): lambda: _explored("set"),
    Statement("docs/sparsity.md", "61 and 65 %"): _without_dropout,
    Statement("docs/sparsity.md", "2 %"): lambda: [
        100 * 405_760 / (_cifar10("set", 650)["macs"]["dense"] - 4000 * 10)  # without the output layer
    ],
}
"""Statements that follow from results, and their numbers."""

SETTING, MADE, ELSEWHERE = "a setting or a definition", "arithmetic on sizes alone", "published by others"
NO_RESULT: dict[str, dict[str, str]] = {
    "README.md": {"95 %": SETTING},
    "CHANGELOG.md": {"100 %": SETTING},
    "experiments/frontier/protocol.md": dict.fromkeys(
        ("1.25 times", "0.1 and 1.5 times", "5 %", "25 %", "95 %", "3 %"), SETTING
    ),
    "src/dynamicgate/ops/chain/README.md": {"93 %": SETTING},
    "src/dynamicgate/ops/ffn/README.md": {"1 %": SETTING, "10 ms": SETTING, "80 %": "a target"},
    "docs/budget.md": dict.fromkeys(("15 %", "5 %", "10 %"), SETTING),
    "docs/cli.md": dict.fromkeys(("0.75 and 1 times", "1 and 2.5 times", "20 %", "15 %"), SETTING),
    "docs/compile.md": dict.fromkeys(("3 %", "2 %"), SETTING),
    "docs/data.md": {"20 %": SETTING, "10x": "a name", "25 ms": SETTING, "20 ms": SETTING, "60 %": ELSEWHERE},
    "docs/gpu.md": {"5 %": SETTING},
    "docs/language-models.md": {"16 x": "a name"},
    "docs/measurement.md": {"5 %": SETTING},
    "docs/paper-code.md": {"30 %": ELSEWHERE, "5.75 %": MADE},
    "docs/training.md": {"0.01 of the dense MACs": SETTING},
    "docs/sparsity.md": {
        "5 %": SETTING, "74.84 %": ELSEWHERE, "1,000, and 10 %": SETTING, "30 %": SETTING,
        "32 times": MADE,
    },
}  # fmt: skip
"""By page the statements that are no results of ours, and why."""
