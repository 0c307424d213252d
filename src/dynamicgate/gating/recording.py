"""Recording what gates decide in a forward pass, alive only inside a `with` (sec 3.3, 4.1(1))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Decision, Gate
from dynamicgate.gating.integrations import Tokens, watch_tokens
from dynamicgate.gating.stages import StageDecision, stages_of
from dynamicgate.gating.work import Work
from dynamicgate.linears import outer_name
from dynamicgate.modules import unwrap


class Usage(Mapping[str, Decision]):
    """Decisions by site name, and those on stages. Several forward passes inside one `with` are concatenated. Padding
    is left out: a forward pass with padded sequences is recorded as the rows of its tokens."""

    def __init__(self, gates: Mapping[str, Gate], tokens: Tokens | None = None) -> None:
        """An empty recording for these gates, by site name. `tokens` says which rows count; None: all of them."""
        self._names = {gate: name for name, gate in gates.items()}
        self._tokens = tokens
        self._calls: dict[str, list[tuple[Decision, Tensor | None]]] = {name: [] for name in gates}
        self._joined: dict[str, tuple[int, Decision]] = {}
        self._indices: dict[tuple[int, torch.Size], Tensor | None] = {}
        self._stage_calls: list[StageDecision] = []

    def __call__(self, gate: Gate, decision: Decision) -> None:
        """Called by each gate as it decides."""
        counted = None if self._tokens is None else self._tokens.counted(gate)
        self._calls[self._names[gate]].append((decision, counted))

    def __getitem__(self, site: str) -> Decision:
        calls = self._calls[site]
        if not calls:
            raise ValueError(
                f"no forward pass reached the gate at {site!r} inside this `with dynamicgate.usage(...)`. If the model "
                "skips layers at random in training, turn that off (layerdrop=0): a budget counts every layer"
            )
        if len(calls) == 1 and calls[0][1] is None:
            return calls[0][0]
        if site not in self._joined or self._joined[site][0] != len(calls):  # joined once: a budget asks several times
            parts = [decision if mask is None else self._only(decision, mask) for decision, mask in calls]
            joined = parts[0] if len(parts) == 1 else Decision(*map(_rows, zip(*parts, strict=True)))
            self._joined[site] = (len(calls), joined)
        return self._joined[site][1]

    def _only(self, decision: Decision, counted_ST: Tensor) -> Decision:
        """The rows of a decision that count."""
        rows = decision.open.shape[:-1]
        key = id(counted_ST), rows  # found once for all gates: on a GPU every answer is a wait
        if key not in self._indices:
            self._indices[key] = _counted_index(rows, counted_ST)
        index = self._indices[key]
        return decision if index is None else Decision(*(value.flatten(0, -2)[index] for value in decision))

    def lengths(self, site: str) -> list[int]:
        """How many tokens of each sequence the gate of a site decided for; nothing where its rows are no sequences."""
        found: list[int] = []
        for decision, mask in self._calls[site]:
            rows = decision.open.shape[:-1]
            if mask is not None and mask.numel() == rows.numel():
                found += mask.bool().sum(1).tolist()
            elif len(rows) == 2:
                found += [rows[1]] * rows[0]
        return found

    @property
    def padded(self) -> bool:
        """Whether rows were left out."""
        masks = {id(mask): mask for calls in self._calls.values() for _, mask in calls if mask is not None}
        return any(not bool(mask.all()) for mask in masks.values())

    @property
    def work(self) -> Work | None:
        """How many tokens the forward passes had, and how many keys each looked at; None for a model without tokens."""
        return None if self._tokens is None else self._tokens.work()

    @property
    def stages(self) -> StageDecision | None:
        """The outputs, scores and decisions of each stage; None for a model without stages."""
        calls = self._stage_calls
        if len(calls) <= 1:
            return calls[0] if calls else None
        outputs = (_rows(parts) for parts in zip(*(call.outputs for call in calls), strict=True))
        score, opened = (_rows([getattr(call, name) for call in calls]) for name in ("score", "open"))
        return StageDecision(tuple(outputs), score, opened)

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def mean_p(self) -> dict[str, Tensor]:
        """Mean probability of each site, differentiable: the paper's rho (sec 3.3(1))."""
        return {site: self[site].p.mean() for site in self}

    def mean_open(self) -> dict[str, Tensor]:
        """Mean hard open rate of each site, as deployed."""
        return {site: self[site].open.mean() for site in self}


def _rows(calls: Sequence[Tensor]) -> Tensor:
    """The rows of one forward pass after those of the other."""
    return torch.cat([call.flatten(0, -2) for call in calls])


def _counted_index(rows: torch.Size, counted_ST: Tensor) -> Tensor | None:
    """Where the rows are that count; None if all do. S sequences of T positions; with a cache a gate reads only the
    last ones."""
    if len(rows) == 2:
        counted_ST = counted_ST[:, -rows[1] :]
    index = counted_ST.flatten().nonzero().flatten()
    if len(index) == rows.numel():
        return None  # nothing is padded, or the model itself has taken padding out
    if counted_ST.numel() != rows.numel():
        raise ValueError(
            f"a gate decided for {list(rows)} rows, but the attention mask has the shape {list(counted_ST.shape)}: "
            "expected one entry for each position"
        )
    return index


def named_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of `model` on units, by site name, in module order; `stages_of` gives the one on stages.

    A site is named after its consumer as `model` sees it, so the same gate has a shorter name in a part of the model,
    and the same name whether an adapter such as LoRA wraps the consumer or not.
    `gate.site_at(name)` gives all names of its site from the same point of view.
    """
    return {
        outer_name(path.removesuffix("gate").removesuffix(".")): module
        for path, module in unwrap(model).named_modules()
        if isinstance(module, Gate)
    }


@contextmanager
def usage(model: nn.Module) -> Iterator[Usage]:
    """Record what every gate of `model` decides inside the block; empty for a model without gates.

    >>> with usage(model) as used:
    ...     loss = F.cross_entropy(model(x), y)
    >>> used["2"].open
    """
    gates = named_gates(model)
    with watch_tokens(unwrap(model), gates) as tokens, _recorded(model, gates, Usage(gates, tokens)) as used:
        yield used


@contextmanager
def usage_of_all_rows(model: nn.Module) -> Iterator[Usage]:
    """The same where nothing is padding. Which rows are tokens is then not asked, and a GPU need not answer."""
    gates = named_gates(model)
    with _recorded(model, gates, Usage(gates)) as used:
        yield used


@contextmanager
def _recorded(model: nn.Module, gates: Mapping[str, Gate], used: Usage) -> Iterator[Usage]:
    stages = stages_of(model)
    before = {name: gate.watcher for name, gate in gates.items()}
    stages_before = None if stages is None else stages.watcher
    try:
        for gate in gates.values():
            gate.watcher = used
        if stages is not None:
            stages.watcher = used._stage_calls.append
        yield used
    finally:
        for name, gate in gates.items():
            gate.watcher = before[name]
        if stages is not None:
            stages.watcher = stages_before


@contextmanager
def unrecorded(model: nn.Module) -> Iterator[None]:
    """Forward passes inside the block are left out of any `usage` of this thread: for passes that only count costs."""
    gates: list[Any] = [*named_gates(model).values()]
    stages = stages_of(model)
    gates += [] if stages is None else [stages]
    watchers = [gate.watcher for gate in gates]
    for gate in gates:
        gate.watcher = None
    try:
        yield
    finally:
        for gate, watcher in zip(gates, watchers, strict=True):
            gate.watcher = watcher


def is_gated(model: nn.Module) -> bool:
    """Whether the model has gates on units or on stages."""
    return bool(named_gates(model)) or stages_of(model) is not None
