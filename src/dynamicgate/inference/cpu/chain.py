"""A chain as a module: for every regime of batch sizes the form that was fastest there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.inference.cpu.candidates import RouterInTorch, below, build_form
from dynamicgate.inference.cpu.lower import scaled_features


class Chain(nn.Module):
    """Runs rows of features; nothing is written in a call, so that threads may share it."""

    def __init__(
        self,
        forms: Sequence[nn.Module],
        at: Sequence[int],
        batches: Sequence[int],
        inputs: int,
        *,
        router: RouterInTorch | None = None,
        norm_eps: float | None = None,
        rows_only: bool = False,
    ) -> None:
        """`at[i]` is the form for `batches[i]` rows; between two batch sizes the nearer on a log scale counts."""
        super().__init__()
        self.use_(forms, at, batches)
        self.inputs, self.norm_eps, self.rows_only = inputs, norm_eps, rows_only
        self.router = router
        self._route = None if router is None else router.forward
        self._features = (inputs,)

    def use_(self, forms: Sequence[nn.Module], at: Sequence[int], batches: Sequence[int]) -> None:
        """Run `forms[at[i]]` for `batches[i]` rows."""
        self.forms = nn.ModuleList(forms)
        self.at, self.batches = tuple(at), tuple(batches)
        # One form needs no comparison, so that an export may leave the number of rows open.
        self.limits = tuple(int((a * b) ** 0.5) for a, b in pairwise(batches)) if len(set(at)) > 1 else ()
        # Called without the ceremony of modules, which takes longer than a small network at batch 1 (3 x 8 us).
        self._runs = tuple(forms[index].forward for index in at)

    def forward(self, x: Tensor) -> Tensor:
        """The chain's outputs for `x` [..., inputs]."""
        if x.dtype is not torch.float32 or not x.is_cpu or x.shape[-1:] != self._features:
            raise ValueError(
                f"expected float32 on the cpu with {self.inputs} features in the last dimension, "
                f"received {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        if self.rows_only and x.ndim != 2:
            raise ValueError(f"a batch norm was folded in: expected [rows, {self.inputs}], received {tuple(x.shape)}")
        run = self._runs[self.regime_of(x)]
        if self.norm_eps is not None:
            x = scaled_features(x, self.norm_eps)
        return run(x, self._route(x)) if self._route is not None else run(x)

    def regime_of(self, x: Tensor) -> int:
        """Which of the batch sizes is nearest to that of `x`."""
        for regime, limit in enumerate(self.limits):
            if x.numel() <= limit * self.inputs:
                return regime
        return len(self.at) - 1

    def describe(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {
            "at": self.at,
            "batches": self.batches,
            "inputs": self.inputs,
            "norm_eps": self.norm_eps,
            "rows_only": self.rows_only,
            "router": None if self.router is None else self.router.describe(),
            "forms": [form.describe() for form in self.forms],  # type: ignore[operator]
        }

    @staticmethod
    def built(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Chain:
        """From `describe` and the buffers."""
        forms = [build_form(f, below(tensors, f"forms.{i}")) for i, f in enumerate(about["forms"])]
        router = RouterInTorch.built(about["router"], below(tensors, "router")) if about["router"] else None
        rest = {key: about[key] for key in ("norm_eps", "rows_only")}
        return Chain(forms, about["at"], about["batches"], about["inputs"], router=router, **rest)
