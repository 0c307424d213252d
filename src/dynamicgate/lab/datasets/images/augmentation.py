"""Random crops and flips of image batches during training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch.nn import functional as F

Augmentation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def make_augmentation(choice: bool | str | None, padding: int) -> Augmentation | None:
    """The loaders' option `augment`: False, None or "none"; "flip"; True or "crop_and_flip"."""
    if choice is None or isinstance(choice, bool):
        choice = "crop_and_flip" if choice else "none"
    choices: dict[str, Augmentation | None] = {
        "none": None,
        "flip": flip,
        "crop_and_flip": crop_and_flip(padding),
    }
    if choice not in choices:
        raise ValueError(f"augment must be True, False or one of {', '.join(choices)}, received {choice!r}")
    return choices[choice]


def crop_and_flip(padding: int) -> Augmentation:
    """A random crop of the image padded with `padding` zeros on each side, then a horizontal flip half of the time."""
    if padding < 0:
        raise ValueError(f"padding must be 0 or more pixels, received {padding}")
    return partial(_crop_and_flip, padding=padding)


def flip(batch: torch.Tensor) -> torch.Tensor:
    """Each image flipped horizontally with probability one half, independently of the others."""
    # Always drawn on the CPU, from one generator, so that a run is reproducible on any device.
    flipped = (torch.rand(len(batch)) < 0.5).to(batch.device)
    return torch.where(flipped[:, None, None, None], batch.flip(-1), batch)


def _crop_and_flip(batch: torch.Tensor, *, padding: int) -> torch.Tensor:
    height, width = batch.shape[2:]
    top, left = torch.randint(2 * padding + 1, (2, len(batch))).to(batch.device)
    # Every window of every padded image, as a view: [B, C, tops, lefts, H, W].
    windows = F.pad(batch, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return flip(windows[torch.arange(len(batch), device=batch.device), :, top, left])
