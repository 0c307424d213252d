"""Where a result comes from: commit, versions, machine, command."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy
import torch

from dynamicgate._version import __version__

CODE = (
    ":/src",
    ":/csrc",
    ":/setup.py",
    ":/pyproject.toml",
    ":/constraints.txt",
    ":/experiments/*.py",
    ":/benchmarks/*.py",
)


def environment(command: str) -> dict[str, Any]:
    """Where a result comes from."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "command": command,
        "versions": {
            "dynamicgate": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.system(),
            "arch": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _commit() -> str | None:
    """The commit of this source tree, marked if its code has uncommitted changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    found = _git(root, "describe", "--always", "--abbrev=12", "--exclude=*")
    # Results and the pages made from them change while experiments run; they do not change what the code does.
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return found if found is None or not changed else f"{found}-dirty"


def _git(root: Path, *words: str) -> str | None:
    try:
        told = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()
