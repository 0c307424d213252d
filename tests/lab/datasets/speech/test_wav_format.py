"""Reading wav files of every encoding, and refusing damaged ones."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest

from dynamicgate.lab.datasets.speech.wav_format import fit_length, read_wav, to_int16

from .wav_writers import RATE, tone, wav_bytes


def other_encoding(samples: np.ndarray[Any, Any], subtype: str) -> bytes:
    soundfile = pytest.importorskip("soundfile", reason="needs the extra dynamicgate[speech]")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, subtype=subtype, format="WAV")
    return buffer.getvalue()


def test_mono_16_bit_samples_are_read_bit_for_bit() -> None:
    samples = np.array([0, 1, -1, 32_767, -32_768, 12_345], np.int16)
    values = read_wav(wav_bytes(samples), "x.wav", RATE)
    assert values.dtype == np.float32
    assert np.array_equal(values, samples.astype(np.float32) / 32_768)
    assert np.array_equal(to_int16(values), samples)


def test_the_channels_of_stereo_are_averaged() -> None:
    left, right = tone(440), tone(880)
    values = read_wav(wav_bytes(np.stack([left, right], axis=1)), "x.wav", RATE)
    assert np.allclose(values, (left.astype(float) + right) / 65_536, atol=1e-7)


@pytest.mark.parametrize(("subtype", "error"), [("FLOAT", 1e-7), ("PCM_24", 1e-6), ("PCM_U8", 1e-2), ("ULAW", 3e-2)])
def test_other_encodings_are_read_by_soundfile(subtype: str, error: float) -> None:
    samples = (tone(440) / 32_768).astype(np.float32)
    assert np.abs(read_wav(other_encoding(samples, subtype), "x.wav", RATE) - samples).max() < error


@pytest.mark.parametrize("subtype", ["FLOAT", "PCM_24"])
def test_without_soundfile_another_encoding_names_the_extra_to_install(
    subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = other_encoding(tone(440) / 32_768, subtype)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"yes/x\.wav is not 16-bit PCM.*pip install 'dynamicgate\[speech\]'"):
        read_wav(content, "yes/x.wav", RATE)
    assert len(read_wav(wav_bytes(tone(440)), "x.wav", RATE)) == RATE


def with_nan() -> bytes:
    return other_encoding(np.array([0, np.nan, 0], np.float32), "FLOAT")


def unknown_codec() -> bytes:
    content = bytearray(wav_bytes(tone(440)))
    content[20:22] = struct.pack("<H", 0x7777)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "is empty; it is damaged"),
        (lambda: b"ID3 this is an mp3", "does not start like a wav file"),
        (lambda: wav_bytes(tone(440))[:20], "is truncated: it ends within its header"),
        (lambda: wav_bytes(tone(440))[:14], "is not a readable wav file: .* chunk missing"),
        (lambda: wav_bytes(tone(440))[:1044], "is truncated: its header promises 16000 samples, it holds 500"),
        (lambda: wav_bytes(tone(440))[:1045], "is truncated: its header promises 16000 samples, it holds 500"),
        (
            lambda: other_encoding(tone(440) / 32_768, "FLOAT")[:1000],
            "is truncated: its header promises .* it has 1000",
        ),
        (lambda: wav_bytes(np.zeros(0, np.int16)), "contains no samples"),
        (lambda: wav_bytes(tone(440), rate=8000), "has 8000 samples per second, expected 16000; .* never resampled"),
        (with_nan, "contains samples that are not finite"),
        (unknown_codec, "is not a readable wav file"),
    ],
)
def test_an_unusable_file_is_named_with_the_reason(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^yes/a_nohash_0\.wav .*({message})"):
        read_wav(content(), "yes/a_nohash_0.wav", RATE)


def test_clips_are_cut_at_the_end_and_padded_with_zeros() -> None:
    samples = np.arange(1, 6, dtype=np.int16)
    assert fit_length(samples, 3).tolist() == [1, 2, 3]
    assert fit_length(samples, 5).tolist() == [1, 2, 3, 4, 5]
    assert fit_length(samples, 7).tolist() == [1, 2, 3, 4, 5, 0, 0]


def test_values_beyond_full_scale_are_clipped() -> None:
    assert to_int16(np.array([1.5, -1.5, 1.0], np.float32)).tolist() == [32_767, -32_768, 32_767]
