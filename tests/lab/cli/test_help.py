"""--version and --help: what they show, and that they stay cheap."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

import pytest

import dynamicgate
from dynamicgate.lab.cli import COMMANDS, main
from dynamicgate.lab.cli.option_groups import GROUPS
from dynamicgate.lab.cli.options import Training
from dynamicgate.lab.methods import Hyperparameters


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dynamicgate {dynamicgate.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], [*COMMANDS, "--version", "--traceback"]),
        (
            ["train"],
            [
                "For example",
                "dynamicgate train --data digits --budget 0.3",
                "torchrun",
                "--budget",
                "--out",
                "labels=leiden",
                "--target",
                "--stages",
                "0.4, 1 and 2.5 times the budget",
                "--focus",
                "--decide {margin,entropy,head}",
                "staged (easy inputs stop early)",
            ],
        ),
        (
            ["compare"],
            ["For example", "dynamicgate compare --data digits --budget 0.3 --seeds 5", "--models", "--stages"],
        ),
        (["measure"], ["For example", "dynamicgate measure runs/first/model.safetensors", "--part"]),
        (["bench"], ["For example", "dynamicgate bench runs/first/model.safetensors", "--batches", "--data-dir"]),
        (["report"], ["For example", "dynamicgate report runs/digits"]),
        (["data"], ["list", "get", "verify", "info"]),
        (["data", "get"], ["For example", "dynamicgate data get mnist", "--file", "--data-dir"]),
        (["data", "verify"], ["For example", "dynamicgate data verify mnist cifar10", "--option", "code 1"]),
        (["data", "info"], ["For example", "dynamicgate data info mnist", "--target", "--json"]),
    ],
)
def test_help_shows_examples_and_options(
    arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert [text for text in shown if text not in printed] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_what_the_command_says_about_itself(name: str) -> None:
    command = getattr(import_module(f"dynamicgate.lab.cli.{name}"), name.capitalize())
    assert command.__doc__.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "there is no command 'trian'; did you mean `dynamicgate train`?"),
        (["swim"], f"there is no command 'swim'. The commands are {', '.join(COMMANDS)}: see `dynamicgate --help`"),
        (["train", "--buget", "0.3"], "there is no option --buget; did you mean --budget?"),
        (["train", "--data-opton=a=1"], "there is no option --data-opton; did you mean --data-option?"),
        (["train", "--no-balancd"], "there is no option --no-balancd; did you mean --no-balanced?"),
        (["data", "get", "mnist", "--data-dri", "x"], "there is no option --data-dri; did you mean --data-dir?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_options_are_shown_in_groups_and_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [name for group in GROUPS.values() for name in group.names]
    assert sorted([*shown, "budget"]) == sorted(field.name for field in fields(Hyperparameters))
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = capsys.readouterr().out
    assert all(f"training.{name} options" in printed for name in GROUPS)
    assert all(f"--{name.replace('_', '-')} " in printed or f"--{name.replace('_', '-')}," in printed for name in shown)
    assert "None" not in printed


def test_a_group_has_the_defaults_of_the_hyperparameters() -> None:
    assert Training().hyperparameters() == {f.name: f.default for f in fields(Hyperparameters)}
