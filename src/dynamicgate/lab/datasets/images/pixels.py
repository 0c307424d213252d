"""Images as uint8 pixels: decode them, map them from a file, and turn a batch into features.

Pixels stay uint8 [n, channels, height, width] until a batch is asked for: a quarter of the memory of float32, and a
black pixel is an exact zero.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Pixels: TypeAlias = npt.NDArray[np.uint8]

# Raster formats only: pillow hands others (EPS) to external programs.
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
    """Pixels [channels, height, width] of an image, grey or colour as `shape` asks; transparency becomes white.

    With `resize`, a photograph is first rotated upright as its EXIF data says, then resized (bilinear, ignoring its
    aspect ratio). Without it, a size other than that of `shape` is a ValueError.
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
                raise ValueError(f"pixels of 32 bits (mode {image.mode}); convert it to 8 bits per channel")
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
        raise ValueError(f"expected pixels of type torch.uint8, received {batch.dtype}; scale other features yourself")
    return batch.flatten(1).to(torch.float32).div_(255)
