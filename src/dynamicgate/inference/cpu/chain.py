"""A compiled chain as a module: for every range of batch sizes the implementation that was fastest there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.inference.cpu.layers import PackedLayers, layers_from_description
from dynamicgate.inference.cpu.lower import scaled_features
from dynamicgate.inference.gates import RouterInTorch, without_prefix


class Chain(nn.Module):
    """Runs rows of features. A call writes nothing, so threads may share it."""

    def __init__(
        self,
        implementations: Sequence[nn.Module],
        choice: Sequence[int],
        batches: Sequence[int],
        inputs: int,
        *,
        router: RouterInTorch | None = None,
        norm_eps: float | None = None,
        rows_only: bool = False,
    ) -> None:
        """Runs `implementations[choice[i]]` for `batches[i]` rows; in between, the nearer batch size on a log scale
        decides."""
        super().__init__()
        self.implementations = nn.ModuleList(implementations)
        self.choice, self.batches = tuple(choice), tuple(batches)
        self.inputs, self.norm_eps, self.rows_only = inputs, norm_eps, rows_only
        self.router = router
        # A single implementation needs no comparison, so that an export may leave the number of rows open.
        self.limits = tuple(int((a * b) ** 0.5) for a, b in pairwise(batches)) if len(set(choice)) > 1 else ()
        # Called without the overhead of modules, which takes longer than a small network at batch 1 (3 x 8 us).
        self._runs = tuple(implementations[index].forward for index in choice)
        self._route = None if router is None else router.forward
        self._features = (inputs,)
        # Packed layers that read x itself: the direct call checks what `forward` would check (14.2 -> 10.5 us).
        plain = router is None and norm_eps is None
        self._direct = tuple(m if plain and isinstance(m, PackedLayers) else None for m in self._chosen())

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x` [..., inputs]."""
        packed = self._direct[self.regime_of(x) if self.limits else -1]
        if packed is not None:
            y = ops.chain.run_directly(x, packed.packed)
            if y is not None:
                return y
        if (
            x.dtype is not torch.float32
            or not x.is_cpu
            or x.shape[-1:] != self._features
            or x.layout is not torch.strided
        ):
            layout = "" if x.layout is torch.strided else f" {x.layout}"
            raise ValueError(
                f"expected float32 on the cpu with {self.inputs} features in the last dimension, "
                f"received{layout} {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        if self.rows_only and x.ndim != 2:
            raise ValueError(f"a batch norm was folded in: expected [rows, {self.inputs}], received {tuple(x.shape)}")
        run = self._runs[self.regime_of(x)]
        if self.norm_eps is not None:
            x = scaled_features(x, self.norm_eps)
        return run(x, self._route(x)) if self._route is not None else run(x)

    def _chosen(self) -> list[nn.Module]:
        return [self.implementations[index] for index in self.choice]

    def regime_of(self, x: Tensor) -> int:
        """The index of the batch size that is nearest to that of `x`."""
        for regime, limit in enumerate(self.limits):
            if x.numel() <= limit * self.inputs:
                return regime
        return len(self.choice) - 1

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {
            "batches": self.batches,
            "choice": self.choice,
            "inputs": self.inputs,
            "norm_eps": self.norm_eps,
            "rows_only": self.rows_only,
            "router": None if self.router is None else self.router.describe(),
            "implementations": [layers.describe() for layers in self.implementations],  # type: ignore[operator]
        }

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Chain:
        """The inverse of `describe`, with the buffers; ValueError where the two do not fit."""
        _check_description(described)
        implementations = [
            layers_from_description(about, without_prefix(tensors, f"implementations.{i}"))
            for i, about in enumerate(described["implementations"])
        ]
        router = None
        if described["router"]:
            router = RouterInTorch.from_description(described["router"], without_prefix(tensors, "router"))
        rest = {key: described[key] for key in ("choice", "batches", "inputs", "norm_eps", "rows_only")}
        return Chain(implementations, router=router, **rest)


def _check_description(described: Mapping[str, Any]) -> None:
    """A description may come from a stranger's file: what a call would believe is checked once, here."""
    inputs, choice, batches, eps = (described[key] for key in ("inputs", "choice", "batches", "norm_eps"))
    count = len(described["implementations"])
    is_whole = [type(number) is int for number in (inputs, *choice, *batches)]
    if not all(is_whole) or min(inputs, *batches) < 1 or not all(0 <= index < count for index in choice):
        raise ValueError("a chain has a number of inputs, batch sizes, and a choice of implementation for each of them")
    if len(choice) != len(batches) or list(batches) != sorted(set(batches)):
        raise ValueError(f"a chain has one choice for each batch size, in rising order, received {batches!r:.60}")
    if eps is not None and not (isinstance(eps, float) and 0.0 <= eps < math.inf):
        raise ValueError(f"the eps of a norm is a small number, received {eps!r:.40}")
    if type(described["rows_only"]) is not bool:
        raise ValueError("rows_only is true or false")
