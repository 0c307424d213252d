"""What every case does: spoil inputs with NaN and infinities, and compare with float64."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from dynamicgate.inference.gpu.verify import LIMITS
from tests.fuzz.gpu.menu import ODD

ENOUGH = 256  # numbers: of so many the largest is not small by chance
AGAIN = 8
Results = dict[str, Tensor]


def spoil_(x: Tensor, rng: random.Random, often: float = 0.4) -> Tensor:
    """Put NaN and infinities into some rows, in `often` of all inputs; says which rows."""
    odd = torch.zeros(len(x), dtype=torch.bool)
    if rng.random() < often:
        for row in rng.sample(range(len(x)), min(len(x), rng.choice((1, 1, 2, 5)))):
            odd[row] = True
            for _ in range(rng.choice((1, 1, 3))):
                x[row, rng.randrange(x.shape[1])] = rng.choice(ODD)
    return odd.to(x.device)


def poison(device: torch.device) -> None:
    """Leave NaN in memory that torch will hand out again: for what cannot run under deterministic algorithms, where
    torch itself fills memory that nobody has written."""
    if device.type == "cuda":
        held = [torch.full((n,), torch.nan, device=device) for n in (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24)]
        torch.cuda.synchronize(device)
        del held


def misplaced(found: Tensor, right: Tensor) -> str | None:
    """Whether NaN or infinities are elsewhere than they should be."""
    if found.shape != right.shape:
        return f"shape {tuple(found.shape)}, expected {tuple(right.shape)}"
    wrong = (found.isnan() != right.isnan()) | ((found == torch.inf) != (right == torch.inf))
    wrong |= (found == -torch.inf) != (right == -torch.inf)
    if not bool(wrong.any()):
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    count = f"{int(wrong.sum())} of {wrong.numel()}"
    return f"{count} NaN or infinite in the wrong places: {found[at]} at {at} for {right[at]}"


def compare(
    once: Callable[[int], tuple[Results, Results]], tolerance: float | dict[str, float], dtype: torch.dtype
) -> str | None:
    """What is wrong with the results of `once`, which are its own and those in float64, by name.

    NaN and infinities must be in the same places, and the others apart by less than the tolerance, relative to the
    norm. In the result "y" also none may be apart by more than compile allows of the largest. A few numbers may be
    small by chance, because their terms cancel: then `once` is asked again, with other signs of the terms (0: those of
    the case), and all answers together must be within the tolerance.
    """
    found, right = once(0)
    for name in right:
        if said := misplaced(found[name], right[name]):
            return f"{name}: {said}"
        limit = tolerance if isinstance(tolerance, float) else tolerance[name]
        wrong, size = _norms(found[name], right[name])
        if wrong <= limit * size:
            continue
        pairs = [once(number) for number in range(1, AGAIN + 1)]
        norms = [(wrong, size), *(_norms(f[name], r[name]) for f, r in pairs)]
        wrong, size = (float(torch.tensor(each, dtype=torch.float64).norm()) for each in zip(*norms, strict=True))
        if not wrong <= limit * size:
            return f"{name}: wrong by {wrong / max(size, 1e-30):.3g}, expected at most {limit:g}"
    if "y" in right and right["y"].numel() >= ENOUGH:
        finite = right["y"].isfinite()
        apart = (found["y"].double() - right["y"])[finite].abs()
        largest = right["y"][finite].abs()
        if apart.numel() and not float(apart.max()) <= LIMITS[dtype][0] * float(largest.max()):
            return f"y: an output is wrong by {float(apart.max() / largest.max()):.3g} of the largest"
    return None


def _norms(found: Tensor, right: Tensor) -> tuple[float, float]:
    finite = right.isfinite()
    return float((found.double() - right)[finite].norm()), float(right[finite].norm())
