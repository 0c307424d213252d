"""Where decoded images and computed features are kept, so that the work is done once."""

from __future__ import annotations

from pathlib import Path


def cache_folders(near: Path | None, cache_dir: str | Path | None) -> list[Path]:
    """Where a cache may lie, best first: `cache_dir` alone if given, else beside the data, else the user's folder."""
    from dynamicgate.data.load import default_data_dir  # here: that module imports the loaders

    if cache_dir is not None:
        return [Path(cache_dir).expanduser()]
    # DYNAMICGATE_DATA may name the read-only folder, so the home folder comes last.
    places = [*([near] if near else []), default_data_dir(), Path.home() / ".cache" / "dynamicgate"]
    return list(dict.fromkeys(place / ".cache" for place in places))
