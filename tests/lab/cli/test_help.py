"""--version and --help: what they show, and that they stay cheap."""

from __future__ import annotations

from importlib import import_module

import pytest

import dynamicgate
from dynamicgate.lab.cli import COMMANDS, main


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


def test_an_unknown_command_is_answered_with_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "trian" in printed
    assert ", ".join(COMMANDS) in printed
