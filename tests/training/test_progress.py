"""Progress in plain output and in a notebook: it ends at 100 %, and after an error it does not."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from dynamicgate.training.progress import Progress, in_notebook


class Cell:
    """What `display(..., display_id=True)` returns."""

    def __init__(self, first: str) -> None:
        self.shown = [first]

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """A kernel as far as `Progress` knows one; the cells it displays."""
    cells: list[Cell] = []

    def display(html: str, *, display_id: bool) -> Cell:
        assert display_id
        cells.append(Cell(html))
        return cells[-1]

    ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shown.HTML, shown.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return cells


def test_plain_lines_end_at_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("training", plain_every=0.0) as progress:
        progress.update(0.5, "loss 0.3")
        progress.update(0.8, "loss 0.2")  # stopped early
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["50%", "80%", "100%"]
    assert lines[-1].endswith("loss 0.2")


def test_a_run_too_short_for_a_line_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("training", plain_every=60.0) as progress:
        progress.update(1.0, "loss 0.2")
    assert capsys.readouterr().err == ""


def test_an_interrupted_run_does_not_say_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with Progress("training", plain_every=0.0) as progress:
            progress.update(0.5, "loss 0.3")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "100%" not in capsys.readouterr().err


def test_a_notebook_has_one_cell_that_is_redrawn_and_ends_at_100_percent(
    notebook: list[Cell], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dynamicgate.training.progress.NOTEBOOK_EVERY", 0.0)
    with Progress("seed <0>") as progress:
        progress.update(0.25, "loss 0.3")
    (cell,) = notebook
    assert ['value="0.0000"' in cell.shown[0], "25%" in cell.shown[1], "100%" in cell.shown[2]] == [True] * 3
    assert "seed &lt;0&gt;" in cell.shown[-1]
    assert capsys.readouterr().err == ""


def test_a_hidden_progress_shows_nothing(notebook: list[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("training", show=False, plain_every=0.0) as progress:
        progress.update(0.5, "loss")
    assert notebook == []
    assert capsys.readouterr().err == ""


def test_a_shell_without_a_kernel_is_no_notebook(notebook: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_notebook()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
