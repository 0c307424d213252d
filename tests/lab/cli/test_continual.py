"""`dynamicgate continual`: a few models on a short stream, a table and a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamicgate.files import read_json
from dynamicgate.lab.cli import main
from dynamicgate.lab.report.continual_page import write_continual_report

ASKED = ("--data", "digits", "--tasks", "2", "--epochs", "1", "--hidden", "16", "--width", "8", "--rows", "200",
         "--device", "cpu")  # fmt: skip


def test_a_stream_is_followed_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["continual", *ASKED, "--models", "naive,keep,joint", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "forgetting" in printed
    runs = {run["model"]: run for run in read_json(tmp_path / "results.json")["runs"]}
    assert set(runs) == {"naive", "keep", "joint"}
    assert runs["keep"]["quality"]["forgetting"] == 0.0
    assert runs["keep"]["quality"]["contexts"] == 2
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for part in (
        "Accuracy by age",
        "Free capacity",
        "Forgetting against overlap",
        "tested on task",
        "Told in training",
    ):
        assert part in page
    assert page.count('class="heat"') >= 9
    assert write_continual_report(tmp_path, tmp_path / "again.html").read_text(encoding="utf-8") == page
    before = (tmp_path / "results.json").read_text()
    assert main(words) == 0, "what is finished is found again"
    runs_again = {run["model"]: run for run in read_json(tmp_path / "results.json")["runs"]}
    assert runs_again == runs
    assert before
    assert main([*words[:-2], "--lr", "0.1", "--out", str(tmp_path)]) == 2


def test_nothing_known_and_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["continual", *ASKED, "--known", "nothing", "--horizon", "4", "--models", "keep", "--batch", "50"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert main(["continual", "--models", "magic", "--out", str(tmp_path / "b")]) == 2
    assert "unknown models magic" in capsys.readouterr().err


def test_references_fill_what_only_other_networks_can_say(tmp_path: Path) -> None:
    assert main(["continual", *ASKED, "--models", "naive,readout", "--references", "--out", str(tmp_path)]) == 0
    naive, readout = read_json(tmp_path / "results.json")["runs"]
    assert len(naive["quality"]["retention"]["fresh"]) == len(naive["quality"]["retention"]["joint"]) == 2
    assert readout["quality"]["retention"]["joint"] is None  # it takes no steps, and so there is none to compare
    assert "intransigence" in (tmp_path / "report.html").read_text(encoding="utf-8")
