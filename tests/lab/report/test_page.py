"""The page: its sections, its escaping, and that it is written from whatever the results have, without torch."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dynamicgate.lab.report
from dynamicgate.lab.report import render_table, write_report
from dynamicgate.lab.report.reading import SAMPLES_FILE, SPARSITY_KEY, Results, Run
from tests.lab.report.sample_results import (
    ALL_MODELS,
    make_results,
    make_sample,
    make_sample_stats,
    with_savings,
    write_sample,
    write_timings,
)

VOID = {"meta", "br", "link", "img", "hr", "input"}
OPTIONAL = ("proxies", "layers", "budget", "folder", "samples", "gates", "notes")
SCRIPTS = 2  # sorting, hovering
HOSTILE = "</script><script>alert('x')</script><b>\"&"


class Outline(HTMLParser):
    """Collects tags and text, and checks that elements are closed in the order they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.stack: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] not in ("style", "script"):
            self.text.append(data.replace("\u00a0", " "))


def page_of(folder: Path, results: Results) -> str:
    return write_report(write_sample(folder, results)).read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_has_every_section(tmp_path: Path) -> None:
    outline = Outline(page_of(tmp_path, make_results()))
    text = re.sub(r"\s+", " ", " ".join(outline.text))
    for heading in (
        "Quality and cost",
        "Accuracy against executed MACs",
        "Budget and MACs reached",
        "Gates over training",
        "Which units open for which class",
        "Cost of single samples",
        "Easy and hard inputs",
        "Does it depend on the input?",
        "Layer by layer",
        "The paper's proxies",
        "How to read this page",
    ):
        assert heading in text
    assert "dynamicgate demo --budget 0.3 --seeds 5" in text
    assert "1a2b3c4d5e6f" in text
    assert "2025-11-15 02:10 UTC" in text
    assert "torch 2.13.0" in text


def test_a_page_of_sparse_models_shows_exploration_savings_and_notes(tmp_path: Path) -> None:
    results = make_results(ALL_MODELS, 2)
    note = "layers.0: density x open rates would claim 5 MACs, the masked and gated layer executes 8"
    results["runs"] = [
        with_savings(run, 0.5, (note,) if run["model"] == "gate+rigl" and run["seed"] else ())
        for run in results["runs"]
    ]
    outline = Outline(page_of(tmp_path, results))
    text = " ".join(outline.text)
    assert "Dynamic sparse training: prune and regrow" in text
    assert "sparsity saves, %" in text
    assert "gates save, %" in text
    assert text.count(note) == 1
    assert "1 of 2 runs have notes; those of seed 1:" in text
    labels = [value for key, value in outline.attributes if key == "aria-label"]
    explored = [label for label in labels if label.startswith("Weights explored")]
    assert [label.rpartition(" ")[2] for label in explored] == ["rigl", "set", "gate+rigl"]


def test_a_page_without_sparse_models_has_no_section_about_them(tmp_path: Path) -> None:
    text = " ".join(Outline(page_of(tmp_path, make_results())).text)
    for absent in ("Dynamic sparse training", "sparsity saves", "Sparsity saves", "have notes"):
        assert absent not in text


def test_results_without_savings_make_a_page_without_these_columns(tmp_path: Path) -> None:
    results = make_results()
    assert "structure_saved" not in str(results)
    assert "parsity saves" not in page_of(tmp_path, results)


def test_every_model_in_the_table_is_described_and_every_control_is_marked(tmp_path: Path) -> None:
    text = re.sub(r"\s+", " ", " ".join(Outline(page_of(tmp_path, make_results(ALL_MODELS, 1))).text))
    described = text[text.index("What the models are") : text.rindex("Accuracy against executed MACs")]
    assert all(f" {name} " in described for name in ALL_MODELS)
    assert described.count("control") == len(ALL_MODELS) - 2


def test_models_that_are_not_in_the_table_are_not_described(tmp_path: Path) -> None:
    results = make_results(("dense",), 1)
    results["runs"][0]["model"] = "mine"
    assert "What the models are" not in page_of(tmp_path, results)


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_results())
    assert not re.search(r"""(src|href|url\(|@import)\s*=?\s*["']?\s*(https?:)?//""", page)
    outline = Outline(page)
    assert not {"link", "iframe", "object", "embed"} & set(outline.tags)
    pictures = [value for key, value in outline.attributes if key == "src"]
    assert len(pictures) == outline.tags.count("img") > 0
    assert all(value.startswith("data:image/png;base64,") for value in pictures)
    assert "default-src 'none'" in page


def test_hostile_names_are_shown_and_never_run(tmp_path: Path) -> None:
    results = make_results(("dense", "gate"), 2)
    for run in results["runs"]:
        run["notes"] = [HOSTILE]
        run["model"] = run["model"] + HOSTILE
        run["data"] = HOSTILE
        for layer in run["layers"] + run["gates"]:
            layer["name"] = HOSTILE
    results["meta"].update(command=HOSTILE, commit=HOSTILE, created=HOSTILE)
    page = page_of(tmp_path, results)
    assert HOSTILE not in page
    assert '<b>"' not in page
    outline = Outline(page)
    assert outline.tags.count("script") == SCRIPTS
    assert ("gate" + HOSTILE) in "".join(outline.text)


def test_hostile_names_in_a_log_are_escaped_too(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, make_results(("gate",), 1))
    layers = {HOSTILE: {"explored": 0.5, "churn": 0.1}}
    entries = [{"step": step, "sites": {HOSTILE: {"g": 0.5}}, SPARSITY_KEY: layers} for step in range(3)]
    (folder / "runs/gate-s0-1a2b3c4d/log.jsonl").write_text("\n".join(map(json.dumps, entries)))
    assert Outline(write_report(folder).read_text(encoding="utf-8")).tags.count("script") == SCRIPTS


def test_hostile_names_in_the_sample_statistics_are_escaped_too(tmp_path: Path) -> None:
    results = make_results(("gate",), 1)
    folder = write_sample(tmp_path, results)
    (run,) = results["runs"]
    hostile = make_sample(run, 0, 0.3, features=[[HOSTILE, 0.5, 1.0]]) | {"row": HOSTILE, "picture": HOSTILE}
    stats = make_sample_stats(run) | {"classes": [HOSTILE] * 10, "easiest": [hostile]}
    (folder / run["folder"] / SAMPLES_FILE).write_text(json.dumps(stats))
    page = write_report(folder).read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert Outline(page).tags.count("script") == SCRIPTS


@pytest.mark.parametrize("stats", ["", "[]", "{}", '{"macs": 3, "easiest": [4], "classes": {}}'])
def test_a_page_without_sample_statistics_has_no_section_about_samples(tmp_path: Path, stats: str) -> None:
    folder = write_sample(tmp_path, make_results(seeds=1))
    for path in folder.glob(f"runs/*/{SAMPLES_FILE}"):
        path.write_text(stats)
    text = " ".join(Outline(write_report(folder).read_text(encoding="utf-8")).text)
    assert "Cost of single samples" not in text
    assert "Easy and hard inputs" not in text


def test_many_verdicts_are_grouped_first(tmp_path: Path) -> None:
    text = re.sub(r"\s+", " ", " ".join(Outline(page_of(tmp_path, make_results(ALL_MODELS, 3))).text))
    assert "Each comparison" in text
    few = " ".join(Outline(page_of(tmp_path, make_results(seeds=3))).text)
    assert "Each comparison" not in few


@pytest.mark.parametrize("absent", OPTIONAL)
def test_a_page_is_written_without_any_one_optional_key(tmp_path: Path, absent: str) -> None:
    results = make_results(seeds=2)
    for run in results["runs"]:
        run.pop(absent, None)
    Outline(page_of(tmp_path, results))


def test_a_page_is_written_from_required_keys_alone(tmp_path: Path) -> None:
    runs: list[Run] = [
        {"model": model, "seed": 0, "data": "d", "quality": {}, "macs": {}, "params": None, "seconds": None}
        for model in ("gate", "dense")
    ]
    page = page_of(tmp_path, {"runs": runs})
    Outline(page)
    assert "unknown accuracy" in page


def test_a_page_is_written_from_nulls_and_diverged_numbers(tmp_path: Path) -> None:
    results = make_results(("gate", "dense"), 2)
    for run in results["runs"]:
        run.update(dict.fromkeys(OPTIONAL, None))
        run["quality"] = {"accuracy": float("nan"), "macro_f1": None}
        run["macs"] = {"relative": float("inf"), "executed": "many"}
    results["meta"] = None
    page = page_of(tmp_path, results)
    Outline(page)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))


def test_several_datasets_share_one_page(tmp_path: Path) -> None:
    results = make_results(("dense", "gate"), 2)
    results["runs"] += make_results(("dense", "gate"), 2, "mnist")["runs"]
    page = page_of(tmp_path, results)
    assert "Accuracy against MACs, digits" in page
    assert "Accuracy against MACs, mnist" in page


def test_every_figure_has_a_name_and_every_run_a_tooltip(tmp_path: Path) -> None:
    results = make_results()
    page = page_of(tmp_path, results)
    named = re.findall(r'role="img" aria-label="[^"]+"', page)
    assert page.count("<svg") - page.count('class="swatch"') == len(named) >= 7
    for run in results["runs"]:
        assert f"<title>{run['model']}, seed {run['seed']}: " in page


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    assert page_of(tmp_path / "one", make_results()) == page_of(tmp_path / "two", make_results())


def test_a_failed_write_leaves_the_old_page_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sample(tmp_path, make_results(("dense",), 1))
    (folder / "report.html").write_text("old")

    def fail(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent
        assert Path(source).read_text(encoding="utf-8").rstrip().endswith("</html>")
        raise OSError("disk gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "results.json", "runs"]


def test_a_written_page_leaves_no_temporary_file(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, make_results(("dense",), 1))
    assert write_report(folder) == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "results.json", "runs"]


def test_without_jinja2_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_sample(tmp_path, make_results(("dense",), 1))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[report\]'"):
        write_report(folder)


def test_the_report_imports_the_standard_library_its_own_files_and_jinja2_only() -> None:
    own = ("dynamicgate.lab.report", "dynamicgate.lab.result_file", "dynamicgate.lab.statistics", "dynamicgate.files")
    allowed = set(sys.stdlib_module_names) | {"jinja2"}
    for path in Path(dynamicgate.lab.report.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed, path.name
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert node.level == 0, f"{path.name}: imports are absolute"
                assert module.split(".")[0] in allowed or module.startswith(own), f"{path.name}: {module}"
        outermost = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert "jinja2" not in " ".join(ast.unparse(node) for node in outermost), path.name


WITHOUT_TORCH = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "safetensors"):
            raise ModuleNotFoundError(f"no module {name}: it is not installed here", name=name)


sys.meta_path.insert(0, Absent())
import dynamicgate.lab.report as report

folder = sys.argv[1]
print(report.write_report(folder))
print(report.render_table(report.read_results(folder)))
core = sorted(name for name in sys.modules if name.startswith("dynamicgate"))
others = [name.removeprefix("dynamicgate") for name in core if not name.startswith("dynamicgate.lab.report")]
assert others == ["", "._version", ".files", ".lab", ".lab.result_file", ".lab.statistics"], others
"""


def test_a_report_is_written_where_torch_numpy_and_safetensors_are_not_installed(tmp_path: Path) -> None:
    results = make_results(ALL_MODELS, 2)
    folder = write_timings(write_sample(tmp_path, results), results)
    page = write_report(folder).read_bytes()
    (folder / "report.html").unlink()
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'report.html'}\n{render_table(results)}\n"
    assert (folder / "report.html").read_bytes() == page


def test_half_a_surrogate_pair_in_a_name_does_not_stop_the_page(tmp_path: Path) -> None:
    results = make_results(("dense",), 1)
    results["meta"]["command"] = "cut\ud83d"
    assert "<span>cut?</span>" in page_of(tmp_path, results)
