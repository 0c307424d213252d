"""A gate network that names the context of an input by its nearest prototype, and opens the blocks of that context.

Nothing in it is trained by a gradient: prototypes are means of inputs. `dynamicgate.continual.Contexts` opens contexts
and learns their prototypes. Shapes in names: B rows, D features read, C contexts, G blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

UNUSED = -1


class ContextNet(nn.Module):
    """Prototypes, and which blocks each context opens. While no context is known, every block is open."""

    prototypes: Tensor
    counts: Tensor
    spread: Tensor
    opens: Tensor
    owners: Tensor
    serials: Tensor

    def __init__(self, features: int, blocks: int, contexts: int) -> None:
        """Room for `contexts` contexts, none of them known."""
        super().__init__()
        self.named: int | None = None
        """The context of all rows, where it is told; None: the nearest prototype says."""
        self.register_buffer("prototypes", torch.zeros(contexts, features))
        self.register_buffer("spread", torch.zeros(contexts))  # mean squared distance of rows to the prototype
        self.register_buffer("counts", torch.zeros(contexts, dtype=torch.long))  # rows a prototype is the mean of
        self.register_buffer("opens", torch.zeros(contexts, blocks, dtype=torch.bool))
        self.register_buffer("owners", torch.full((blocks,), UNUSED))  # the context whose own block it is
        self.register_buffer("serials", torch.full((contexts,), UNUSED))  # in which order contexts were opened

    @property
    def bias(self) -> nn.Parameter:
        """There is none."""
        raise ValueError(
            "a context opens its own blocks, so that no budget or calibration can move this gate: leave the budget out"
        )

    @property
    def known(self) -> Tensor:
        """Which contexts have a prototype."""
        return self.counts > 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one row: one product with each known prototype."""
        return int(self.known.sum()) * self.prototypes.shape[1]

    def closeness(self, x_BD: Tensor) -> Tensor:
        """How near each prototype is to each row: -|x - p|^2 / 2 without |x|^2, which is the same for all of them. One
        product for each prototype."""
        prototypes_CD = self.prototypes.float()
        return x_BD.float() @ prototypes_CD.T - 0.5 * prototypes_CD.square().sum(1)

    def nearest(self, x_BD: Tensor) -> Tensor:
        """The context with the nearest prototype, for each row; -1 while none is known."""
        nearest_B = self.closeness(x_BD).masked_fill(~self.known, -torch.inf).argmax(-1)
        return torch.where(self.known.any(), nearest_B, UNUSED)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Which blocks are open for each row, 0 or 1."""
        if self.named is not None:
            return self.opens[self.named].float().expand(*x_BD.shape[:-1], -1)
        nearest_B = self.nearest(x_BD.detach())
        return torch.where((nearest_B == UNUSED)[..., None], 1.0, self.opens[nearest_B.clamp(min=0)].float())

    @torch.no_grad()
    def learn_(self, context: int, x_BD: Tensor) -> None:
        """Make these rows part of the mean of a context."""
        x_BD = x_BD.flatten(0, -2).float()
        before, new = self.counts[context], len(x_BD)
        mean_D, old_D = x_BD.mean(0), self.prototypes[context].float()
        share = new / (before + new)
        within = (x_BD - mean_D).square().sum(1).mean()
        between = (mean_D - old_D).square().sum() * (before > 0)
        spread = (1 - share) * self.spread[context] + share * within + share * (1 - share) * between
        self.prototypes[context] = (old_D + share * (mean_D - old_D)).to(self.prototypes)
        self.spread[context] = spread
        self.counts[context] += new

    @torch.no_grad()
    def strangeness(self, x_BD: Tensor) -> Tensor:
        """For each known context how far the mean of these rows is from its prototype, relative to what chance makes of
        the mean of so many rows: about 1 for rows of that context. Infinite for contexts that are not known."""
        x_BD = x_BD.flatten(0, -2).float()
        apart_C = (x_BD.mean(0) - self.prototypes.float()).square().sum(1)
        chance_C = self.spread * (1.0 / len(x_BD) + 1.0 / self.counts.clamp(min=1))
        return torch.where(self.known, apart_C / chance_C.clamp(min=1e-12), torch.inf)

    @torch.no_grad()
    def forget_(self, context: int) -> None:
        """Free the place and the blocks of a context. Blocks that others open too are not free: they are those of the
        oldest of them."""
        self.prototypes[context], self.spread[context], self.counts[context] = 0.0, 0.0, 0
        self.opens[context] = False
        self.serials[context] = UNUSED
        left = self.owners == context
        self.owners[left] = UNUSED
        for heir in self.serials.argsort(descending=True).tolist():  # the oldest comes last
            self.owners[left & self.opens[heir]] = heir
