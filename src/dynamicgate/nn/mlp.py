"""An MLP whose hidden units are gated: the network of the paper (sec 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dynamicgate.gating.attach import Where, gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.where import hidden
from dynamicgate.nn.normalize import Normalize

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class GatedMLP(nn.Module):
    """An MLP with a gate on each hidden layer.

    With gates, layer l computes (sec 3)::

        g^(l) = 1[sigmoid(GateNet(h^(l-1)) / tau) > theta]
        h^(l) = g^(l) * phi(W^(l) h^(l-1) + b^(l))

    The gate on the output of ``layers[i]`` is a child of the layer that consumes it, ``layers[i + 1].gate``; see
    `dynamicgate.gating.attach`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        gate: GateConfig | None = None,
        *,
        where: Where = hidden,
        activation: str = "relu",
        dropout: float = 0.0,
        normalize: Normalize | None = None,
    ) -> None:
        """`sizes` = (inputs, hidden..., outputs). Without `gate` the network is dense; `gate_` can gate it later."""
        super().__init__()
        if len(sizes) < 2 or any(size < 1 for size in sizes):
            raise ValueError(f"sizes are (inputs, hidden..., outputs), all >= 1, received {tuple(sizes)}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, received {activation!r}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), received {dropout}")
        self.sizes = tuple(sizes)
        self.activation = activation
        self.normalize = normalize or nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.act = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        if gate is not None:
            gate_(self, gate, where)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores for a batch of flat inputs, one row per sample."""
        h = self.normalize(x)
        for layer in self.layers[:-1]:
            h = self.dropout(self.act(layer(h)))  # the gate of the next layer zeroes the units it closed
        logits: Tensor = self.layers[-1](h)
        return logits
