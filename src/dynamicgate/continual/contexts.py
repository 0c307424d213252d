"""Contexts of a model with context gates: open one, name it, learn its prototype, keep its blocks, notice a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from dynamicgate.gating.context import UNUSED, ContextNet
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.masks import connections
from dynamicgate.modules import evaluating, unwrap
from dynamicgate.sparsity import Keeper, Sparsifier
from dynamicgate.sparsity.free_places import draw_weights_

STRANGE = 5.0  # times what chance makes of the mean of a batch
PROTOTYPE_ROWS = 5000


class Contexts:
    """The contexts of a model whose gates are of kind "context".

    Where boundaries are known, call `open_` before a task and `close_(rows)` after it, with rows of the task. Where
    nothing is known, call `notice_(x)` before the step on each batch: it opens a context when a batch is like none of
    the known ones. In testing, the prototypes name the context of every row; `told(number)` tells it instead.

    keeper: keeps the blocks of a context to the bit when it is closed. sparsifier: begins anew with each context.
    share: how many blocks of each gate a context owns; None: as many as there are, divided by the contexts of the gate.
    blocks: "own" gives every context blocks of its own; "random" draws `share` of all blocks, which then overlap (as
        context-dependent gating does, Masse 2018), and keeps nothing.
    reuse: how many of the contexts that are most like a new one it opens as well: it reads what they have learned.
    release: where no block is free, release the oldest context instead of an error.
    strange: how far the mean of a batch must be from every prototype to be a new context, relative to what chance makes
        of it. Batches of a known context are at 1; the fewer features vary on their own, the more they scatter.
    """

    def __init__(
        self,
        model: nn.Module,
        keeper: Keeper | None = None,
        sparsifier: Sparsifier | None = None,
        *,
        share: int | None = None,
        blocks: Literal["own", "random"] = "own",
        reuse: int = 0,
        release: bool = False,
        strange: float = STRANGE,
        seed: int = 0,
    ) -> None:
        """Go on with the contexts that the model knows."""
        self.model, self.keeper, self.sparsifier = unwrap(model), keeper, sparsifier
        self.gates = named_gates(model)
        if not self.gates or any(gate.config.kind != "context" for gate in self.gates.values()):
            raise ValueError("expected a model with gates of kind 'context' only: gate_(model, GateConfig(kind=...))")
        if blocks == "random" and keeper is not None:
            raise ValueError("blocks='random' overlap, so that none can be kept: leave the keeper out, or use 'own'")
        if reuse < 0 or not strange > 1.0 or (share is not None and share < 1):
            raise ValueError(
                f"expected share >= 1, reuse >= 0 and strange > 1, received {share}, {reuse} and {strange}"
            )
        self.share, self.blocks, self.reuse, self.release, self.strange = share, blocks, reuse, release, strange
        self.seed = seed
        self.current: int | None = None

    @property
    def settings(self) -> dict[str, float | str | None]:
        """What a run that continues this one must share."""
        return {name: getattr(self, name) for name in ("share", "blocks", "reuse", "release", "strange", "seed")}

    @property
    def nets(self) -> dict[str, ContextNet]:
        """The gate networks by site; the first one reads the input."""
        return {site: gate.net for site, gate in self.gates.items()}  # type: ignore[misc]

    @property
    def first(self) -> ContextNet:
        """The one that reads the input, or what comes first after it."""
        return next(iter(self.nets.values()))

    @property
    def known(self) -> list[int]:
        """The numbers of the contexts that are known, from the oldest to the newest."""
        serials = self.first.serials.tolist()
        return sorted((c for c, serial in enumerate(serials) if serial != UNUSED), key=lambda c: serials[c])

    @property
    def opened(self) -> int:
        """How many contexts were opened so far, released ones included."""
        return 1 + int(self.first.serials.max())

    def own_units(self, context: int) -> dict[str, Tensor]:
        """For each site the units that belong to a context."""
        return {site: gate.per_unit(self.nets[site].owners == context) for site, gate in self.gates.items()}

    def open_units(self, context: int) -> dict[str, Tensor]:
        """For each site the units that a context opens: its own, and those it reuses."""
        return {site: gate.per_unit(self.nets[site].opens[context]) for site, gate in self.gates.items()}

    @torch.no_grad()
    def open_(self, x: Tensor | None = None) -> int:
        """Open a new context for what comes next and name it; returns its number. x: some rows, needed for `reuse`."""
        if self.current is not None:
            raise ValueError(f"context {self.current} is still open: call close_ first")
        serial = self.opened
        number = self._place()
        like = self._most_like(x)
        for position, (site, gate) in enumerate(self.gates.items()):
            net = self.nets[site]
            chosen = self._choose(gate, net, serial, position)
            if self.blocks == "own":
                net.owners[chosen] = number
            net.opens[number] = chosen
            for other in like:
                net.opens[number] |= net.owners == other
            net.serials[number] = serial
        self._begin(number)
        if self.keeper is not None:
            self.keeper.allot_(self.own_units(number), self.open_units(number))
            self._draw_units_(serial)
        if self.sparsifier is not None and self.keeper is not None:
            self.sparsifier.restart_()
        return number

    @torch.no_grad()
    def close_(self, x: Tensor | None = None) -> None:
        """End the context that is open: learn its prototypes from rows `x`, and keep its blocks. Without rows the
        prototypes are those that `notice_` has learned."""
        if self.current is None:
            raise ValueError("no context is open: call open_ first")
        number = self.current
        if x is not None:
            for net in self.nets.values():
                net.counts[number] = 0
            for rows in x[:PROTOTYPE_ROWS].split(500):
                for net, read in self._read(rows):
                    net.learn_(number, read)
        if self.keeper is not None:
            used = self.open_units(number)  # those it reuses too: they stay when their owner is released
            self.keeper.keep_(used, context=int(self.first.serials[number]))
        self.name_(None)
        self.current = None

    @torch.no_grad()
    def notice_(self, x: Tensor) -> int:
        """The context of a batch: the known one that it is like, or a new one, which is opened. Call it before the step
        on the batch, where nothing is known of boundaries. A batch needs several rows: one alone never opens a context.
        """
        (_, read), *others = self._read(x, named=self.current)
        strange_C = self.first.strangeness(read)
        best = int(strange_C.argmin())
        found = best if float(strange_C[best]) < self.strange else None
        if read.flatten(0, -2).shape[0] == 1:
            found = self._of_one_row(best)
        if self.current is not None and found != self.current:
            self.close_()
        if self.current is None and found is None:
            found = self.open_(x)
            (_, read), *others = self._read(x, named=found)
        elif self.current is None:
            assert found is not None
            self._begin(found)
            if self.keeper is not None:  # what is kept stays: there is nothing to learn in a context that was closed
                none = {site: torch.zeros_like(units) for site, units in self.own_units(found).items()}
                self.keeper.allot_(none)
        assert found is not None
        for net, rows in ((self.first, read), *others):
            net.learn_(found, rows)
        return found

    def _of_one_row(self, nearest: int) -> int:
        """One row tells no change: it belongs to the context that is open, or to the nearest one."""
        if not self.known:
            raise ValueError(
                "a context is known by the mean of several rows, and the first batch has one: use a larger batch"
            )
        return nearest if self.current is None else self.current

    @torch.no_grad()
    def release_(self, context: int) -> None:
        """Forget a context: its blocks and its place are free again."""
        serial = int(self.first.serials[context])
        for net in self.nets.values():
            net.forget_(context)
        if self.keeper is not None:
            self.keeper.release_(serial)

    def name_(self, context: int | None) -> None:
        """Tell the context of all rows from now on; None: the prototypes name it."""
        for net in self.nets.values():
            net.named = context

    @contextmanager
    def told(self, context: int | None) -> Iterator[None]:
        """The context of all rows is told inside of this; None: it is not, whatever is open."""
        before = self.first.named
        self.name_(context)
        try:
            yield
        finally:
            self.name_(before)

    def _begin(self, number: int) -> None:
        self.current = number
        self.name_(number)

    def _place(self) -> int:
        """A free place for a context."""
        full = [f"all {len(net.counts)} contexts of {site!r} are taken" for site, net in self.nets.items()
                if not bool((net.serials == UNUSED).any())]  # fmt: skip
        if self.blocks == "own":
            full += [f"{site!r} has no {self._share(gate)} free blocks" for site, gate in self.gates.items()
                     if int((self.nets[site].owners == UNUSED).sum()) < self._share(gate)]  # fmt: skip
        if full and self.release and self.known:
            self.release_(self.known[0])
            return self._place()
        if full:
            raise ValueError(
                f"{'; '.join(full)}: give the model more contexts and blocks, or release the oldest by "
                "Contexts(..., release=True)"
            )
        return int((self.first.serials == UNUSED).nonzero()[0])

    def _share(self, gate: Gate) -> int:
        assert gate.config.contexts is not None
        return self.share or max(1, gate.blocks // gate.config.contexts)

    def _choose(self, gate: Gate, net: ContextNet, serial: int, position: int) -> Tensor:
        """The blocks that a new context gets."""
        share = self._share(gate)
        if self.blocks == "own":
            places = (net.owners == UNUSED).nonzero().flatten()[:share]
        else:
            draw = torch.Generator().manual_seed((self.seed * 1_000_003 + serial) * 101 + position)
            places = torch.randperm(gate.blocks, generator=draw)[:share]
        return torch.zeros(gate.blocks, dtype=torch.bool).index_fill(0, places.cpu(), True).to(net.opens.device)

    def _most_like(self, x: Tensor | None) -> list[int]:
        """The known contexts that are most like these rows."""
        if not self.reuse or not self.known:
            return []
        if x is None:
            raise ValueError("reuse asks which contexts are like the new one: pass some of its rows to open_")
        (_, read), *_ = self._read(x)
        order = self.first.strangeness(read).argsort().tolist()
        return [c for c in order if c in self.known][: self.reuse]

    def _read(self, x: Tensor, named: int | None = None) -> list[tuple[ContextNet, Tensor]]:
        """What each gate reads for these rows."""
        found: list[tuple[ContextNet, Tensor]] = []
        nets = list(self.nets.values())
        handles = [net.register_forward_pre_hook(lambda net, args: found.append((net, args[0]))) for net in nets]
        before = self.first.named
        self.name_(before if named is None else named)
        try:
            with torch.no_grad(), evaluating(self.model):
                self.model(x)
        finally:
            self.name_(before)
            for handle in handles:
                handle.remove()
        return sorted(found, key=lambda pair: nets.index(pair[0]))

    def _draw_units_(self, serial: int) -> None:
        """New weights for the layers around the gates, as a network of the size of one context would have them."""
        assert self.keeper is not None
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + serial)
        around = dict.fromkeys(
            name for site, gate in self.gates.items() for name in (*gate.site_at(site).producers, site)
        )
        for name in around:
            layer = self.model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            kept = self.keeper.kept(f"{name}.weight")
            assert kept is not None
            draw_weights_(layer, ~kept, generator)
            mask = connections(layer)
            if mask is not None:
                layer.weight.mul_(mask)
            locked = self.keeper.kept(f"{name}.bias")
            if layer.bias is not None and locked is not None:
                bound = max(1, int((~kept).sum(1).max())) ** -0.5
                drawn = bound * (2.0 * torch.rand(len(layer.bias), generator=generator) - 1.0)
                layer.bias.copy_(torch.where(locked, layer.bias, drawn.to(layer.bias)))
