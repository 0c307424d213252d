"""`FitOptions`: the arguments of `fit` that decide the result of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The arguments of `fit` that determine the result; `fit` describes them."""

    epochs: int = 10
    batch: int = 128
    lr: float = 2e-3
    gate_lr_scale: float = 1.0
    weight_decay: float = 0.01
    warmup: float = 0.05
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False
    label_smoothing: float = 0.0
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be 1 or more, received {value!r}")
        if not (isinstance(self.seed, Integral) and 0 <= self.seed < 1 << 63):
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, received {self.seed!r}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"the learning rate must be positive, received {self.lr}")
        if not 0 < self.gate_lr_scale < math.inf:
            raise ValueError(f"gate_lr_scale is relative to lr and must be positive, received {self.gate_lr_scale}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more, received {self.weight_decay}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is the largest gradient norm and must be positive, received {self.clip}")
        if self.patience is not None and not self.patience >= 1:
            raise ValueError(f"patience is a number of epochs, 1 or more, received {self.patience}")

    def learning_rate(self, step: int, total: int, peak: float | None = None) -> float:
        """Linear warm-up to `peak`, which is `lr` unless said otherwise, then a cosine to zero."""
        rise = min(1.0, (step + 1) / max(1.0, self.warmup * total))
        return (self.lr if peak is None else peak) * rise * 0.5 * (1.0 + math.cos(math.pi * step / total))
