"""Statistics of single samples: their cost, how certain the model was, and what the easiest and hardest look like.

`measure` gives means; these are the distributions behind them, small enough to keep beside every run. They are recorded
while `measure` runs, not in a pass of their own:

    stats = SampleStats()
    found = measure(model, splits.test, watch=stats.add)
    stats.to_dict(splits)
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.accounting.metrics import correlation
from dynamicgate.lab.datasets.splits import Splits

BINS = 40
SHOWN = 3
SIDE = 32  # pixels
FEATURES = 6
MOST_LEVELS = 8  # distinct costs that are told apart: those of stages
PICTURES = {  # datasets whose rows are stored as vectors: channels, height and width, by name and features
    ("digits", 64): (1, 8, 8),
    ("mnist", 784): (1, 28, 28),
    ("speech-commands", 1640): (1, 40, 41),
    ("speech-commands", 3920): (1, 40, 98),
}
UPSIDE_DOWN = ("speech-commands",)  # low frequencies first in memory, at the bottom of a spectrogram


class SampleStats:
    """Cost, hardness and predicted class of every sample of a dataset, in order."""

    def __init__(self) -> None:
        """Nothing recorded yet."""
        self._recorded: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, scores_BC: Tensor, macs_B: Tensor) -> None:
        """Record a batch: the model's scores of the classes, and the MACs executed for each sample.

        Hardness is 1 - the largest softmax probability, as in the paper (sec 5.5).
        """
        p_BC = scores_BC.detach().double().softmax(1)
        certain_B, predicted_B = p_BC.max(1)
        self._recorded.append((macs_B.double().cpu(), 1.0 - certain_B.cpu(), predicted_B.cpu()))

    def to_dict(self, splits: Splits) -> dict[str, Any]:
        """Plain numbers, lists and strings: a histogram of the cost, and examples from the measured test part."""
        if not self._recorded:
            raise ValueError("no sample was recorded: expected a measurement with watch=stats.add")
        macs_N, hardness_N, predicted_N = (torch.cat(column) for column in zip(*self._recorded, strict=True))
        if len(macs_N) != len(splits.test):
            raise ValueError(
                f"received {len(macs_N)} recorded samples, expected the {len(splits.test)} of the test part: "
                "measure that part, once"
            )
        y_N = splits.test.y.cpu()
        varies = bool(macs_N.max() > macs_N.min())
        orders = {"easiest": hardness_N.argsort(stable=True), "hardest": (-hardness_N).argsort(stable=True)}
        if varies:
            orders |= {"cheapest": macs_N.argsort(stable=True), "most_expensive": (-macs_N).argsort(stable=True)}

        def shown(row: int) -> dict[str, Any]:
            return {
                "row": row,
                "macs": float(macs_N[row]),
                "hardness": float(f"{float(hardness_N[row]):.4g}"),
                "label": int(y_N[row]),
                "predicted": int(predicted_N[row]),
                **show(splits, row),
            }

        right_N = predicted_N == y_N
        return {
            "count": len(macs_N),
            "classes": list(splits.class_names),
            "macs": {"low": float(macs_N.min()), "high": float(macs_N.max()), "counts": histogram(macs_N)},
            "macs_by_class": [mean_of(macs_N[y_N == label]) for label in range(splits.classes)],
            "macs_if_right": mean_of(macs_N[right_N]),
            "macs_if_wrong": mean_of(macs_N[~right_N]),
            "correlation": rounded(correlation(hardness_N, macs_N)),
            "cost_error": rounded(correlation((~right_N).double(), macs_N)),
            "right": pack_rows(right_N),
            "levels": cost_levels(macs_N, ~right_N, hardness_N),
            **{name: [shown(row) for row in order[:SHOWN].tolist()] for name, order in orders.items()},
        }


class RegressionStats:
    """Cost and absolute error of every sample of a dataset with measurements, in order."""

    def __init__(self) -> None:
        """Nothing recorded yet."""
        self._recorded: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs_B1: Tensor, macs_B: Tensor) -> None:
        """Record a batch: what the model answers, and the MACs executed for each sample."""
        self._recorded.append((outputs_B1.detach().double().flatten().cpu(), macs_B.double().cpu()))

    def to_dict(self, splits: Splits) -> dict[str, Any]:
        """Plain numbers: a histogram of the cost, and whether it goes along with the error."""
        answer_N, macs_N = (torch.cat(column) for column in zip(*self._recorded, strict=True))
        error_N = (answer_N - splits.test.y.double().cpu()).abs()
        return {
            "count": len(macs_N),
            "task": "regression",
            "macs": {"low": float(macs_N.min()), "high": float(macs_N.max()), "counts": histogram(macs_N)},
            "correlation": rounded(correlation(error_N, macs_N)),
        }


def pack_rows(right_N: Tensor) -> str:
    """Which rows are right, as a short text: one bit a row, compressed."""
    return base64.b64encode(zlib.compress(np.packbits(right_N.numpy()).tobytes(), 9)).decode("ascii")


def unpack_rows(text: str, count: int) -> Tensor:
    """What `pack_rows` packed."""
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))


def histogram(values_N: Tensor) -> list[int]:
    """Counts in bins of equal width from the least to the greatest value. There are no more bins than distinct values:
    costs come in steps, and bins between them would always be empty."""
    bins = min(BINS, len(values_N.unique()))
    if bins == 1:
        return [len(values_N)]
    low, high = float(values_N.min()), float(values_N.max())
    return [int(count) for count in torch.histc(values_N, bins, low, high).tolist()]


def cost_levels(macs_N: Tensor, wrong_N: Tensor, hardness_N: Tensor) -> list[dict[str, Any]]:
    """For each distinct cost, the least first: how many samples have it, how many of them are misclassified, and their
    mean hardness. Empty where all cost the same, or where there are so many costs that each has only a few samples."""
    costs = macs_N.unique()
    if not 1 < len(costs) <= MOST_LEVELS:
        return []
    found = []
    for cost in costs:
        here_N = macs_N == cost
        found.append(
            {
                "macs": float(cost),
                "count": int(here_N.sum()),
                "wrong": int(wrong_N[here_N].sum()),
                "hardness": float(f"{float(hardness_N[here_N].mean()):.4g}"),
            }
        )
    return found


def rounded(value: float | None) -> float | None:
    """A correlation to four decimals; None of none."""
    return None if value is None else round(value, 4)


def mean_of(values_N: Tensor) -> float | None:
    """The mean; None of no values."""
    return round(float(values_N.mean()), 2) if len(values_N) else None


def show(splits: Splits, row: int) -> dict[str, Any]:
    """A test row to display: a `picture`, or the `features` that deviate most, as [name, value, deviation]; the number
    of a feature where it has no name."""
    x_D = splits.test.rows(torch.tensor([row]))[0].flatten().float().cpu()
    shape = picture_shape(splits, len(x_D))
    if shape is not None:
        pixels_CHW = x_D.reshape(shape)
        return {"picture": picture(pixels_CHW.flip(1) if splits.name in UPSIDE_DOWN else pixels_CHW)}
    mean, std = (torch.as_tensor(c, dtype=torch.float32).flatten() for c in (splits.mean, splits.std))
    deviation_D = ((x_D - mean) / std).nan_to_num()
    most = deviation_D.abs().argsort(descending=True, stable=True)[:FEATURES].tolist()
    names = feature_names(splits) or range(len(x_D))
    return {"features": [[names[i], round(float(x_D[i]), 4), round(float(deviation_D[i]), 2)] for i in most]}


def feature_names(splits: Splits) -> Sequence[str]:
    """The names of the columns or genes (by symbol, where that is known) of a dataset that keeps them, one for each
    feature; else none."""
    names = () if splits.schema is None else splits.schema.shown_names
    return names if len(names) == splits.train.features else ()


def picture_shape(splits: Splits, features: int) -> tuple[int, int, int] | None:
    """Channels, height and width of the rows if they are pictures, else None."""
    stored = tuple(splits.test.x.shape[1:])
    if len(stored) == 3 and stored[0] in (1, 3) and math.prod(stored) == features:
        return stored
    return PICTURES.get((splits.name, features))


def picture(pixels_CHW: Tensor) -> str:
    """A PNG of at most 32 x 32 pixels in base64; if values lie outside [0, 1], their range is scaled to it."""
    height, width = (min(size, SIDE) for size in pixels_CHW.shape[1:])
    small_CHW = F.adaptive_avg_pool2d(pixels_CHW, (height, width))
    low, high = float(small_CHW.min()), float(small_CHW.max())
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    scaled_CHW = (small_CHW - low) / max(high - low, 1e-12)
    bytes_HWC = (scaled_CHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return base64.b64encode(png(bytes_HWC)).decode("ascii")


def png(bytes_HWC: Tensor) -> bytes:
    """Grey or RGB bytes as a PNG file (ISO/IEC 15948)."""
    height, width, channels = bytes_HWC.shape
    lines = b"".join(b"\0" + bytes(line.flatten().tolist()) for line in bytes_HWC)  # 0: no filter on this line

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
