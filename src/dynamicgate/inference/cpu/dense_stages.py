"""Stages in plain torch: all of them for every row, then the outputs of the stage at which a row stops.

Shapes in names: B rows (any leading dimensions), D features, N units, K stages, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.chain.stages import score_of, stop_rows


class DenseStages(nn.Module):
    """Whole layers, one after the other, as in the model."""

    cut: Tensor

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None],
        heads: Sequence[ops.chain.Head],
        cut: Tensor,
        *,
        activations: Sequence[str],
        decide: str,
        ends: Sequence[int],
    ) -> None:
        """Weights and biases are those of whole Linears; `ends` says where the stages of the last hidden layer end."""
        super().__init__()
        self.activations, self.decide, self.ends = tuple(activations), decide, tuple(ends)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight_{i}", weight)
            self.register_buffer(f"bias_{i}", bias)
        for k, head in enumerate(heads):
            self.register_buffer(f"head_weight_{k}", head.weight)
            self.register_buffer(f"head_bias_{k}", head.bias)
        self.register_buffer("cut", cut)

    def forward(self, x_BD: Tensor, factor: None = None) -> Tensor:
        """The outputs."""
        h_BN = x_BD
        last = len(self.activations) - 1
        for i, activation in enumerate(self.activations[:last]):
            h_BN = ACTIVATIONS[activation].function(F.linear(h_BN, *self._linear(f"{{}}_{i}")))
        weight_CN, bias_C = self._linear(f"{{}}_{last}")
        outputs = [F.linear(h_BN[..., :end], weight_CN[:, :end], bias_C) for end in self.ends]
        scores = []
        for k, (end, z_BC) in enumerate(zip(self.ends[:-1], outputs, strict=False)):
            from_head_B = None
            if self.decide == "head":
                from_head_B = F.linear(h_BN[..., :end], *self._linear(f"head_{{}}_{k}"))[..., 0]
            scores.append(score_of(self.decide, z_BC, from_head_B))
        return stop_rows(outputs, torch.stack(scores, dim=-1), self.cut)

    def _linear(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self._buffers[name.format("weight")], self._buffers[name.format("bias")]  # type: ignore[return-value]

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {
            "kind": "dense stages",
            "activations": self.activations,
            "decide": self.decide,
            "ends": self.ends,
        }

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DenseStages:
        """The inverse of `describe`, with the buffers."""
        if not all(name in ACTIVATIONS for name in described["activations"]):
            raise ValueError(f"activations must be known, received {described['activations']!r:.80}")
        layers = range(len(described["activations"]))
        count = len(described["ends"]) - 1 if described["decide"] == "head" else 0
        heads = [ops.chain.Head(tensors[f"head_weight_{k}"], tensors.get(f"head_bias_{k}")) for k in range(count)]
        return DenseStages(
            [tensors[f"weight_{i}"] for i in layers],
            [tensors.get(f"bias_{i}") for i in layers],
            heads,
            tensors["cut"],
            **{key: described[key] for key in ("activations", "decide", "ends")},
        )
