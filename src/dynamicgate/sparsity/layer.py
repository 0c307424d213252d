"""`SparseLayer`: a Linear layer with a mask, and the regions in which its connections compete."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dynamicgate.sparsity.activity import Endpoints
from dynamicgate.sparsity.patterns import Pattern
from dynamicgate.sparsity.regions import SparseRegion
from dynamicgate.sparsity.sharded import whole


@dataclass(eq=False)
class SparseLayer:
    """One Linear layer with a mask."""

    name: str
    linear: nn.Linear
    pattern: Pattern
    regions: list[SparseRegion]
    """One for each stage; one, the whole matrix, for a layer without stages."""
    endpoints: Endpoints
    explored: Tensor
    tied: tuple[nn.Linear, ...] = ()
    """Other layers with the same weight: they have the same mask."""
    churn: float = 0.0
    newly_grown: Tensor | None = None
    """Flat indices of the connections grown at the last update that have not taken an optimizer step since."""

    @property
    def weight(self) -> nn.Parameter:
        """The weights; those of missing connections are zero."""
        return self.linear.weight  # type: ignore[return-value]

    @property
    def whole_weight(self) -> Tensor:
        """The weights without a gradient, of all processes if FSDP shards them."""
        return whole(self.weight.detach())

    @property
    def mask(self) -> Tensor:
        """Which connections exist."""
        return self.linear.mask  # type: ignore[return-value]

    @property
    def count(self) -> int:
        """How many connections exist."""
        return int(self.mask.count_nonzero())

    @property
    def density(self) -> float:
        """The fraction of the whole weight matrix that exists at the end of training."""
        if len(self.regions) == 1:
            return self.regions[0].density
        return sum(region.wanted for region in self.regions) / self.mask.numel()

    def count_in(self, region: SparseRegion) -> int:
        """How many connections exist in a region."""
        return int(self.mask[region.at].count_nonzero())

    def called(self, region: SparseRegion) -> str:
        """The name of a region in a message."""
        return f"stage {region.stage + 1} of {self.name!r}" if len(self.regions) > 1 else repr(self.name)

    def __str__(self) -> str:
        text = f"{self.name}  {list(self.mask.shape)}  {self.pattern.name}  "
        text += f"density {self.count / self.mask.numel():.4f}"
        if len(self.regions) == 1:
            return text
        return f"{text}, by stage {', '.join(f'{self.count_in(r) / r.shape.numel():.4f}' for r in self.regions)}"
