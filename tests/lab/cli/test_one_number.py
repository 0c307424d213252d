"""`relative` means one thing: executed MACs over those of the dense network asked for, in every command and file.

gate+rigl is the model to ask: it is trained wider than asked for, at the same cost.
"""

from __future__ import annotations

import json
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from dynamicgate.io.model_file import load, read_notes
from dynamicgate.io.model_file import save as save_model
from dynamicgate.lab.cli import main
from dynamicgate.lab.methods.dense_reference import DenseReference, reference_of

ASKED = ["--model", "gate+rigl", "--data", "digits", "--hidden", "32", "--budget", "0.4", "--epochs", "6"]
DENSE = 64 * 32 + 32 * 10


def run(*arguments: str) -> tuple[str, str]:
    printed, progress = StringIO(), StringIO()
    with redirect_stdout(printed), redirect_stderr(progress):
        assert main(arguments) == 0
    return printed.getvalue(), progress.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("wider") / "run"
    return out, run("train", *ASKED, "--out", str(out))[0]


def printed_macs(text: str) -> tuple[float, float, float]:
    found = re.search(r"executed MACs +([\d,]+) of ([\d,]+) .*= ([\d.]+)", text)
    assert found is not None, text
    executed, dense, relative = (float(part.replace(",", "")) for part in found.groups())
    return executed, dense, relative


def test_the_model_of_this_test_is_wider_than_asked_for(trained: tuple[Path, str]) -> None:
    assert load(trained[0] / "model.safetensors").sizes[1] > 32  # type: ignore[index]


def test_train_and_measure_print_the_same_relative_macs(trained: tuple[Path, str]) -> None:
    out, printed = trained
    measured, _ = run("measure", str(out / "model.safetensors"), "--out", str(out / "measurement.json"))
    assert printed_macs(measured) == printed_macs(printed)
    assert printed_macs(printed)[1] == DENSE
    saved = json.loads((out / "measurement.json").read_text(encoding="utf-8"))
    made = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert saved["macs"] == pytest.approx(made["macs"])
    assert saved["samples"] == pytest.approx(made["samples"])


def test_the_log_and_the_validation_are_relative_to_the_same_network(trained: tuple[Path, str]) -> None:
    rows = [json.loads(line) for line in (trained[0] / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {round(row["target"], 9) for row in rows} == {0.4}
    made = json.loads((trained[0] / "run.json").read_text(encoding="utf-8"))
    assert made["valid"]["relative"] == pytest.approx(0.4, abs=0.01)  # what calibration makes it
    seen = [row for row in rows if row["valid"] and row["relative"]]
    # the same gates on training and on validation rows, before calibration: no factor of the width lies between
    assert seen[-1]["valid"]["relative"] == pytest.approx(seen[-1]["relative"], abs=0.06)


def test_bench_times_against_the_dense_network_asked_for(trained: tuple[Path, str]) -> None:
    out, _ = trained
    quick = ["--batches", "4", "--seconds", "0.03", "--no-torch-compile"]
    printed, _ = run("bench", str(out / "model.safetensors"), *quick)
    assert "dense: 64-32-10, as asked for" in printed
    row = json.loads((out / "timing.json").read_text(encoding="utf-8"))["rows"][0]
    assert set(row) == {
        *("batch", "dense", "dense, compiled", "gates in torch", "ours"),
        *("kernel_gain", "gate_gain"),
    }
    for gain in (row["kernel_gain"], row["gate_gain"]):
        assert 0 < gain[0] <= gain[1] <= gain[2]
    assert row["kernel_gain"][0] >= 1.0  # the fastest dense is never slower than the eager one


@pytest.mark.parametrize(
    "note",
    [
        {"sizes": [64, 0, 10], "activation": "relu"},
        {"sizes": [64, 1 << 40, 10], "activation": "relu"},
        {"sizes": "64", "activation": "relu"},
        {"sizes": [64, 32, 10], "activation": "exec"},
        [64, 32, 10],
    ],
)
def test_a_dense_network_that_makes_no_sense_is_refused(
    trained: tuple[Path, str], note: object, tmp_path: Path
) -> None:
    save_model(load(trained[0] / "model.safetensors"), tmp_path / "model.safetensors", notes={"dense": note})
    with pytest.raises(ValueError, match="do not say which dense network"):
        reference_of(tmp_path / "model.safetensors")


def test_a_file_names_its_dense_network_or_none(trained: tuple[Path, str], tmp_path: Path) -> None:
    path = trained[0] / "model.safetensors"
    assert reference_of(path) == DenseReference((64, 32, 10), "relu")
    assert reference_of(path).macs == DENSE  # type: ignore[union-attr]
    assert "dense" in read_notes(path)
    save_model(load(path), tmp_path / "model.safetensors")
    assert reference_of(tmp_path / "model.safetensors") is None
