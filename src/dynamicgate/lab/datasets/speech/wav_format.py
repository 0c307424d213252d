"""Read wav files into float32 waves in [-1, 1): 16-bit PCM with the standard library, the rest with soundfile.

Nothing is resampled: a clip of another rate is refused, because a silently resampled dataset is another dataset.
"""

from __future__ import annotations

import io
import wave
from importlib import import_module

import numpy as np
import numpy.typing as npt

FULL_SCALE = 32_768


def read_wav(content: bytes, name: str, rate: int) -> npt.NDArray[np.float32]:
    """The samples, averaged over channels; a ValueError says what is wrong with the file `name`."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        found = "is empty" if not content else "does not start like a wav file (RIFF, WAVE)"
        raise ValueError(f"{name} {found}; it is damaged, or not a wav file")
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, found_rate, frames, *_ = file.getparams()
            samples = file.readframes(frames) if width == 2 else b""
    except EOFError:
        raise ValueError(f"{name} is truncated: it ends within its header") from None
    except wave.Error as error:
        if "unknown format" not in str(error):
            raise ValueError(f"{name} is not a readable wav file: {error}") from error
        values, found_rate = _read_with_soundfile(content, name)
    else:
        if width == 2:
            if len(samples) < frames * channels * 2:
                whole = len(samples) // (channels * 2)
                raise ValueError(f"{name} is truncated: its header promises {frames} samples, it holds {whole}")
            values = np.frombuffer(samples, "<i2").reshape(-1, channels).astype(np.float32) / np.float32(FULL_SCALE)
        else:
            values, found_rate = _read_with_soundfile(content, name)
    if found_rate != rate:
        raise ValueError(
            f"{name} has {found_rate} samples per second, expected {rate}; clips are never resampled: convert them "
            f"(for example with `ffmpeg -i in.wav -ar {rate} out.wav`) or load them at their own rate"
        )
    if len(values) == 0:
        raise ValueError(f"{name} contains no samples; remove it or record it again")
    mono: npt.NDArray[np.float32] = values.mean(axis=1, dtype=np.float32) if values.shape[1] > 1 else values[:, 0]
    if not np.isfinite(mono).all():
        raise ValueError(f"{name} contains samples that are not finite; write it again")
    return mono


def to_int16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The nearest 16-bit samples, clipped; exact for 16-bit mono input."""
    return np.clip(np.rint(values * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def fit_length(values: npt.NDArray[np.int16], samples: int) -> npt.NDArray[np.int16]:
    """The first `samples` samples; a shorter clip is padded with zeros at the end."""
    return np.pad(values[:samples], (0, max(0, samples - len(values))))


def _read_with_soundfile(content: bytes, name: str) -> tuple[npt.NDArray[np.float32], int]:
    promised = int.from_bytes(content[4:8], "little") + 8
    if promised > len(content):  # libsndfile would silently return the samples that are left
        raise ValueError(f"{name} is truncated: its header promises {promised} bytes, it has {len(content)}")
    try:
        soundfile = import_module("soundfile")
    except (ImportError, OSError) as error:  # OSError: soundfile is installed, but the libsndfile it wraps is not
        raise ImportError(
            f"{name} is not 16-bit PCM, and reading other wav files needs soundfile: "
            "pip install 'dynamicgate[speech]', or convert the file"
        ) from error
    try:
        return soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise ValueError(f"{name} is not a readable wav file: {error}") from error
