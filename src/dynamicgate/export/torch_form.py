"""A chain in plain torch operators, which torch.export and AOTInductor know.

Shapes in names: B rows, N units, C outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.export.chains import ChainParts
from dynamicgate.inference.cpu.layers import DenseLayers, dense_layer
from dynamicgate.inference.cpu.lower import scaled_features
from dynamicgate.inference.gates import GateInTorch, RouterInTorch
from dynamicgate.ops.chain.stages import Staged, score_of


class ChainInTorch(nn.Module):
    """A chain whose closed units are multiplied by zero, or whose later stages see only the rows that open them."""

    def __init__(self, parts: ChainParts, *, skip: bool) -> None:
        """skip: for stages, leave out rows that stop."""
        super().__init__()
        self.norm_eps, self.outputs = parts.norm_eps, parts.outputs
        router = parts.router
        self.router = None if router is None else RouterInTorch(GateInTorch(router.net), router.k, router.tau)
        self.layers: nn.Module
        if parts.staged is not None:
            self.layers = _Stages(parts.staged, skip=skip)
        else:
            self.layers = DenseLayers([dense_layer(layer, panels=False) for layer in parts.layers])

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x` [..., features]."""
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        if self.norm_eps is not None:
            rows = scaled_features(rows, self.norm_eps)
        out = self.layers(rows) if self.router is None else self.layers(rows, self.router(rows))
        return out if x.ndim == 2 else out.reshape(*x.shape[:-1], self.outputs)


class _Stages(nn.Module):
    """Stages one after the other. Rows that stop are taken out: a product with no rows costs nothing."""

    def __init__(self, staged: Staged, *, skip: bool) -> None:
        super().__init__()
        self.cut, self.decide, self.skip = staged.cut, staged.decide, skip
        self.activations = [layer.activation for layer in staged.stages[0]]
        self.count = len(staged.stages)
        for k, stage in enumerate(staged.stages):
            for i, layer in enumerate(stage):
                self._hold(f"{k}_{i}", layer.weight, layer.bias)
        for k, head in enumerate(staged.heads):
            self._hold(f"head_{k}", head.weight, head.bias)

    def _hold(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        self.register_buffer(f"weight_{name}", weight.detach().contiguous())
        self.register_buffer(f"bias_{name}", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the stage at which each row stops."""
        return self._from(0, x, [[] for _ in self.activations[:-1]], None)

    def _from(self, k: int, x: Tensor, hidden: list[list[Tensor]], outputs: Tensor | None) -> Tensor:
        below, found = [x], []
        for i, (before, activation) in enumerate(zip(hidden, self.activations[:-1], strict=True)):
            units = ACTIVATIONS[activation].function(self._linear(f"{k}_{i}", torch.cat(below, dim=-1)))
            below = [*before, units]
            found.append(below)
        added = self._linear(f"{k}_{len(hidden)}", found[-1][-1])
        outputs = added if outputs is None else outputs + added
        if k + 1 == self.count:
            return outputs
        from_head = self._linear(f"head_{k}", torch.cat(found[-1], dim=-1))[:, 0] if self.decide == "head" else None
        opens_B = score_of(self.decide, outputs, from_head) > self.cut[k]
        if not self.skip:
            return torch.where(opens_B[:, None], self._from(k + 1, x, found, outputs), outputs)
        index = opens_B.nonzero()[:, 0]
        kept = [[units[index] for units in of_layer] for of_layer in found]
        later = self._from(k + 1, x[index], kept, outputs[index])
        return outputs.index_put((index,), later)

    def _linear(self, name: str, h: Tensor) -> Tensor:
        return F.linear(h, self._buffers[f"weight_{name}"], self._buffers[f"bias_{name}"])  # type: ignore[arg-type]
