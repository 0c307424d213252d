"""What the commands say when something is wrong: one line, exit code 2, nothing changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dynamicgate
from dynamicgate.lab.cli import main

from .quick_runs import QUICK, write_npz


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error prints."""
    capsys.readouterr()
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("dynamicgate: ")
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1, "one line"
    return printed.err


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "minst"], "unknown dataset 'minst': expected one of cifar10, digits, mnist"),
        (["--data", "mnist", "--data-dir", "nowhere"], "MNIST was not found. Expected the files train-images"),
        (["--data", "absent.npz"], "there is no file"),
        (["--hidden", "abc"], "--hidden takes whole numbers separated by commas, received 'abc'"),
        (["--hidden", "64,"], "--hidden takes whole numbers separated by commas, received '64,'"),
        (["--hidden", "0"], "hidden widths must be 1 or more, received (0,)"),
        (["--budget", "0"], "of the dense MACs: expected 0 < budget <= 1, received 0.0"),
        (["--budget", "1.5"], "expected 0 < budget <= 1, received 1.5"),
        (["--budget", "nan"], "expected 0 < budget <= 1, received nan"),
        (["--budget", "0.001"], "a budget of 0.001 cannot be met: the gate networks alone cost"),
        (["--block", "-1"], "block is a number of units and must be an integer >= 1, received -1"),
        (["--theta", "0"], "expected 0 < theta < 1, received 0.0"),
        (["--tau", "0"], "the temperature tau must be positive and finite, received 0.0"),
        (["--rank", "-1"], "rank must be an integer >= 1, received -1"),
        (["--dropout", "1"], "dropout must be in [0, 1), received 1.0"),
    ],
)
def test_a_wrong_training_option_is_reported_in_one_line(
    command: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line([command, *arguments, "--out", str(tmp_path / "out")], capsys)
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "--model", "gait"],
            "unknown model 'gait'; the models are dense, small, dropout, static, random, gate",
        ),
        (
            ["compare", "--models", "dense,gait"],
            "unknown models gait; choose from dense, small, dropout, static, random, gate",
        ),
        (["compare", "--models", ","], "unknown models (none given)"),
        (
            ["compare", "--models", "rigl", "small", "--stages", "two"],
            "--stages two means nothing to rigl, small: it is an option of staged, staged-random, cascade",
        ),
        (["train", "--focus", "0.5"], "--focus 0.5 means nothing to gate: it is an option of staged, staged-random"),
        (["compare", "--models", "cascade", "--decide", "head"], "--decide head means nothing to cascade"),
        (["train", "--model", "staged", "--focus", "2"], "focus is a fraction: expected 0 to 1, received 2.0"),
        (["train", "--model", "staged", "--budget", "0.9"], "pays for all stages of every input"),
        (["compare", "--seeds", "0"], "at least one seed is needed, received 0"),
        (["train", "--seed", "-1"], "seeds and epochs must be 0 or more, got seed -1"),
        (["train", "--epochs", "-1"], "epochs must be 1 or more, received -1"),
        (["train", "--batch", "-1"], "batch must be 1 or more, received -1"),
        (["train", "--lr", "-1"], "the learning rate must be positive, received -1.0"),
        (["train", "--patience", "0"], "patience is a number of epochs, 1 or more, received 0"),
        (["train", "--block", "100000"], "block=100000: the widest hidden layer has 128 units"),
        (
            ["train", "--model", "gate+rigl", "--widen", "2", "--block", "300"],
            "block=300: the widest hidden layer has 256 units, which is the largest block",
        ),
        (["train", "--accumulate", "100000"], "accumulate=100000: a batch of 32 rows has at most 32 pieces"),
        (["train", "--model", "rigl", "--pattern", "1000x1000"], "the largest tile that fits any is 128x128"),
        (["compare", "--models", "dense,rigl", "--pattern", "1x1000"], "pattern=1x1000: no layer has so many"),
        (["compare", "--models", "sparsify", "--block", "100000"], "block=100000: the widest hidden layer has 128"),
        (["train", "--device", "gpu"], "device must be auto, cpu or cuda, received 'gpu'"),
    ],
)
def test_a_wrong_choice_of_what_to_run_is_reported_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line([*arguments, "--out", str(tmp_path / "out")], capsys)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan", "x must be finite in float32, found 1 NaN or infinite values, the first at index (7, 2)"),
        ("one class", "labels must name at least 2 classes, found only class 1 in all 60 rows"),
        ("negative label", "found -1 at row 5"),
        ("label out of range", "labels must be 0..2, found 3 at row 0"),
        ("truncated", "is not an .npz file, or a truncated one"),
        ("no bytes", "is not an .npz file, or a truncated one"),
        ("empty", "is empty: x has shape (0, 4); at least one row"),
    ],
)
def test_bad_data_is_reported_in_one_line(
    kind: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_npz(tmp_path / "data.npz", kind)
    line = error_line(["train", "--data", str(path), "--out", str(tmp_path / "out")], capsys)
    assert message in line
    assert str(path) in line


def test_good_data_of_the_same_shape_is_accepted(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data.npz", "good")
    assert main(["train", "--data", str(path), "--budget", "0.8", *QUICK, "--out", str(tmp_path / "out")]) == 0


def test_a_report_without_results_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"no results to report: looked for {tmp_path / 'results.json'}" in error_line(
        ["report", str(tmp_path)], capsys
    )


def test_an_unreadable_model_file_is_reported_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.read_bytes()[:3000])
    assert f"{path} is not a readable safetensors file (truncated" in error_line(["measure", str(path)], capsys)
    assert "no file at" in error_line(["measure", str(tmp_path / "absent.safetensors")], capsys)
    assert "holds a checkpoint, expected a model" in error_line(
        ["measure", str(model.parent / "last.safetensors")], capsys
    )


def test_a_model_that_does_not_fit_the_data_is_reported_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_npz(tmp_path / "data.npz", "good")
    said = f"{path} has 4 features, and the model reads 64"
    assert said in error_line(["measure", str(model), "--data", str(path)], capsys)


def test_a_model_without_a_training_dataset_needs_data_to_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamicgate.save(dynamicgate.nn.GatedMLP((64, 9, 10)), tmp_path / "model.safetensors")
    line = error_line(["measure", str(tmp_path / "model.safetensors")], capsys)
    assert "does not say which dataset it was trained on: give one with --data" in line
    assert main(["measure", str(tmp_path / "model.safetensors"), "--data", "digits"]) == 0


def test_a_folder_with_a_run_of_other_settings_is_refused_and_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--model", "dense", *QUICK, "--out", str(tmp_path)]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    line = error_line([*command, "--lr", "0.01"], capsys)
    assert f"{tmp_path} has a run with other settings (lr " in line
    assert ", now 0.01): choose another --out, or delete that folder" in line
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "settings.json").unlink()  # a run of an earlier version
    assert "has a run with other settings: choose another" in error_line([*command, "--lr", "0.01"], capsys)


def test_a_refused_run_does_not_occupy_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error_line(["train", "--budget", "0.001", *QUICK, "--out", str(tmp_path)], capsys)
    assert main(["train", "--budget", "0.5", *QUICK, "--out", str(tmp_path)]) == 0


def test_an_output_path_that_is_a_file_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in error_line(["train", *QUICK, "--out", str(tmp_path / "file")], capsys)


def test_traceback_shows_where_an_error_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--traceback"]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "dynamicgate: no results to report" in printed


@pytest.mark.parametrize("arguments", [[], ["--tarin"], ["train"], ["train", "--out", "x", "--budget", "much"]])
def test_unparsable_arguments_exit_with_code_two(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_its_packages_the_command_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dynamicgate.__main__ import main as command

    monkeypatch.delitem(sys.modules, "dynamicgate.lab.cli")
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.setattr(sys, "argv", ["dynamicgate", "--version"])
    assert command() == 2
    assert "pip install 'dynamicgate[cli]'" in capsys.readouterr().err
