"""Weights in fewer bytes than floats: which layouts hold a weight exactly, and rounding to what bytes hold.

Bytes are whole numbers from -127 to 127, and each output has a scale. A scale has 16 bits or fewer, so that every
product of the two is a float without rounding: what bytes hold they hold exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
SCALE_BITS = 16
LEAST_SCALE = 2.0**-100  # smaller ones would leave the normal floats


def fits_half(weight: Tensor) -> bool:
    """Whether bfloat16 holds every number of it exactly, as it does where a model was stored in bfloat16."""
    return torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight)


def fits_bytes(weight_ND: Tensor) -> bool:
    """Whether bytes hold every number of it exactly with the scales of `scales_of`, as they do after
    `rounded_to_bytes`. Other scales are not looked for."""
    return bool(weight_ND.isfinite().all()) and torch.equal(rounded_to_bytes(weight_ND), weight_ND)


def rounded_to_bytes(weight_ND: Tensor) -> Tensor:
    """Each weight as the nearest whole number times the scale of its output. The largest of an output becomes 127."""
    scale_N = scales_of(weight_ND)
    return bytes_of(weight_ND, scale_N) * scale_N[:, None]


def scales_of(weight_ND: Tensor) -> Tensor:
    """The scale of each output (float32); ValueError if a weight is not finite."""
    largest_N = weight_ND.detach().float().abs().amax(dim=1)
    if not bool(largest_N.isfinite().all()):
        raise ValueError("weights that are infinite or not a number cannot be rounded to int8")
    mantissa_N, exponent_N = torch.frexp(largest_N / LARGEST)
    steps = 2.0**SCALE_BITS
    return torch.ldexp((mantissa_N * steps).ceil() / steps, exponent_N).clamp(min=LEAST_SCALE)


def bytes_of(weight_ND: Tensor, scale_N: Tensor) -> Tensor:
    """The whole numbers (int8) that these scales are multiplied by."""
    return (weight_ND.detach() / scale_N[:, None]).round().to(torch.int8)
