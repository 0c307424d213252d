"""Where data files are looked for, and where decoded images and computed features are cached."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def default_data_dir() -> Path:
    """The folder named by DYNAMICGATE_DATA, else `dynamicgate` in the platform's cache folder."""
    if chosen := os.environ.get("DYNAMICGATE_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "dynamicgate"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dynamicgate"
    return Path.home() / ".cache" / "dynamicgate"


def cache_folders(near: Path | None, cache_dir: str | Path | None) -> list[Path]:
    """Where a cache may be, best first: only `cache_dir` if given, else beside the data, else the user's folders."""
    if cache_dir is not None:
        return [Path(cache_dir).expanduser()]
    # DYNAMICGATE_DATA may be read-only too, so the home folder is the last resort.
    places = [*([near] if near else []), default_data_dir(), Path.home() / ".cache" / "dynamicgate"]
    return list(dict.fromkeys(place / ".cache" for place in places))
