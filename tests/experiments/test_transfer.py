"""The data that nobody tuned on, what is asked of every method, and what the page says about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.transfer import datasets, page
from experiments.transfer.experiment import BUDGETS, METHODS, TRANSFER, stripped

from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods.hyperparameters import DEFAULTS
from dynamicgate.lab.result_file import write_runs
from dynamicgate.lab.runner import Experiment

WITHOUT_TEXT = [name for name in datasets.DATASETS if name != "characters"]
SIZES = {"name": "wine", "train": 121, "valid": 21, "test": 36, "features": 13, "classes": 3}


def test_a_budget_is_all_that_is_asked_for() -> None:
    for table in TRANSFER.tables:
        assert len(table.models) == 1 + len(METHODS) * len(BUDGETS)
        for name, asked in table.models.items():
            more = {"initial_density", "distribution"} if "from dense" in name else set()
            assert asked.keys() - more <= {"model", "budget"}, name
        assert len(table.seeds) == (3 if table.name == "characters" else 5)


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_the_files_are_data_that_have_no_settings_of_their_own(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("pandas")
    dataset = datasets.DATASETS[name]
    datasets.write_files(tmp_path, tmp_path, [name])
    path = tmp_path / datasets.FOLDER / dataset.file
    before = path.read_bytes()
    datasets.write_files(tmp_path, tmp_path, [name])
    assert path.read_bytes() == before
    splits = load_dataset(path, options=dataset.options)
    assert splits.name not in DEFAULTS
    assert all(np.isfinite(part.values.numpy()).all() for part in (splits.train, splits.valid, splits.test))
    assert len(splits.train) >= 120


def test_in_each_regime_only_its_own_columns_decide(tmp_path: Path) -> None:
    datasets.write_regimes(tmp_path / "regimes.npz", tmp_path)
    with np.load(tmp_path / "regimes.npz") as found:
        x, y = found["x"], found["y"]
    regime = 2 * (x[:, 0] > 0) + (x[:, 1] > 0)

    def explained(rows: Any, columns: slice) -> float:
        """By least squares on these columns, the fraction of rows whose class is right."""
        inputs = np.concatenate([x[rows][:, columns], np.ones((rows.sum(), 1))], 1)
        fitted = inputs @ np.linalg.lstsq(inputs, np.eye(3)[y[rows]], rcond=None)[0]
        return float((fitted.argmax(1) == y[rows]).mean())

    for k in range(4):
        own, others = slice(2 + 4 * k, 6 + 4 * k), slice(2 + 4 * ((k + 1) % 4), 6 + 4 * ((k + 1) % 4))
        assert explained(regime == k, own) > 0.8
        assert explained(regime == k, others) < 0.6


def test_a_stored_run_has_only_what_a_page_needs() -> None:
    run = {
        "model": "x",
        "seed": 0,
        "quality": {},
        "macs": {},
        "layers": [1],
        "samples": {},
        "proxies": {},
        "choice": {},
    }
    assert stripped(run).keys() == {"model", "seed", "quality", "macs", "choice"}


def stored(root: Path, accuracy: dict[str, list[float]], valid: dict[str, float] | None = None) -> Experiment:
    """Runs on wine at 0.1 with these accuracies by method, one a seed. valid: on validation rows, if it differs."""
    experiment = replace(TRANSFER, root=root)
    runs: list[dict[str, Any]] = []
    for job in experiment.jobs([experiment.table("wine")]):
        method = job.model.removesuffix(" 0.1")
        if (method == job.model and method != "dense") or job.seed >= len(accuracy.get(method, ())):
            continue
        run: dict[str, Any] = {
            "model": job.model, "seed": job.seed, "hash": job.hash, "steps": 500, "settings": {"hidden": [256]},
            "quality": {"accuracy": accuracy[method][job.seed]}, "meta": {"created": "", "data": SIZES},
            "valid": {"accuracy": (valid or {}).get(method, accuracy[method][job.seed]), "loss": 1.0},
            "macs": {"relative": {"dense": 1.0, "gate": 0.15}.get(method, 0.1)},
        }  # fmt: skip
        if method == "sparsify":
            run["choice"] = {"recipe": "small" if job.seed else "pruned", "steps": 4500}
        runs.append(run)
    write_runs(experiment.results / "wine.jsonl", runs)
    return experiment


def test_the_page_compares_with_the_best_control_that_meets_the_budget(tmp_path: Path) -> None:
    experiment = stored(
        tmp_path,
        {"dense": [1.0], "small": [0.9, 0.92, 0.94], "rigl": [0.5, 0.5, 0.5], "gate": [1.0, 1.0, 1.0],
         "sparsify": [0.9, 0.91, 0.94]},
    )  # fmt: skip
    text = page.pages(experiment)[page.PAGE]
    assert "**13 of 140 runs are there so far.**" in text
    assert "| gate | – | 100.00 ± 0.00 at 0.150 | – |" in text
    assert "| best by validation rows | – | small | – |" in text
    assert "| best by test rows | – | small | – |" in text
    assert "| difference, points | – | -0.33 ± 1.43 | – |" in text
    assert "| recipes chosen | – | small 2, pruned 1 | – |" in text
    assert "| steps of choosing | – | 9.0 times | – |" in text
    assert "Of 1 comparisons `sparsify` is better than that control in 0, level in 1 and worse in 0. " in text
    assert "- Behind, within the interval: wine at 0.1 against small: -0.33 ± 1.43 points." in text
    assert page.losing_cells(experiment) == ["wine at 0.1 against small: -0.33 ± 1.43 points"]


def test_a_loss_beyond_the_interval_is_said_first(tmp_path: Path) -> None:
    experiment = stored(tmp_path, {"dense": [1.0], "small": [0.9, 0.9, 0.9], "sparsify": [0.8, 0.81, 0.79]})
    text = page.pages(experiment)[page.PAGE]
    assert "- Worse beyond the interval: wine at 0.1 against small: -10.00 ± 2.48 points." in text
    assert page.losing_cells(experiment) == [
        "wine at 0.1 against small: -10.00 ± 2.48 points, beyond the interval"
    ]  # fmt: skip


def test_validation_rows_pick_a_control_without_the_test_rows(tmp_path: Path) -> None:
    accuracy = {"dense": [1.0], "small": [0.9] * 3, "rigl": [0.95] * 3, "sparsify": [0.9, 0.91, 0.92]}
    experiment = stored(tmp_path, accuracy, {"small": 0.99})
    found = page.read_found(experiment, "wine").found
    assert [page.cells_of("wine", found, rows)[0].control for rows in ("valid", "test")] == ["small", "rigl"]
    text = page.pages(experiment)[page.PAGE]
    assert text.index("that validation rows pick") < text.index("that test rows pick")
    assert page.losing_cells(experiment) == [
        "wine at 0.1 against rigl: -4.00 ± 2.48 points, beyond the interval"
    ]  # fmt: skip


def test_seeds_that_only_one_of_the_two_has_are_not_compared(tmp_path: Path) -> None:
    experiment = stored(tmp_path, {"dense": [1.0], "small": [0.9, 0.9, 0.9, 0.1], "sparsify": [0.9] * 3})
    (cell,) = page.cells_of("wine", page.read_found(experiment, "wine").found, "test")
    assert (cell.points, cell.half) == (0.0, 0.0)
    few = stored(tmp_path / "few", {"dense": [1.0], "small": [0.9, 0.9, 0.9], "sparsify": [0.9, 0.8]})
    assert page.cells_of("wine", page.read_found(few, "wine").found, "test") == [], "two seeds are too few"


def test_every_method_stands_against_the_best_of_the_others_and_the_seldom_worse_first(tmp_path: Path) -> None:
    accuracy = {"dense": [1.0], "small": [0.8, 0.81, 0.79], "rigl": [0.9] * 3, "sparsify": [0.95, 0.96, 0.94]}
    text = page.pages(stored(tmp_path, accuracy, {"small": 0.99}))[page.PAGE]
    table = text[text.index("## Every method") :].split("\n\n")[2].splitlines()[2:]
    assert table == [
        "| rigl | 1 / 0 / 0 | +10.00 | 1 / 0 / 0 | +10.00 |",  # against small: sparsify is no control
        "| sparsify | 1 / 0 / 0 | +15.00 | 1 / 0 / 0 | +5.00 |",  # validation rows pick small
        "| small | 0 / 0 / 1 | -10.00 | 0 / 0 / 1 | -10.00 |",
    ]
