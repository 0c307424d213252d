"""Write small wav files, and folders and archives of them."""

from __future__ import annotations

import io
import tarfile
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16_000


def wav_bytes(samples: np.ndarray[Any, Any], rate: int = RATE) -> bytes:
    """16-bit PCM of int16 samples, [n] or [n, channels]."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def tone(hertz: float, seconds: float = 1.0, seed: int = 0, rate: int = RATE) -> np.ndarray[Any, Any]:
    """A tone in a little noise, as int16."""
    time = np.arange(round(seconds * rate)) / rate
    hiss = np.random.default_rng(seed).normal(0, 300, len(time))
    return (8000 * np.sin(2 * np.pi * hertz * time) + hiss).astype(np.int16)


def hiss(seconds: float, seed: int, level: float = 1000) -> np.ndarray[Any, Any]:
    """White noise as int16."""
    return np.random.default_rng(seed).normal(0, level, round(seconds * RATE)).astype(np.int16)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_tar(path: Path, files: Mapping[str, bytes], prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fast: dict[str, Any] = {".gz": {"compresslevel": 1}, ".xz": {"preset": 0}}.get(path.suffix, {})
    with tarfile.open(path, "w:" + {".gz": "gz", ".xz": "xz", ".tar": ""}[path.suffix], **fast) as archive:
        for name, content in reversed(files.items()):  # in another order than a folder's
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
