"""Background noise for speech: crops that are clips of silence, and the variation of clips in training.

Each noise file is cut in three stretches, the first 80 % for training, then 10 % for validation and 10 % for the test:
no crop of one part shares a sample with a crop of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.lab.datasets.speech.clip_cache import NOISE_FOLDER
from dynamicgate.lab.datasets.speech.wav_format import FULL_SCALE

PARTS = ("train", "valid", "test")
STRETCHES = ((0.0, 0.8), (0.8, 0.9), (0.9, 1.0))


def stretches(noise: Mapping[str, npt.NDArray[np.int16]], part: int, samples: int) -> list[npt.NDArray[np.int16]]:
    """The stretch of each file that belongs to `part` (0 train, 1 valid, 2 test), where it has `samples` or more."""
    start, end = STRETCHES[part]
    cut = [noise[name][int(start * len(noise[name])) : int(end * len(noise[name]))] for name in sorted(noise)]
    return [stretch for stretch in cut if len(stretch) >= samples]


def noise_crops(
    noise: Mapping[str, npt.NDArray[np.int16]], part: int, count: int, samples: int, random: np.random.Generator
) -> npt.NDArray[np.int16]:
    """`count` crops [count, samples] at random places of random files."""
    usable = stretches(noise, part, samples)
    if count and not usable:
        start, end = STRETCHES[part]
        raise ValueError(
            f"no file in {NOISE_FOLDER} is long enough for silence clips of the {PARTS[part]} part, {samples} samples "
            f"from {end - start:.0%} of a file; add noise files, or ask for no silence (silence_share=0) or zeros"
        )
    crops = np.zeros((count, samples), np.int16)
    for crop in crops:
        stretch = usable[random.integers(len(usable))]
        start_at = random.integers(len(stretch) - samples + 1)
        crop[:] = stretch[start_at : start_at + samples]
    return crops


@dataclass(frozen=True, eq=False)
class ShiftAndNoise:
    """Moves each clip of a batch by up to `shift` samples, zeros at the open end, then adds a crop of noise.

    A share `noisy` of the clips gets noise, at a level uniform in 0..`level` of its recorded one. Numbers are drawn
    from torch's CPU generator, so a seed gives the same batch on every device. Waves are in 16-bit units.
    """

    shift: int
    noise: torch.Tensor  # int16, stretch after stretch
    lengths: torch.Tensor
    level: float = 0.1
    noisy: float = 0.8

    def __call__(self, waves_BT: torch.Tensor) -> torch.Tensor:
        """The varied batch, float32."""
        (B, T), device = waves_BT.shape, waves_BT.device
        time_T = torch.arange(T, device=device)
        source_BT = time_T - torch.randint(-self.shift, self.shift + 1, (B, 1)).to(device)
        inside_BT = (source_BT >= 0) & (source_BT < T)
        moved_BT = waves_BT.float().gather(1, source_BT.clamp(0, T - 1)) * inside_BT
        if not len(self.lengths):
            return moved_BT
        which_B = torch.randint(len(self.lengths), (B,))
        room_B = self.lengths[which_B] - T + 1
        place_B = torch.minimum((torch.rand(B, dtype=torch.float64) * room_B).long(), room_B - 1)
        start_B = (self.lengths.cumsum(0) - self.lengths)[which_B] + place_B
        level_B1 = torch.rand(B, 1) * self.level * (torch.rand(B, 1) < self.noisy)
        crops_BT = self.noise[start_B[:, None] + torch.arange(T)].float() * level_B1
        return (moved_BT + crops_BT.to(device)).clamp(-FULL_SCALE, FULL_SCALE - 1)


def shift_and_noise(
    noise: Mapping[str, npt.NDArray[np.int16]], samples: int, rate: int, shift_seconds: float = 0.1
) -> ShiftAndNoise:
    """Variation with the training stretches of `noise`, or by time shift alone where there is none long enough."""
    usable = stretches(noise, 0, samples)
    whole = np.concatenate([*usable, np.zeros(0, np.int16)])
    return ShiftAndNoise(
        round(shift_seconds * rate), torch.from_numpy(whole), torch.tensor([len(s) for s in usable], dtype=torch.int64)
    )
