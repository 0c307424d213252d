"""Background noise for speech: crops of it as clips of silence, and augmentation by time shift and added noise.

Each noise file is cut into three segments, the first 80 % for training, then 10 % for validation and 10 % for the test,
so that no crop of one part shares a sample with a crop of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.lab.datasets.speech.clip_cache import NOISE_FOLDER
from dynamicgate.lab.datasets.speech.wav_format import FULL_SCALE
from dynamicgate.lab.datasets.splits import PARTS

SEGMENTS = ((0.0, 0.8), (0.8, 0.9), (0.9, 1.0))


def noise_segments(noise: Mapping[str, npt.NDArray[np.int16]], part: int, samples: int) -> list[npt.NDArray[np.int16]]:
    """The segment of each file that belongs to `part` (0 train, 1 valid, 2 test), if it has at least `samples`."""
    start, end = SEGMENTS[part]
    cut = [noise[name][int(start * len(noise[name])) : int(end * len(noise[name]))] for name in sorted(noise)]
    return [segment for segment in cut if len(segment) >= samples]


def noise_crops(
    noise: Mapping[str, npt.NDArray[np.int16]], part: int, count: int, samples: int, random: np.random.Generator
) -> npt.NDArray[np.int16]:
    """`count` crops [count, samples] at random positions in random files."""
    usable = noise_segments(noise, part, samples)
    if count and not usable:
        start, end = SEGMENTS[part]
        raise ValueError(
            f"no file in {NOISE_FOLDER} is long enough for silence clips of the {PARTS[part]} part, {samples} samples "
            f"from {end - start:.0%} of a file; add noise files, use no silence (silence_share=0), or silence=zeros"
        )
    crops = np.zeros((count, samples), np.int16)
    for crop in crops:
        segment = usable[random.integers(len(usable))]
        start_at = random.integers(len(segment) - samples + 1)
        crop[:] = segment[start_at : start_at + samples]
    return crops


@dataclass(frozen=True, eq=False)
class ShiftAndNoise:
    """Shifts each clip of a batch by up to `shift` samples, padding with zeros, then adds a crop of noise.

    A fraction `noisy` of the clips gets noise, scaled by a factor uniform in 0..`level`. Random numbers come from
    torch's CPU generator, so a seed gives the same batch on every device. Waves are in 16-bit units.
    """

    shift: int
    noise: torch.Tensor  # int16, all segments concatenated
    lengths: torch.Tensor
    level: float = 0.1
    noisy: float = 0.8

    def __call__(self, waves_BT: torch.Tensor) -> torch.Tensor:
        """The augmented batch, float32."""
        (B, T), device = waves_BT.shape, waves_BT.device
        time_T = torch.arange(T, device=device)
        source_BT = time_T - torch.randint(-self.shift, self.shift + 1, (B, 1)).to(device)
        inside_BT = (source_BT >= 0) & (source_BT < T)
        shifted_BT = waves_BT.float().gather(1, source_BT.clamp(0, T - 1)) * inside_BT
        if not len(self.lengths):
            return shifted_BT
        which_B = torch.randint(len(self.lengths), (B,))
        room_B = self.lengths[which_B] - T + 1
        offset_B = torch.minimum((torch.rand(B, dtype=torch.float64) * room_B).long(), room_B - 1)
        start_B = (self.lengths.cumsum(0) - self.lengths)[which_B] + offset_B
        level_B1 = torch.rand(B, 1) * self.level * (torch.rand(B, 1) < self.noisy)
        crops_BT = self.noise[start_B[:, None] + torch.arange(T)].float() * level_B1
        return (shifted_BT + crops_BT.to(device)).clamp(-FULL_SCALE, FULL_SCALE - 1)


def make_shift_and_noise(
    noise: Mapping[str, npt.NDArray[np.int16]], samples: int, rate: int, shift_seconds: float = 0.1
) -> ShiftAndNoise:
    """Augmentation with the training segments of `noise`; only a time shift if none of them is long enough."""
    usable = noise_segments(noise, 0, samples)
    whole = np.concatenate([*usable, np.zeros(0, np.int16)])
    return ShiftAndNoise(
        round(shift_seconds * rate), torch.from_numpy(whole), torch.tensor([len(s) for s in usable], dtype=torch.int64)
    )
