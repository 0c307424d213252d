"""Log-mel features against librosa and a naive implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.speech.mel_features import (
    CODE,
    TEXT,
    MelConfig,
    at_rate,
    log_mel,
    mel_config,
    mel_filters,
)

from .wav_writers import hiss, tone

CONFIGS = {
    "code": CODE,
    "text": TEXT,
    "64 mels": replace(CODE, mels=64),
    "code, slaney": replace(CODE, scale="slaney"),
    "text, slaney, log": replace(TEXT, scale="slaney", unit="log"),
    "top_db": replace(CODE, top_db=30.0),
    "whole window": MelConfig(seconds=0.5, n_fft=512, window=512, hop=200, mels=20, centred=True),
    "odd sizes": MelConfig(seconds=0.3001, n_fft=511, window=401, hop=97, mels=13, centred=True),
    "odd margin": MelConfig(seconds=0.4, n_fft=512, window=477, hop=161, mels=30),
    "8 kHz": at_rate(TEXT, 8000, 0.7),
    "44.1 kHz": at_rate(CODE, 44_100, 0.5),
}


def clips(config: MelConfig) -> torch.Tensor:
    waves = [tone(440, config.seconds, 1, config.rate), hiss(4, 2), hiss(4, 3, level=20)]
    return torch.from_numpy(np.stack([wave[: config.samples] for wave in waves]) / 32_768)


def by_librosa(wave: np.ndarray[Any, Any], config: MelConfig) -> np.ndarray[Any, Any]:
    librosa = pytest.importorskip("librosa", reason="needs the extra dynamicgate[speech]")
    if not config.centred:  # librosa frames n_fft samples, of which a shorter window uses the middle
        margin = config.n_fft - config.window
        wave = np.pad(wave, (margin // 2, margin - margin // 2))
    power = librosa.feature.melspectrogram(
        y=wave,
        sr=config.rate,
        n_fft=config.n_fft,
        win_length=config.window,
        hop_length=config.hop,
        center=config.centred,
        pad_mode="constant",
        n_mels=config.mels,
        htk=config.scale == "htk",
        norm="slaney" if config.scale == "slaney" else None,
    )
    decibels = librosa.power_to_db(power, ref=1.0, amin=1e-10, top_db=config.top_db)
    return decibels if config.unit == "db" else decibels * np.log(10) / 10


@pytest.mark.parametrize(
    ("config", "mels", "frames", "features"),
    [(CODE, 40, 41, 1640), (replace(CODE, mels=64), 64, 41, 2624), (TEXT, 40, 98, 3920)],
)
def test_the_three_settings_of_the_paper_have_their_dimensions(
    config: MelConfig, mels: int, frames: int, features: int
) -> None:
    assert (config.frames, config.features) == (frames, features)
    assert log_mel(torch.zeros(2, config.samples), config).shape == (2, mels, frames)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_mel_agrees_with_librosa(name: str) -> None:
    config = replace(CONFIGS[name], standardise=False)
    waves = clips(config)
    expected = np.stack([by_librosa(wave, config) for wave in waves.numpy()])
    assert expected.shape[1:] == (config.mels, config.frames)
    # librosa's filters are float32: that is most of the difference in float64.
    assert np.abs(log_mel(waves, config).numpy() - expected).max() < 1e-5
    # In float32 compare the features, not the decibels: bands 60 dB below a tone carry its rounding error.
    mean, std = expected.mean((1, 2), keepdims=True), expected.std((1, 2), keepdims=True)
    standardised = (expected - mean) / (std + 1e-5)
    assert np.abs(log_mel(waves.float(), replace(config, standardise=True)).numpy() - standardised).max() < 1e-4


@pytest.mark.parametrize("name", ["code", "text", "odd margin"])
def test_log_mel_equals_a_naive_computation_frame_by_frame(name: str) -> None:
    config = CONFIGS[name]
    wave = clips(config)[0].numpy()
    window = np.sin(np.pi * np.arange(config.window) / config.window) ** 2  # Hann, periodic
    before = config.window // 2 if config.centred else 0
    padded = np.pad(wave, (before, config.window))
    rows = []
    for frame in range(config.frames):
        piece = padded[frame * config.hop : frame * config.hop + config.window] * window
        power = np.abs(np.fft.rfft(piece, config.n_fft)) ** 2
        rows.append([10 * np.log10(max(1e-10, float(band @ power))) for band in mel_filters(config)])
    naive = np.array(rows).T
    naive = (naive - naive.mean()) / (naive.std() + 1e-5)
    assert np.abs(log_mel(torch.from_numpy(wave)[None], config)[0].numpy() - naive).max() < 1e-9


@pytest.mark.parametrize("config", [CODE, TEXT])
def test_each_clip_has_mean_zero_and_deviation_one_at_any_volume(config: MelConfig) -> None:
    waves = clips(config).float()
    features = log_mel(waves, config)
    assert features.mean((1, 2)).abs().max() < 1e-5
    assert (features.std((1, 2), correction=0) - 1).abs().max() < 1e-4
    assert (log_mel(waves / 2, config) - features).abs().max() < 1e-3


def test_a_silent_clip_is_exactly_zero_and_batching_changes_nothing() -> None:
    waves = clips(CODE).float()
    waves[1] = 0
    features = log_mel(waves, CODE)
    assert features[1].count_nonzero() == 0
    assert torch.allclose(torch.cat([log_mel(wave[None], CODE) for wave in waves]), features, atol=1e-5)


def test_the_logarithm_differs_from_decibels_by_a_factor() -> None:
    waves = clips(TEXT)
    decibels, logarithm = (log_mel(waves, replace(TEXT, unit=u, standardise=False)) for u in ("db", "log"))
    assert torch.allclose(decibels, logarithm * (10 / np.log(10)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_fft": 256}, "n_fft must be at least the window of 480 samples, got 256"),
        ({"seconds": 0.01}, "a clip of 160 samples is shorter than the window of 480"),
        ({"hop": 0}, "must be positive"),
        ({"scale": "bark"}, "scale must be one of htk, slaney, got 'bark'"),
        ({"unit": "sone"}, "unit must be one of db, log, got 'sone'"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TEXT, **options)


def test_so_many_bands_that_some_would_be_empty_are_refused() -> None:
    with pytest.raises(ValueError, match="200 mel bands are too many for 257 frequency bins"):
        mel_filters(replace(CODE, mels=200))


@pytest.mark.parametrize("waves", [torch.zeros(12_800), torch.zeros(1, 16_000), torch.zeros(1, 12_800).short()])
def test_waves_of_another_shape_or_type_are_refused(waves: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected floating-point waves of shape \[clips, 12800\]"):
        log_mel(waves, CODE)


def test_presets_are_found_by_name_and_configurations_used_as_they_are() -> None:
    assert (mel_config("code"), mel_config("text"), mel_config(CONFIGS["64 mels"])) == (CODE, TEXT, CONFIGS["64 mels"])
    with pytest.raises(ValueError, match="unknown features 'mfcc': expected one of code, text, or a MelConfig"):
        mel_config("mfcc")


def test_another_rate_keeps_the_durations_of_window_and_hop() -> None:
    doubled = at_rate(TEXT, 32_000, 1.0)
    assert (doubled.window, doubled.hop, doubled.n_fft, doubled.frames) == (960, 320, 1024, 98)
    assert at_rate(CODE, 16_000, 1.0) == replace(CODE, seconds=1.0)
