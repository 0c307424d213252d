"""Every method and stream of `dynamicgate continual`, end to end, interrupted, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.continual import reading_out
from dynamicgate.continual.walk import Walk
from dynamicgate.files import read_json
from dynamicgate.lab.cli import main
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.methods.stream_methods import METHODS
from dynamicgate.lab.methods.stream_runs import run_stream
from dynamicgate.lab.methods.streams import scaled, scaled_by_first, stream_of

SMALL = ("--epochs", "2", "--batch", "20", "--hidden", "16", "--width", "16", "--features", "40", "--rows", "200",
         "--device", "cpu")  # fmt: skip
NEW = ("separate", "readout", "balanced-readout", "l2", "l2-init", "shrink-perturb", "redo", "cbp", "set", "set-l2")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as a table; the scribes took turns, so that the first, second and third part of the rows differ."""
    pd = pytest.importorskip("pandas")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    frame = pd.DataFrame(x, columns=[f"pixel {n}" for n in range(64)])
    frame["digit"] = y
    frame["scribe"] = np.array(["c", "a", "b"])[3 * np.arange(len(y)) // len(y)]
    path = tmp_path_factory.mktemp("table") / "digits.csv"
    frame.to_csv(path, index=False)
    return path


def runs_in(folder: Path) -> dict[str, Any]:
    return {run["model"]: run for run in read_json(folder / "results.json")["runs"]}


def test_new_methods_run_and_say_what_they_know_and_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["continual", "--tasks", "2", *SMALL, "--known", "ids", "--models", ",".join(NEW), "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    head = next(line for line in printed if line.startswith("model"))
    assert head.split()[:2] == ["model", "known"]
    assert "seconds" in head
    assert all("ids" in line.split() for line in printed if line.split()[:1] and line.split()[0] in NEW)
    runs = runs_in(tmp_path)
    assert set(runs) == set(NEW)
    for run in runs.values():
        assert run["told"] == {"scenario": "domain", "known": "ids"}
        assert run["seconds"] > 0.0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<td>ids</td>" in page
    assert "<th>seconds</th>" in page
    assert "which task a row is from" in page
    assert runs["separate"]["quality"]["forgetting"] == 0.0, "the context is told, and its network is kept"
    assert runs["readout"]["quality"]["acc"] > 0.7
    assert runs["set"]["params"] < 0.7 * runs["l2"]["params"]


def test_methods_differ_from_plain_training() -> None:
    asked = {"tasks": 2, "hidden": [24], "epochs": 3, "batch": 20, "lr": 0.01, "rows": 300}
    more = {
        "shrink-perturb": {"learner": {"noise": 0.05}},
        "redo": {"recycler": {"every": 5, "threshold": 0.9}},
        "cbp": {"recycler": {"rate": 0.05, "maturity": 3}},
    }
    stream = stream_of(scaled(load_dataset("digits")), asked, 0)
    plain = run_stream(stream, {**asked, "method": "naive"}, 0, device="cpu")
    for name in ("l2", "l2-init", "shrink-perturb", "redo", "cbp", "set", "set-l2"):
        own = {"learner": {"strength": 0.1}} if name.startswith("l2") else more.get(name, {})
        found = run_stream(stream, {**asked, **own, "method": name}, 0, device="cpu")
        assert found["quality"]["retention"] != plain["quality"]["retention"], name


def test_separate_networks_have_as_many_weights_as_kept_contexts() -> None:
    asked = {
        "tasks": 3,
        "hidden": [16],
        "epochs": 3,
        "batch": 20,
        "lr": 0.01,
        "width": 100,
        "density": 0.2,
        "rows": 400,
    }
    stream = stream_of(scaled(load_dataset("digits")), asked, 0)
    keep, separate = (run_stream(stream, {**asked, "method": m}, 0, device="cpu") for m in ("keep", "separate"))
    assert separate["params"] == pytest.approx(keep["params"], rel=0.1)
    assert separate["quality"]["contexts"] == 3


class _StopError(RuntimeError):
    pass


@pytest.mark.parametrize("name", NEW)
def test_each_goes_on_after_an_interruption(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"tasks": 3, "hidden": [16], "epochs": 1, "batch": 20, "lr": 0.01, "width": 16, "density": 0.4, "rows": 100,
             "features": 30, "method": name}  # fmt: skip
    stream = stream_of(scaled(load_dataset("digits")), asked, 0)
    whole = run_stream(stream, asked, 0, device="cpu")
    left = [7]
    for place, method, cost in ((Walk, "_optimize", 1), (reading_out, "_learn", 4)):
        original = getattr(place, method)

        def counted(*arguments: Any, original: Any = original, cost: int = cost) -> None:
            left[0] -= cost
            if left[0] <= 0:
                raise _StopError
            original(*arguments)

        monkeypatch.setattr(place, method, counted)
    with pytest.raises(_StopError):
        run_stream(stream, asked, 0, device="cpu", folder=tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "last.safetensors").exists()
    found = run_stream(stream, asked, 0, device="cpu", folder=tmp_path)
    assert found["quality"] == whole["quality"]
    assert found["params"] == whole["params"]


def test_a_column_of_a_table_makes_the_tasks(table: Path, tmp_path: Path) -> None:
    words = ["continual", "--data", str(table), "--target", "digit", "--stream", "grouped", "--by", "scribe", *SMALL,
             "--models", "naive,keep,readout", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 0
    runs = runs_in(tmp_path)
    assert all(len(run["quality"]["retention"]["matrix"]) == 3 for run in runs.values())
    assert runs["readout"]["quality"]["acc"] > 0.7, "features are scaled"
    before = (tmp_path / "naive-s0" / "run.json").read_text()
    assert main(words) == 0
    assert (tmp_path / "naive-s0" / "run.json").read_text() == before
    assert main([*words[:5], "--stream", "split", *SMALL, "--models", "naive", "--out", str(tmp_path)]) == 2


def test_groups_are_those_of_the_rows_and_no_feature(table: Path) -> None:
    splits = load_dataset(table, options={"target": "digit", "group": "scribe"})
    plain = load_dataset(table, options={"target": "digit", "drop": "scribe"})
    assert splits.train.features == plain.train.features == 64
    assert splits.groups is not None
    counts = {part: len(groups) for part, groups in splits.groups.items()}
    assert counts == {part: len(getattr(splits, part)) for part in ("train", "valid", "test")}
    stream = stream_of(splits, {"stream": "grouped"}, 0)
    assert [task.name for task in stream] == ["c", "a", "b"], "in the order in which they first occur"
    assert sum(len(task.test) for task in stream) == len(splits.test)
    for task in stream:
        assert len(task.test) == pytest.approx(0.2 * 599, abs=12), "each group has its part of the test rows"
    first = stream[0].train.values
    spread = first.std(0, correction=0)
    torch.testing.assert_close(first.mean(0), torch.zeros(64), rtol=0.0, atol=0.05)
    assert float(spread[spread > 0.9].mean()) == pytest.approx(1.0, abs=0.02)
    assert float(stream[1].train.values.abs().max()) <= 10.0


def test_scales_are_those_of_the_first_task_alone(table: Path) -> None:
    splits = load_dataset(table, options={"target": "digit", "group": "scribe"})
    given = stream_of(splits, {"stream": "split", "classes": 5}, 0)
    again = scaled_by_first(given)
    raw, now = (torch.cat([task.train.values for task in of]) for of in (given, again))
    assert not torch.equal(raw, now)
    torch.testing.assert_close(again[0].train.values.mean(0), torch.zeros(64), rtol=0.0, atol=0.05)
    assert float(again[1].train.values.mean(0).abs().max()) > 0.3


def test_a_column_of_obs_makes_the_tasks(tmp_path: Path) -> None:
    scanpy = pytest.importorskip("scanpy")
    path = tmp_path / "cells.h5ad"
    scanpy.datasets.pbmc68k_reduced().write_h5ad(path)
    words = ["continual", "--data", str(path), "--target", "bulk_labels", "--stream", "grouped", "--by", "phase",
             *(word if word != "40" else "300" for word in SMALL), "--models", "naive,readout",
             "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 0
    found = runs_in(tmp_path)["readout"]
    assert len(found["quality"]["retention"]["matrix"]) == 3
    assert found["quality"]["acc"] > 0.4
    assert main([*words[:8], "nothing", *words[9:-1], str(tmp_path / "other")]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--stream split --scenario task --known boundaries", "contradicts --scenario task"),
        ("--stream drifting --known boundaries", "a drifting stream has no tasks that could be told"),
        ("--stream split --known nothing --models naive,ewc", "ewc must be told when a task ends"),
        ("--known nothing --models keep,xdg", "say with --horizon after how many steps"),
        ("--horizon 5", "--horizon 5 is for --known nothing, received --known boundaries"),
        ("--stream split --tasks 3", "--tasks 3 means nothing with --stream split"),
        ("--classes 3", "--classes 3 means nothing with --stream permuted: it is for split"),
        ("--scenario domain", "--scenario domain means nothing with --stream permuted"),
        ("--by scribe", "--by scribe means nothing with --stream permuted: it is for grouped"),
        ("--stream grouped", "needs --by COLUMN"),
        ("--stream grouped --by scribe", "--data digits is none"),
        ("--features 0 --models readout", "features must be 1 or more"),
        ("--rows 0", "rows must be 1 or more"),
        ("--batch 0", "batch must be 1 or more"),
        ("--density 0 --models keep", "density must be above 0"),
        ("--known nothing --models a-gem", "a-gem must be told when a task ends"),
        ("--measure plasticity --models dense,keep,readout", "keep, readout does not grow old step by step"),
    ],
)
def test_what_means_nothing_together_is_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["continual", *words.split(), "--out", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir()), "nothing was trained"


def test_columns_that_are_missing_or_name_one_group_are_refused(table: Path, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="has no column 'writer'"):
        load_dataset(table, options={"target": "digit", "group": "writer"})
    frame = pd.read_csv(table)
    for name, values, message in (
        ("one", "a", "expected two groups or more"),
        ("some", [None if n % 9 else "a" for n in range(len(frame))], "rows have no 'some'"),
    ):
        frame.assign(**{name: values}).to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(ValueError, match=message):
            load_dataset(tmp_path / "t.csv", options={"target": "digit", "drop": "scribe", "group": name})


@pytest.mark.parametrize(("scenario", "known"), [("class", "nothing"), ("domain", "ids"), ("task", None)])
def test_a_split_is_told_what_was_asked(scenario: str, known: str | None, tmp_path: Path) -> None:
    words = ["continual", "--stream", "split", "--scenario", scenario, *SMALL, "--models", "naive"]
    words += [] if known is None else ["--known", known]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert runs_in(tmp_path)["naive"]["told"] == {"scenario": scenario, "known": known or "ids"}


def test_plasticity_is_counted_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["continual", "--tasks", "10", *SMALL, "--measure", "plasticity", "--models", "dense,set"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("model"))
    assert {"online", "ageing"} <= set(head.split())
    for run in runs_in(tmp_path).values():
        online = run["quality"]["retention"]["online"]
        assert len(online) == 10
        assert run["quality"]["ageing"] == pytest.approx(online[-1] - online[1])
    assert "Accuracy on new rows, task by task" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_all_names_are_known() -> None:
    assert set(NEW) <= set(METHODS)


def test_joint_training_is_asked_as_the_others_are(tmp_path: Path) -> None:
    words = ["continual", "--stream", "split", "--scenario", "task", *SMALL, "--models", "naive,keep,joint"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    runs = runs_in(tmp_path)
    assert runs["joint"]["quality"]["acc"] > 0.8
    for run in runs.values():  # the same rows by another way; tasks have about as many
        assert run["quality"]["pooled"] == pytest.approx(run["quality"]["acc"], abs=0.02)


def test_another_target_is_not_answered_with_old_runs(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [f"{n % 7},{n % 5},{'ab'[n % 2]},{'xyz'[n % 3]},{'pq'[n // 100]}" for n in range(200)]
    table.write_text("\n".join(["f,g,first,second,donor", *lines]))
    words = ["continual", "--data", str(table), "--stream", "grouped", "--by", "donor", "--models", "readout"]
    words += ["--out", str(tmp_path / "out"), "--target"]
    assert main([*words, "first"]) == 0
    assert main([*words, "second"]) == 2
