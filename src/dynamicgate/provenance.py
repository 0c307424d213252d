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
    """The commit of this source tree, marked if it has uncommitted changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
