"""Images as bytes: how they are stored, varied in training, and turned into the features a model reads.

Pixels stay uint8 [n, channels, height, width] until a batch is asked for: a quarter of the memory of float32, and a
black pixel is an exact zero.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from dynamicgate.data.arrays import Arrays

Augment: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Channels: TypeAlias = tuple[float, ...]
Pixels: TypeAlias = npt.NDArray[np.uint8]

# Raster formats only: pillow gives others (EPS) to outside programs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "MPO")


class MemmapRows:
    """Images in a file of raw bytes, mapped into memory: only the pages that a batch touches are read."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        """`path` holds exactly the bytes of [n, channels, height, width]."""
        size = path.stat().st_size
        if size != math.prod(shape):
            raise ValueError(f"{path} has {size} bytes, but images of shape {shape} have {math.prod(shape)}")
        self.path, self.shape = path, shape
        self._pixels = np.asarray(np.memmap(path, dtype=np.uint8, mode="r", shape=shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.take(self._pixels, index.cpu().numpy(), axis=0))

    def __reduce__(self) -> tuple[Any, ...]:  # a copy, or another process, maps the same file
        return MemmapRows, (self.path, self.shape)


def decode_image(content: bytes, shape: tuple[int, int, int], *, resize: bool = False) -> Pixels:
    """Pixels [channels, height, width] of an image, grey or in colour as `shape` asks; transparency becomes white.

    With `resize` a photograph is first turned upright as its EXIF data says, then resized (bilinear, not keeping its
    proportions); without, another size than that of `shape` is a ValueError.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(f"images need pillow ({error}); install it with `pip install 'dynamicgate[data]'`") from error
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened) if resize else opened
            if image.mode in ("I", "F"):
                raise ValueError(f"pixels of 32 bits (mode {image.mode}); convert it to 8 bits for each channel")
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.has_transparency_data:
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            image = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # on damaged bytes the decoders raise almost anything
        raise ValueError(f"not a readable image ({error})") from error
    if image.size != (width, height):
        if not resize:
            raise ValueError(f"expected {width} x {height} pixels, found {image.width} x {image.height}")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def to_features(batch: torch.Tensor) -> torch.Tensor:
    """Pixels as float32 [B, channels * height * width] in [0, 1]; zero stays exactly zero."""
    if batch.dtype != torch.uint8:
        raise ValueError(f"expected pixels of type torch.uint8, received {batch.dtype}; scale features yourself")
    return batch.flatten(1).to(torch.float32).div_(255)


def crop_and_flip(padding: int) -> Augment:
    """A random crop of the image with `padding` zeros on each side, mirrored left to right half of the time."""
    if padding < 0:
        raise ValueError(f"padding must be 0 or more pixels, received {padding}")
    return partial(_crop_and_flip, padding=padding)


def flip_only(batch: torch.Tensor) -> torch.Tensor:
    """Mirrored left to right half of the time, each image on its own."""
    # Drawn on the CPU everywhere: one generator, so a run is repeated on any device.
    mirrored = (torch.rand(len(batch)) < 0.5).to(batch.device)
    return torch.where(mirrored[:, None, None, None], batch.flip(-1), batch)


def _crop_and_flip(batch: torch.Tensor, *, padding: int) -> torch.Tensor:
    height, width = batch.shape[2:]
    top, left = torch.randint(2 * padding + 1, (2, len(batch))).to(batch.device)
    # Every window of every padded image, as a view: [B, C, tops, lefts, H, W].
    windows = F.pad(batch, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return flip_only(windows[torch.arange(len(batch), device=batch.device), :, top, left])


def chosen_augment(choice: bool | str | None, padding: int) -> Augment | None:
    """The option `augment` of the loaders: False, None or "none", "flip", or True or "crop_and_flip"."""
    if choice is None or isinstance(choice, bool):
        choice = "crop_and_flip" if choice else "none"
    choices: dict[str, Augment | None] = {
        "none": None,
        "flip": flip_only,
        "crop_and_flip": crop_and_flip(padding),
    }
    if choice not in choices:
        raise ValueError(f"augment must be True, False or one of {', '.join(choices)}, received {choice!r}")
    return choices[choice]


def constants(
    table: Mapping[str, tuple[Channels, Channels]], normalisation: str, pixels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each feature, from a table of constants for each channel."""
    if normalisation not in table:
        raise ValueError(f"normalisation must be one of {', '.join(table)}, received {normalisation!r}")
    mean, std = table[normalisation]
    return per_feature(mean, pixels), per_feature(std, pixels)


def per_feature(channels: Sequence[float], pixels: int) -> torch.Tensor:
    """One value for each channel, repeated for its pixels in the order of `to_features`."""
    return torch.tensor(channels, dtype=torch.float32).repeat_interleave(pixels)


def measured_constants(images: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel over all these images, exact, for each feature; 1 if constant."""
    channels, height, width = images.x.shape[1:]
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for index in torch.arange(len(images)).split(512):
        batch = images.x[index]
        for channel in range(channels):
            counts[channel] += torch.bincount(batch[:, channel].flatten(), minlength=256)
    level = torch.arange(256, dtype=torch.float64) / 255
    share = counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = share @ level
    variance = (share * (level - mean[:, None]).square()).sum(dim=1)
    std = torch.where((counts > 0).sum(dim=1) > 1, variance.sqrt(), 1.0)
    return per_feature(mean.tolist(), height * width), per_feature(std.tolist(), height * width)
