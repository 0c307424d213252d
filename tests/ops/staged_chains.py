"""Random chains in stages for the tests, and which of their rows rounding cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dynamicgate.ops import chain
from dynamicgate.ops.chain.stages import score_stages, stop_rows
from tests.ops.chains import sparse_for

MARGIN = 1e-4  # a score closer to its cut may fall on either side in float32


def build_staged(
    sizes: list[list[int]],
    *,
    inputs: int = 37,
    outputs: int = 10,
    layout: str | list[str] = "panels",
    activation: str = "relu",
    decide: str = "margin",
    skip_zeros: bool = False,
    seed: int = 1,
) -> chain.Staged:
    """A chain with `sizes[i][k]` units of stage k in hidden layer i, every cut at the median score of its stage."""
    generator = torch.Generator().manual_seed(seed)

    def part(units: int, reads: int, which: str, phi: str, bias: bool) -> chain.Layer:
        weight = torch.randn(units, reads, generator=generator) * (2 / reads) ** 0.5
        weight = sparse_for(which, weight, 0.35, generator)
        skip = skip_zeros and which in ("panels", "vectors")
        return chain.Layer(weight, torch.randn(units, generator=generator) if bias else None, phi, 0, None, which, skip)

    stages, heads = [], []
    layouts = iter([layout] * 99 if isinstance(layout, str) else layout * 9)
    for k in range(len(sizes[0])):
        reads = inputs
        layers = []
        for of_layer in sizes:
            layers.append(part(of_layer[k], reads, next(layouts), activation, True))
            reads = sum(of_layer[: k + 1])
        layers.append(part(outputs, sizes[-1][k], next(layouts), "identity", k == 0))
        stages.append(tuple(layers))
        if decide == "head" and k + 1 < len(sizes[0]):
            weight = torch.randn(1, reads, generator=generator) * reads**-0.5
            heads.append(chain.Head(weight, torch.randn(1, generator=generator)))
    cuts = (0.0,) * (len(stages) - 1)
    staged = chain.Staged(tuple(stages), cuts, decide, tuple(heads))
    score_BK = score_stages(rows_for(staged, 501).double(), staged).score_BK
    return replace(staged, cut=tuple(float(cut) for cut in score_BK.median(0).values))


def rows_for(staged: chain.Staged, rows: int, stride: str = "rows", zeros: float = 0.3) -> Tensor:
    """Inputs with exact zeros, in one of three memory layouts."""
    generator = torch.Generator().manual_seed(rows)
    features = staged.stages[0][0].weight.shape[1]
    x = torch.randn(rows, features, generator=generator)
    x[torch.rand(rows, features, generator=generator) < zeros] = 0.0
    if stride == "columns":
        return x.T.contiguous().T
    if stride == "wide":
        return torch.cat((x, torch.full_like(x, torch.nan)), dim=1)[:, :features]
    return x


def expect_staged(x: Tensor, staged: chain.Staged) -> tuple[Tensor, Tensor, Tensor]:
    """The float64 result, the stage at which each row stops, and the rows that no rounding could stop elsewhere."""
    outputs, score_BK = score_stages(x.double(), staged)
    cut_K = torch.tensor(staged.cut).double()
    opened = torch.cumprod((score_BK > cut_K).long(), dim=1)
    near = ((score_BK - cut_K).abs() < MARGIN) & torch.nn.functional.pad(opened, (1, -1), value=1).bool()
    return stop_rows(outputs, score_BK, cut_K), opened.sum(1), ~near.any(1)


def assert_close_staged(results: Sequence[Tensor], x: Tensor, staged: chain.Staged) -> None:
    """Compare with float64, relative to the largest result of a row: sums in another order differ by what their terms
    are, also where these cancel (squared ReLUs are large)."""
    expected, _, clear = expect_staged(x, staged)
    assert clear.double().mean() >= 0.9
    largest = expected.abs().amax(-1, keepdim=True)[clear]
    for y in results:
        assert y.shape == expected.shape
        assert y.dtype == torch.float32
        error = (y.double() - expected).abs()[clear]
        assert (error <= 2e-5 * (1.0 + largest)).all(), f"error {error.max():.3g}"
