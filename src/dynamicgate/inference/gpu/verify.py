"""Does a layer compute what the hard model's layer computes? In float64, on rows as they enter it and on random ones.

Each layer by itself: in 16 bits rounding moves what the next gate reads, and with it decisions that were right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import close_units
from dynamicgate.inference.gpu.find import Pair
from dynamicgate.inference.shadow_copy import in_double
from dynamicgate.inference.verify import MARGIN, TOLERANCE, unsure

MOST_ROWS = 256  # that are compared; they are looked for among more
LIMITS = {
    torch.float32: (TOLERANCE, MARGIN),
    torch.float16: (2e-3, 2**-10),
    torch.bfloat16: (1e-2, 2**-8),
}  # of the largest output, and what rounding may move a logit by
TF32 = (2e-3, 2**-9)


class Truth:
    """Rows whose decisions are beyond doubt, and their outputs in float64."""

    @torch.no_grad()
    def __init__(self, pair: Pair, rows_RD: Tensor) -> None:
        """Of `rows_RD`, as they enter the layer, and as many random ones of the same mean and spread."""
        self.tolerance, margin = limits(rows_RD)
        generator = torch.Generator(rows_RD.device).manual_seed(0)
        random_RD = torch.empty(rows_RD.shape, dtype=torch.float32, device=rows_RD.device).normal_(generator=generator)
        random_RD = random_RD * rows_RD.float().std(correction=0) + rows_RD.float().mean()
        both_RD = torch.stack((rows_RD, random_RD.to(rows_RD)), dim=1).flatten(0, 1)
        gate = in_double(pair.gate)
        tied_R = unsure(gate, gate(both_RD.double()), margin).any(-1)  # type: ignore[arg-type]
        self.ties = int(tied_R.sum())
        self.rows_RD = both_RD[~tied_R][:MOST_ROWS]
        x_RD = self.rows_RD.double()
        h_RN = ACTIVATIONS[pair.activation].function(_wide(pair.up, x_RD))
        if pair.value is not None:
            h_RN = h_RN * _wide(pair.value, x_RD)
        self.y_RO = _wide(pair.down, close_units(h_RN, gate(x_RD).scale, pair.gate.config.block))

    @torch.no_grad()
    def check(self, call: Callable[[Tensor], Tensor], tokens: int) -> float:
        """The largest error of `call` relative to the largest output; ValueError where it is too large."""
        index = torch.arange(tokens, device=self.rows_RD.device) % len(self.rows_RD)
        wrong = (call(self.rows_RD[index]).double() - self.y_RO[index]).abs().max()
        error = float(wrong / self.y_RO.abs().max().clamp(min=1e-6))
        if not error <= self.tolerance:
            raise ValueError(
                f"the plan does not compute what the model computes: outputs differ by {error:.2g} of the largest at "
                f"{tokens} tokens, expected at most {self.tolerance:g}; it is refused"
            )
        return error


def limits(x: Tensor) -> tuple[float, float]:
    """Tolerance and margin for what `x` is; float32 products may be those of tf32, if torch was told so."""
    tf32 = x.is_cuda and x.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return TF32 if tf32 else LIMITS[x.dtype]


def _wide(linear: nn.Linear, x_RD: Tensor) -> Tensor:
    """In float64; the hooks of gates stay out of it."""
    return in_double(nn.Sequential(_bare(linear)))(x_RD)


def _bare(linear: nn.Linear) -> nn.Linear:
    bare = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    bare.weight = linear.weight
    bare.bias = linear.bias
    return bare


def errors_at(truth: Truth, call: Callable[[Tensor], Tensor], batches: Sequence[int]) -> dict[str, float]:
    """What a plan says of its check."""
    worst = max((truth.check(call, tokens) for tokens in batches), default=0.0)
    return {"rows": len(truth.rows_RD), "ties": truth.ties, "error": worst}
