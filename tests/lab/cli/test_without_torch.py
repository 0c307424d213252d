"""Reports and the overview work where torch is not installed, and do not load it where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dynamicgate
from dynamicgate.lab.cli import COMMANDS
from dynamicgate.lab.methods.fields import STREAM_METHODS

# Makes importing torch fail as if it were not installed, then runs the command.
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from dynamicgate.__main__ import main
sys.exit(main())
"""
# Runs the command, then prints whether it loaded torch.
LOADED = """
import sys
from dynamicgate.__main__ import main

try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_report_is_written_without_torch(compared: tuple[Path, str], tmp_path: Path) -> None:
    out, printed = compared
    done = run_python(WITHOUT_TORCH, "report", str(out), "--out", str(tmp_path / "page.html"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").read_bytes() == (out / "report.html").read_bytes()
    assert done.stdout.splitlines()[:-1] == printed.splitlines()[:-1], "the same table"


def test_the_version_is_printed_without_torch() -> None:
    done = run_python(WITHOUT_TORCH, "--version")
    assert (done.returncode, done.stdout) == (0, f"dynamicgate {dynamicgate.__version__}\n")


def test_a_command_that_needs_torch_says_so_in_one_line(tmp_path: Path) -> None:
    done = run_python(WITHOUT_TORCH, "train", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr == "dynamicgate: No module named 'torch'\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["trian"], [], ["train", "--budgt", "0.3"], *([name, "--help"] for name in COMMANDS)],
    ids=str,
)
def test_help_version_and_misspelt_words_do_not_load_torch(arguments: list[str]) -> None:
    done = run_python(LOADED, *arguments)
    assert done.stderr.splitlines()[-1] == "False"


def test_the_names_that_help_texts_list_are_those_that_exist() -> None:
    from dynamicgate.lab.methods.stream_methods import METHODS

    assert tuple(METHODS) == STREAM_METHODS
