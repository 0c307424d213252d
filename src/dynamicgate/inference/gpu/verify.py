"""Does a compiled layer compute what the model's layer computes? Compared in float64, on real and on random rows.

Each layer by itself: in 16 bits rounding moves what the next gate reads, and with it decisions that were right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import scale_units
from dynamicgate.inference.gpu.find import GatedFFN
from dynamicgate.inference.plan import Verification
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.inference.verify import MARGIN, TOLERANCE, near_threshold, refuse_above

MAX_ROWS = 256  # that are compared; they are picked from more
LIMITS = {
    torch.float32: (TOLERANCE, MARGIN),
    torch.float16: (2e-3, 2**-10),
    torch.bfloat16: (1e-2, 2**-8),
}  # of the largest output, and what rounding may move a logit by
TF32 = (2e-3, 2**-9)


class LayerReference:
    """Rows with no decision near a threshold, and their outputs in float64."""

    @torch.no_grad()
    def __init__(self, ffn: GatedFFN, rows_RD: Tensor) -> None:
        """Picked from `rows_RD`, as they enter the layer, and as many random ones of the same mean and spread."""
        self.tolerance, margin = limits(rows_RD)
        generator = torch.Generator(rows_RD.device).manual_seed(0)
        random_RD = torch.empty(rows_RD.shape, dtype=torch.float32, device=rows_RD.device).normal_(generator=generator)
        random_RD = random_RD * rows_RD.float().std(correction=0) + rows_RD.float().mean()
        mixed_RD = torch.stack((rows_RD, random_RD.to(rows_RD)), dim=1).flatten(0, 1)
        gate = copy_in_float64(ffn.gate)
        near_R = near_threshold(gate, gate(mixed_RD.double()), margin).any(-1)  # type: ignore[arg-type]
        self.near_threshold = int(near_R.sum())
        self.rows_RD = mixed_RD[~near_R][:MAX_ROWS]
        x_RD = self.rows_RD.double()
        h_RN = ACTIVATIONS[ffn.activation].function(_in_float64(ffn.up, x_RD))
        if ffn.value is not None:
            h_RN = h_RN * _in_float64(ffn.value, x_RD)
        self.y_RO = _in_float64(ffn.down, scale_units(h_RN, gate(x_RD).scale, ffn.gate.block))

    @torch.no_grad()
    def error_of(self, call: Callable[[Tensor], Tensor], tokens: int) -> float:
        """The largest error of `call` relative to the largest output; ValueError if it is too large."""
        index = torch.arange(tokens, device=self.rows_RD.device) % len(self.rows_RD)
        wrong = (call(self.rows_RD[index]).double() - self.y_RO[index]).abs().max()
        error = float(wrong / self.y_RO.abs().max().clamp(min=1e-6))
        refuse_above(self.tolerance, error, f"{tokens} tokens")
        return error


def limits(x: Tensor) -> tuple[float, float]:
    """Tolerance and margin for the dtype of `x`; float32 products may be those of tf32, if torch was told so."""
    tf32 = x.is_cuda and x.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return TF32 if tf32 else LIMITS[x.dtype]


def verify_layer(reference: LayerReference, call: Callable[[Tensor], Tensor], batches: Sequence[int]) -> Verification:
    """Compare `call` with the reference at each number of tokens; ValueError if it differs too much."""
    rows = len(reference.rows_RD)
    worst = max((reference.error_of(call, tokens) for tokens in batches), default=0.0) if rows else 0.0
    return Verification(rows, reference.near_threshold, worst)


def _in_float64(linear: nn.Linear, x_RD: Tensor) -> Tensor:
    """The outputs of `linear` in float64, without the hooks of gates."""
    return copy_in_float64(nn.Sequential(_without_hooks(linear)))(x_RD)


def _without_hooks(linear: nn.Linear) -> nn.Linear:
    bare = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    bare.weight = linear.weight
    bare.bias = linear.bias
    return bare
