"""What every sparsifier shares: masks that are kept exactly, a clock that ticks with the optimizer, and a memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.gating.recording import Usage
from dynamicgate.masks import UNSTRUCTURED, put_mask_
from dynamicgate.ops.mask import mask_
from dynamicgate.sparsity import agreement, optimizer_state
from dynamicgate.sparsity.activity import Ends, OpenRates
from dynamicgate.sparsity.density import Density, Distribution, choose_layers, densities
from dynamicgate.sparsity.patterns import Pattern

USUAL_PERIOD, FEWEST_UPDATES = 100, 10


@dataclass(eq=False)
class SparseLayer:
    """One Linear layer whose connections are chosen."""

    name: str
    linear: nn.Linear
    pattern: Pattern
    density: float
    ends: Ends
    explored: Tensor
    churn: float = 0.0
    young: Tensor | None = None
    """Flat indices of connections that began anew at the last update and have not taken a step since."""

    @property
    def weight(self) -> nn.Parameter:
        """The weights, of which those without a connection are zero."""
        return self.linear.weight  # type: ignore[return-value]

    @property
    def mask(self) -> Tensor:
        """Which connections exist."""
        return self.linear.mask  # type: ignore[return-value]

    @property
    def count(self) -> int:
        """How many connections exist."""
        return int(self.mask.count_nonzero())


class LayerOptions(TypedDict, total=False):
    """Which layers become sparse and how: what all sparsifiers take, described at `Static`."""

    distribution: Distribution
    pattern: str
    include: Sequence[str]
    exclude: Sequence[str]


class Sparsifier:
    """Decides which connections exist (sec 3.7, Algorithms 2 and 3). Call `step` between backward and the optimizer::

        sparsifier = RigL(model, density=0.1)
        loss.backward()
        sparsifier.step(optimizer, progress)
        optimizer.step()

    Gradients without a connection are set to zero there, and so is everything the optimizer remembers of such weights:
    an optimizer that works entry by entry (SGD, Adam, AdamW, ...) then leaves them at exactly zero. With gradient
    scaling call `scaler.unscale_(optimizer)` first; clip gradients afterwards. With gates see `watch`.
    """

    def __init__(
        self,
        model: nn.Module,
        density: Density,
        *,
        every: int | None,
        until: float,
        seed: int = 0,
        distribution: Distribution = "uniform",
        pattern: str = UNSTRUCTURED,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        """See the subclasses for what the arguments mean."""
        if every is not None and every < 1:
            raise ValueError(f"every is a number of optimizer steps, 1 or more, received {every}")
        if not 0.0 < until <= 1.0:
            raise ValueError(f"until is a share of training: expected 0 < until <= 1, received {until}")
        self.every, self.until, self.seed, self.pattern = every, until, seed, pattern
        self.open_rates = OpenRates(model)
        self._chosen, self.left_out = choose_layers(model, density, include, exclude)
        shapes = {name: linear.weight.shape for name, linear in self._chosen.items()}
        self._densities = densities(shapes, density, distribution)
        self.layers: list[SparseLayer] = []
        self.steps = self.updates = self.since_update = 0
        self._began: tuple[int, float] | None = None
        self._length_is_known = self._some_are_young = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._telling: tuple[int, dict[str, dict[str, float]], str] | None = None

    def _add_layers(self, pattern: Pattern, masks: Iterator[Tensor]) -> None:
        for (name, linear), mask in zip(self._chosen.items(), masks, strict=True):
            put_mask_(linear, mask, pattern.name)
            ends = Ends(name, self.open_rates.gates)
            explored = linear.mask.clone()  # type: ignore[operator]
            self.layers.append(SparseLayer(name, linear, pattern, self._densities[name], ends, explored))

    @property
    def settings(self) -> dict[str, Any]:
        """What a run that continues this one must share."""
        layers = {layer.name: layer.density for layer in self.layers}
        kind = {"kind": type(self).__name__, "every": self.every, "until": self.until, "seed": self.seed}
        return {**kind, "pattern": self.pattern, "layers": layers}

    def pending(self, linear: nn.Linear) -> float:
        """How many connections of a layer are still to be pruned before training ends; 0 for layers of others."""
        for layer in self.layers:
            if layer.linear is linear:
                return max(0.0, layer.count - layer.density * layer.mask.numel())
        return 0.0

    def check_length(self, total: int) -> None:
        """Choose `every` if it was left open; an error if a run of `total` steps would end before the first update."""
        self._choose_period(total)
        assert self.every is not None
        if self.until * total < self.every:
            raise ValueError(
                f"a run of about {total:.0f} steps that updates its masks every {self.every} steps until "
                f"{self.until:.0%} of training would never update them: lower `every`, raise `until` or train longer; "
                "if a fixed random mask is what you want, use Static"
            )

    def _choose_period(self, total: int) -> None:
        if self.every is None:
            self.every = max(1, min(USUAL_PERIOD, int(self.until * total / FEWEST_UPDATES)))

    def watch(self, used: Usage, penalty: Tensor | None = None) -> None:
        """With gates: tell what they decided, between the forward and the backward pass of every piece of a batch, so
        that units that are rarely open do not starve. Growth follows the task loss alone: the part of the gradient
        that a usage `penalty` is about to add is left out of the scores."""
        self.open_rates.add(used)

    def step(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        """Once per optimizer step, between backward and `optimizer.step()`."""
        if optimizer is not self._optimizer:
            self._meet(optimizer)
        if not self._length_is_known:
            self._check_length(progress)
        self.steps += 1
        self.since_update += 1
        self._look(progress)
        if self._due(progress) and _will_step(optimizer):  # a step that gradient scaling will skip decides nothing
            self._update(optimizer, progress)
        elif self._some_are_young:
            self._start_young(optimizer)
        for layer in self.layers:
            grad = layer.weight.grad
            if grad is not None:
                mask_(grad, layer.mask)
                if layer.young is not None:
                    grad.view(-1)[layer.young] = 0.0  # they begin with the next step

    @torch.no_grad()
    def _update(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        self._check_masked_weights(optimizer)
        self._rewire(optimizer, progress)
        agreement.check_agreement(self._masks())
        self.updates += 1
        self.since_update = 0
        self._some_are_young = True

    def _look(self, progress: float) -> None:
        """See the dense gradient before it is masked."""

    def _due(self, progress: float) -> bool:
        return self.every is not None and self.since_update >= self.every and progress < self.until

    def _rewire(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        raise NotImplementedError

    def _replace(
        self, layer: SparseLayer, mask: Tensor, optimizer: torch.optim.Optimizer, *, reset: Tensor | None = None
    ) -> None:
        """Give a layer another mask; what begins, ends or is `reset` has no past."""
        changed = (mask ^ layer.mask).flatten().nonzero().flatten()
        now = mask.reshape(-1)
        grown = changed[now[changed]]
        layer.churn = len(grown) / max(1, int(mask.count_nonzero()))
        layer.mask.copy_(mask)
        layer.explored.view(-1)[grown] = True
        layer.weight.view(-1)[changed] = 0.0
        if reset is not None:
            changed = torch.cat([changed, reset.flatten().nonzero().flatten()]).unique()
            grown = changed[now[changed]]
        optimizer_state.clear_(optimizer, layer.weight, changed)
        layer.young = grown

    def _start_young(self, optimizer: torch.optim.Optimizer) -> None:
        self._some_are_young = False
        for layer in self.layers:
            grad = layer.weight.grad
            if layer.young is None or grad is None or not finite(grad.view(-1)[layer.young]):
                self._some_are_young |= layer.young is not None  # a step that will be skipped starts nothing
                continue
            optimizer_state.start_gently_(optimizer, layer.weight, layer.young, layer.count)
            layer.young = None

    def _meet(self, optimizer: torch.optim.Optimizer) -> None:
        """The first time: forget what the optimizer remembers of weights that do not exist."""
        for layer in self.layers:
            if not optimizer_state.trains(optimizer, layer.weight):
                raise ValueError(f"the optimizer does not train {layer.name!r}, whose connections are to be chosen")
            optimizer_state.clear_(optimizer, layer.weight, (~layer.mask).flatten().nonzero().flatten())
            layer.explored = layer.explored.to(layer.mask.device)  # the model may have moved since
        self._optimizer = optimizer

    def _check_length(self, progress: float) -> None:
        """`check_length` as soon as the pace of `progress` tells how long the run will be."""
        if self._began is None:
            self._began = (self.steps, progress)
        elif progress > self._began[1]:
            steps, start = self._began
            self.check_length(round((self.steps - steps) / (progress - start)))
            self._length_is_known = True

    def _check_masked_weights(self, optimizer: torch.optim.Optimizer) -> None:
        for layer in self.layers:
            masked = layer.weight.clone()
            mask_(masked, layer.mask)
            if not torch.equal(masked, layer.weight) and finite(layer.weight):
                raise RuntimeError(
                    f"weights of {layer.name!r} that have no connection are not zero: either they were changed by hand "
                    f"or {type(optimizer).__name__} mixes entries of a weight. Use an optimizer that works entry by "
                    "entry (SGD, Adam, AdamW, RMSprop, ...)"
                )

    def rows(self) -> dict[str, dict[str, float]]:
        """For a log: density, explored share (ever connected so far, the ITOP rate) and churn of every layer."""
        return self._told()[0]

    def fingerprint(self) -> str:
        """A short text that differs if any connection does."""
        return self._told()[1]

    def _told(self) -> tuple[dict[str, dict[str, float]], str]:
        """Counted once per update: a log asks far more often, and masks may be large."""
        if self._telling is None or self._telling[0] != self.updates:
            rows = {
                layer.name: {
                    "density": layer.count / layer.mask.numel(),
                    "explored": float(layer.explored.float().mean()),
                    "churn": layer.churn,
                }
                for layer in self.layers
            }
            self._telling = (self.updates, rows, f"{agreement.fingerprint(self._masks()):014x}")
        return self._telling[1:]

    def _masks(self) -> dict[str, Tensor]:
        return {layer.name: layer.mask for layer in self.layers}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; the masks are buffers of the model. Every process must call it."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "updates": self.updates,
            "since_update": self.since_update,
            "began": self._began,
            "churn": {layer.name: layer.churn for layer in self.layers},
        }
        state |= {f"explored.{layer.name}": layer.explored for layer in self.layers}
        state |= {f"young.{layer.name}": layer.young for layer in self.layers if layer.young is not None}
        return state | {f"open.{name}": value for name, value in self.open_rates.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on any number of processes."""
        self.steps, self.updates, self.since_update = state["steps"], state["updates"], state["since_update"]
        self._began = tuple(state["began"]) if state["began"] else None
        self._telling = None
        for layer in self.layers:
            layer.churn = state["churn"][layer.name]
            layer.explored.copy_(state[f"explored.{layer.name}"])
            young = state.get(f"young.{layer.name}")
            layer.young = None if young is None else young.to(layer.mask.device)
        self._some_are_young = any(layer.young is not None for layer in self.layers)
        seen = {name.removeprefix("open."): value for name, value in state.items() if name.startswith("open.")}
        self.open_rates.load_state_dict(seen, first=distributed.rank() == 0)

    def __str__(self) -> str:
        lines = [f"{type(self).__name__}: {sum(layer.count for layer in self.layers):,} connections"]
        for layer in self.layers:
            density = layer.count / layer.mask.numel()
            lines.append(f"  {layer.name}  {list(layer.mask.shape)}  {layer.pattern.name}  density {density:.4f}")
        lines += [f"  {name}  dense: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def finite(values: Tensor) -> bool:
    """Whether all values are: any that is not spoils the sum, which is faster than a look at each."""
    return bool(values.sum(dtype=torch.float32).isfinite())


def _will_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether gradient scaling will let this step happen."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(map(finite, grads))
