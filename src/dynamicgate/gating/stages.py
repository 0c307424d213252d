"""Stages: how much of a network an input gets. Easy inputs stop early, hard ones open more (sec 3.1, 5.5).

The hidden units of every layer of a stack are ordered in stages. Stage k reads units of stages 1..k, never later ones,
so that what an early stage computed is used again and nothing is computed twice::

    input ──> [1|2|3] ──> [1|2|3] ──> outputs of stage 1, + what stage 2 adds, + what stage 3 adds
                                              │                   │
                                              └─ sure? stop       └─ sure? stop

After each stage every row is scored: how much does it need the next one? The next stage opens for rows above the `cut`.
In training all stages run for all rows, so that each can be trained (`dynamicgate.training.StageLoss`).

Shapes in names: B rows (any leading dimensions), N units, K stages, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.gating.config import GateConfig
from dynamicgate.gating.pending import OfThread
from dynamicgate.gating.recomputation import recomputing
from dynamicgate.gating.sites import Site
from dynamicgate.masks import connections, pattern_of, put_mask_
from dynamicgate.modules import unwrap

STAGES = "stages"  # the name of the gate below its consumer, and of its decisions
PANEL = 16  # units side by side in the vectors of a CPU and the tiles of masks


class StageDecision(NamedTuple):
    """What happened after each stage."""

    outputs: tuple[Tensor, ...]
    """The outputs of the model if it stopped after this stage, differentiable: K tensors [B, C]."""
    score: Tensor
    """How much a row needs the next stage, [B, K - 1]; differentiable for decide="head" only."""
    open: Tensor
    """Which stages open for a row at the present cut, 0 or 1, [B, K]; the first one always."""


class Region(NamedTuple):
    """The connections of one stage in a layer: a rectangle of its weight matrix, and the number of the stage."""

    rows: slice
    columns: slice
    stage: int


StageWatcher = Callable[[StageDecision], None]


class StageGate(nn.Module):
    """The gate on the stages of a stack of Linear layers. It is a child of the layer that gives the outputs."""

    cut: Tensor

    def __init__(self, sites: Sequence[Site], config: GateConfig) -> None:
        """A gate on the units of `sites`, in the order of the forward pass."""
        super().__init__()
        assert config.stages is not None
        self.sites, self.config = tuple(sites), config
        self.bounds = [stage_bounds(config.stages, site) for site in sites]
        # A buffer: it must travel with the checkpoint. At -inf every stage opens for every row.
        self.register_buffer("cut", torch.full((self.count - 1,), -math.inf))
        last = self.bounds[-1]
        heads = [nn.Linear(last[k + 1], 1) for k in range(self.count - 1)] if config.decide == "head" else []
        self.heads = nn.ModuleList(heads)
        self._watchers: OfThread[StageWatcher] = OfThread()
        self._compiled_watcher: StageWatcher | None = None
        self.order: dict[nn.Linear, Tensor] = {}
        """What each masked layer may read."""
        self._skipped: OfThread[bool] = OfThread()

    @property
    def watcher(self) -> StageWatcher | None:
        """Who is told what it decides in this thread. A graph of torch.compile has one for all threads."""
        return self._compiled_watcher if torch.compiler.is_compiling() else self._watchers.get()

    @watcher.setter
    def watcher(self, watcher: StageWatcher | None) -> None:
        self._watchers.set(watcher)
        self._compiled_watcher = watcher if watcher is not None else self._watchers.any()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: nobody watches a copy."""
        return {**self.__dict__, "_compiled_watcher": None}

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.bounds[0]) - 1

    @property
    def layers(self) -> list[str]:
        """The Linear layers of the stack, from the one that reads the input to the one that gives the outputs."""
        return [self.sites[0].producers[0], *(site.consumer for site in self.sites)]

    @property
    def head_macs(self) -> list[int]:
        """MACs of deciding after each stage: a comparison of outputs costs none."""
        features = [int(head.in_features) for head in self.heads]  # type: ignore[arg-type]
        return [*features, 0] if features else [0] * self.count

    def stage_of_units(self, position: int) -> Tensor:
        """The stage of each unit of the site at `position`, counted from 0."""
        bounds = self.bounds[position]
        sizes = torch.tensor([b - a for a, b in pairwise(bounds)])
        return torch.arange(self.count).repeat_interleave(sizes)

    def regions(self, position: int, shape: torch.Size) -> list[Region]:
        """The connections of each stage in the layer at `position` of the stack, whose weight has this shape."""
        rows, columns = self._bounds_of_rows(position), self._bounds_of_columns(position)
        found = []
        for k in range(self.count):
            if rows is None:  # the output layer: what stage k adds
                assert columns is not None
                found.append(Region(slice(0, shape[0]), slice(columns[k], columns[k + 1]), k))
            else:
                read = shape[1] if columns is None else columns[k + 1]
                found.append(Region(slice(rows[k], rows[k + 1]), slice(0, read), k))
        return found

    def _bounds_of_rows(self, position: int) -> tuple[int, ...] | None:
        return self.bounds[position] if position < len(self.sites) else None

    def _bounds_of_columns(self, position: int) -> tuple[int, ...] | None:
        return self.bounds[position - 1] if position else None

    def allowed(self, position: int, like: Tensor) -> Tensor:
        """The connections that may exist: a unit reads units of its own stage and of earlier ones."""
        allowed = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
        for rows, columns, _ in self.regions(position, like.shape):
            allowed[rows, columns] = True
        return allowed

    def keep_order_(self, linear: nn.Linear, allowed: Tensor) -> None:
        """Mask a layer so that it never has other connections than those allowed."""
        mask = connections(linear)
        put_mask_(linear, allowed if mask is None else mask.bool() & allowed, pattern_of(linear))
        self.order[linear] = allowed
        linear.register_forward_pre_hook(self.keep_order_before)

    def keep_order_before(self, linear: nn.Module, _args: tuple[Any, ...]) -> None:
        """Forward pre-hook of every layer between hidden units: its mask leaves out what belongs to a later stage, and
        no optimizer step may bring it back. Through `data`: a graph that holds the weight is not disturbed, because
        nothing changes unless a step did."""
        linear.weight.data.mul_(linear.mask)  # type: ignore[operator,arg-type]

    def decide_after(self, consumer: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        """Forward hook of the last layer: the outputs of each stage, and in evaluation those of the stage at which a
        row stops. The outputs of the last stage are the layer's own, bit for bit."""
        skipped = not torch.compiler.is_compiling() and self._skipped.get()
        watcher = self.watcher
        if skipped or (self.training and watcher is None):
            return None
        assert isinstance(consumer, nn.Linear)
        decision = self.decide(args[0], consumer, out)
        if watcher is not None and not recomputing():
            watcher(decision)
        return None if self.training else stop(decision)

    def decide(self, h_BN: Tensor, consumer: nn.Linear, out_BC: Tensor) -> StageDecision:
        """The outputs, scores and decisions of each stage for the inputs and outputs of the last layer."""
        ends = self.bounds[-1][1:-1]
        outputs = [F.linear(h_BN[..., :end], consumer.weight[:, :end], consumer.bias) for end in ends]
        score_BK = torch.stack([self._score(k, z_BC, h_BN) for k, z_BC in enumerate(outputs)], dim=-1)
        opens_BK = (score_BK.detach() > self.cut).to(score_BK.dtype).cumprod(-1)
        return StageDecision((*outputs, out_BC), score_BK, F.pad(opens_BK, (1, 0), value=1.0))

    def _score(self, k: int, z_BC: Tensor, h_BN: Tensor) -> Tensor:
        decide = self.config.decide
        if decide == "head":
            head = self.heads[k]
            assert isinstance(head, nn.Linear)
            # It learns to predict from the features; they do not learn to be predictable.
            return head(h_BN[..., : head.in_features].detach()).squeeze(-1).float()
        z_BC = z_BC.detach().float()
        if decide == "random":
            return torch.rand(z_BC.shape[:-1], device=z_BC.device)
        if decide == "entropy":
            return torch.special.entr(z_BC.softmax(-1)).sum(-1)
        first, second = z_BC.topk(2, dim=-1).values.unbind(-1)
        return second - first

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """The plain layers inside the block, without decisions, in this thread: for counting what they cost."""
        self._skipped.set(True)
        try:
            yield
        finally:
            self._skipped.set(None)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        sizes = " -> ".join("|".join(str(b - a) for a, b in pairwise(bounds)) for bounds in self.bounds)
        return f"{self.count} stages of units {sizes}, decided by {self.config.decide}"


def stop(decision: StageDecision) -> Tensor:
    """The outputs of the last stage that is open for each row."""
    at_B = decision.open.sum(-1).long() - 1
    out_BC = decision.outputs[-1]
    for k, z_BC in enumerate(decision.outputs[:-1]):
        out_BC = torch.where((at_B == k)[..., None], z_BC.to(out_BC.dtype), out_BC)
    return out_BC


def stages_of(model: nn.Module) -> StageGate | None:
    """The stage gate of a model, if it has one."""
    return next((module for module in unwrap(model).modules() if isinstance(module, StageGate)), None)


def stage_bounds(stages: Sequence[float], site: Site) -> tuple[int, ...]:
    """Where the stages of a site begin and end. Fractions are rounded to multiples of 16 units, of fewer in a narrow
    layer or for a small stage: blocks and tiles fit them."""
    if all(isinstance(size, int) for size in stages):
        bounds = [0]
        for size in stages:
            bounds.append(bounds[-1] + int(size))
        if bounds[-1] != site.width:
            raise ValueError(
                f"stages of {', '.join(map(str, stages))} units do not fit the {site.width} units behind "
                f"{site.producers[0]!r}: they must add up to {site.width}; or pass fractions, which fit every layer"
            )
        return tuple(bounds)
    for step in (PANEL, 8, 4, 2, 1):
        ends = [round(sum(stages[: k + 1]) * site.width / step) * step for k in range(len(stages) - 1)]
        bounds = [0, *ends, site.width]
        wide = step == 1 or site.width >= 2 * step * len(stages)
        if wide and all(a < b for a, b in pairwise(bounds)):
            return tuple(bounds)
    raise ValueError(
        f"stages of {', '.join(f'{size:g}' for size in stages)} do not fit the {site.width} units behind "
        f"{site.producers[0]!r}: a stage would have none. Use fewer or more even stages, or a wider layer"
    )


def new_stages(model: nn.Module, sites: Sequence[Site], config: GateConfig) -> StageGate:
    """A stage gate for a stack whose sites are given in the order of the forward pass; the model stays as it is."""
    layers = [model.get_submodule(name) for name in (sites[0].producers[0], *(site.consumer for site in sites))]
    for layer in layers:
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"stages divide the units of nn.Linear layers, received {type(layer).__name__}")
    consumer: Any = layers[-1]
    if consumer.out_features < 2 and config.decide in ("margin", "entropy"):
        raise ValueError(
            f"one output gives no {config.decide}: {sites[-1].consumer!r} has a single output, so rows cannot be told "
            "apart by it. Use decide='head', which learns how much a row would gain"
        )
    gate = StageGate(sites, config).to(consumer.weight.device)
    gate.heads.to(consumer.weight.dtype)
    gate.train(consumer.training)
    return gate


def attach_stages(model: nn.Module, gate: StageGate) -> None:
    """Put a stage gate on its stack. Weights between hidden units that would read a later stage become zero."""
    layers: list[Any] = [model.get_submodule(name) for name in gate.layers]
    for position, layer in enumerate(layers[1:-1], start=1):
        gate.keep_order_(layer, gate.allowed(position, layer.weight))
    consumer = layers[-1]
    consumer.stages = gate
    consumer.register_forward_hook(gate.decide_after)


def detach_stages(model: nn.Module) -> None:
    """Take the stage gate off. All stages stay open. Masks stay where a sparsifier made them; those that only kept the
    order of the stages go."""
    gate = stages_of(model)
    if gate is None:
        return
    consumer: Any = model.get_submodule(stack_names(model, gate)[-1])
    for module in unwrap(model).modules():
        if isinstance(module, nn.Linear) and _remove(module._forward_pre_hooks, gate):
            mask: Any = module.mask
            module.weight.data.mul_(mask)
            if torch.equal(mask, gate.order[module].to(mask.device)):
                del module.mask, module.mask_pattern
    _remove(consumer._forward_hooks, gate)
    del consumer.stages


def stack_names(model: nn.Module, gate: StageGate) -> list[str]:
    """The names of the layers of the stack as `model` has them; see `Site.moved_to`."""
    path = next(path for path, module in unwrap(model).named_modules() if module is gate)
    stack = Site(gate.sites[-1].consumer, tuple(gate.layers), gate.layers[0], gate.sites[-1].width)
    return list(stack.moved_to(path.removesuffix(STAGES).removesuffix(".")).producers)


def _remove(hooks: dict[int, Any], gate: StageGate) -> bool:
    keys = [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is gate]
    for key in keys:
        del hooks[key]
    return bool(keys)
