"""The closed loop: hold the executed MACs of the hard gates to a target (sec 4.1).

`Budget(target=0.3)` watches what the hard gates execute, gate networks and output layer included, and steers the
penalty until that is 0.3 of the dense model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.shape_counters import ShapeCounters
from dynamicgate.budget.base import GateBudget
from dynamicgate.budget.calibration import CALIBRATION_BATCH, calibrate_, check_reachable, check_steerable
from dynamicgate.budget.closing_order import ClosingOrder
from dynamicgate.budget.controller import Controller
from dynamicgate.budget.folding import WATCHED, Folded, GateWatch
from dynamicgate.budget.may_change import check_may_change
from dynamicgate.budget.new_rows import closed_to_new_rows, opened_by, recent_rate, restore_layers_
from dynamicgate.budget.next_inputs import NextInputs
from dynamicgate.budget.nudging import opened_after
from dynamicgate.budget.penalties import pressed_usage
from dynamicgate.budget.readings import LateReadings, scalar_like, weight_of_rows
from dynamicgate.budget.stage_cut import STEER_EVERY, StageSteering
from dynamicgate.data.contract import iterate, move
from dynamicgate.distributed import RowMeans, world_size
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.modules import unwrap
from dynamicgate.sparsity import Sparsifier

WITHIN = 0.01  # of the dense MACs: a budget that is met


@dataclass(kw_only=True)
class Budget(GateBudget):
    """A target for the executed MACs, and the controller that holds the gates to it.

    In a model with stages the target is the mean over inputs, and what is steered is the cut; gates on units inside the
    stages then keep the rates they have.

    target: executed MACs relative to dense on hard gates, everything counted.
    warmup: fraction of training before the loop closes, so that capacity comes first (sec 4.1(2)).
    anneal: fraction of training over which the reference falls from where the model is to the target.
    gain, integral: proportional gain of the controller on lambda, and integral gain per step.
    steer: how far the logit biases move per step and unit of error; see `Controller`.
    counter: from `count_macs(model, example)`. None: the first forward pass after `apply_` is counted, and again when
        inputs have another shape. In a Hugging Face model either counts sequences of all lengths, each with its own.
    fold: make gates constant that move less than their network costs, once the budget has come down, so that units get
        its MACs; `folded` names them. Not for several processes.
    order_units: at the end of the warm-up, move the logits of each gate apart by what its units add to the layer that
        reads them, so that those that add least close first; for gates that start alike. Not for several processes.
    wait: False lets a step go on with what the step before it executed, so that a GPU does not stand still until Python
        has read what this one does. The loop then closes one step later. After an overshoot it looks ahead, and waits.
    sparsifier: the one that prunes this model, so that gates do not pay for connections that are still to be pruned;
        `fit` sets it.
    The other arguments are those of `GateBudget`.
    """

    target: float
    warmup: float = 0.05
    anneal: float = 0.5
    gain: float = 20.0
    integral: float = 0.5
    steer: float = 0.3
    fold: bool = False
    order_units: bool = False
    wait: bool = True
    counter: MacCounter | None = None
    sparsifier: Sparsifier | None = None
    folded: list[Folded] = field(default_factory=list, init=False, repr=False)
    _watch: GateWatch = field(default_factory=GateWatch, init=False, repr=False)
    _order: ClosingOrder = field(default_factory=ClosingOrder, init=False, repr=False)
    _controller: Controller = field(default_factory=Controller, init=False, repr=False)
    _late: LateReadings = field(default_factory=LateReadings, init=False, repr=False)
    _given: bool = field(default=False, init=False, repr=False)
    """Whether the counter was passed, so that it may not be replaced."""
    _next_inputs: NextInputs | None = field(default=None, init=False, repr=False)
    _counters: ShapeCounters | None = field(default=None, init=False, repr=False)
    _saved_counter: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _bound: bool = field(default=False, init=False, repr=False)
    _steering: StageSteering | None = field(default=None, init=False, repr=False)
    _stage_steps: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._given = self.counter is not None
        if not 0.0 < self.target <= 1.0:
            raise ValueError(
                f"a budget is a fraction of the dense MACs: expected 0 < target <= 1, received {self.target}"
            )
        if not (0.0 <= self.warmup < 1.0 and 0.0 < self.anneal <= 1.0 - self.warmup):
            raise ValueError(
                f"expected 0 <= warmup < 1 and 0 < anneal <= 1 - warmup, received {self.warmup}, {self.anneal}"
            )
        if self.order_units and not self.warmup:
            raise ValueError("order_units=True looks at units in the warm-up: expected warmup > 0, received 0")

    @property
    def relative(self) -> float | None:
        """What the closed loop saw executed at the last step."""
        return self._controller.relative

    @property
    def reference(self) -> float | None:
        """What it should have been: the moving reference on its way to the target."""
        return self._controller.reference

    def bind(self, counter: MacCounter, sparsifier: Sparsifier | None = None) -> None:
        """Count with `counter` from now on; an error if the target cannot be reached with it."""
        self.sparsifier = self.sparsifier if sparsifier is None else sparsifier
        if counter.stages is None:
            check_reachable(self.target, self.floor, counter)
        else:
            self._steering = StageSteering(counter, self.target, self.sparsifier)
        self.counter, self._bound, self._given = counter, True, False

    @torch.no_grad()
    def apply_(self, model: nn.Module, progress: float) -> None:
        """Set tau and theta for this moment and steer the biases; call it before the forward pass."""
        check_may_change(model, [name for name in ("fold", "order_units") if getattr(self, name)])
        super().apply_(model, progress)
        self._follow(model)
        if not self._bound and self._stages is None:
            check_steerable(self._gates)
        if self.counter is None or (self._counters is not None and self.counter.depends_on_shape):
            if self._next_inputs is not None:
                self._next_inputs.stop()
            self._next_inputs = NextInputs(model)
        if self.order_units:
            self._order.follow_(unwrap(model), self._gates, ended=progress >= self.warmup)
        self.folded += self._watch.fold_(self._gates)
        nudge, self._controller.nudge = self._controller.nudge, 0.0
        if nudge:
            for name, gate in self._gates.items():
                gate.bias.sub_(self._own_nudge(nudge, name))

    def _follow(self, model: nn.Module) -> None:
        """Let go of the counter of another model, and take up the one that a checkpoint holds."""
        if self.counter is not None and not self.counter.counts(self._gates, self._stages):
            if self._given:
                raise ValueError(
                    "the counter of this budget was made for another model, or before gates came or went: pass "
                    "counter=dynamicgate.count_macs(model, example) of this one, or leave it out"
                )
            self._forget_counter()
        if self.counter is None and self._saved_counter is not None:
            self.counter, self._saved_counter = MacCounter.from_dict(unwrap(model), self._saved_counter), None
        scales = self.counter is not None and self.counter.scaling is not None
        if (self._given or scales) and self._counters is None:
            self._counters = ShapeCounters(unwrap(model), self.counter)

    def _forget_counter(self) -> None:
        if self._next_inputs is not None:
            self._next_inputs.stop()
        self._next_inputs = self._counters = self._steering = None
        self._bound = False
        if not self._given:
            self.counter = None

    def _advance(self, used: Usage, progress: float, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        counter = self._counter().at(used.work)
        if self._stages is not None:
            return self._advance_stages(used, counter, means)
        weight = weight_of_rows(counter, used, means)
        relative = self._relative(counter, used) * weight
        pending = self.sparsifier.pending if self.sparsifier is not None else None
        most = [counter.all_open, counter.all_open if pending is None else counter.all_open_without(pending)]
        opened = self._opened(used, means)
        seen = means.stacked(relative, *(scalar_like(each * weight, relative) for each in most), *opened)
        executed, *found = seen.tolist() if self.wait else self._late.exchange(seen)
        all_open, final_all_open = found[:2] if world_size() > 1 else most
        rates = found[2:]
        self._controller.step(
            executed, progress, all_open=all_open, target=self.target, final_all_open=final_all_open,
            warmup=self.warmup, anneal=self.anneal, gain=self.gain, integral=self.integral, steer=self.steer,
        )  # fmt: skip
        self.lambda_ = self._controller.lambda_ * self._rescue.relief
        if self.fold:
            self._look_for_constant_gates(used, counter, progress)
        return self.lambda_ * relative, dict(zip(used, rates, strict=True))

    @torch.no_grad()
    def _record(self, used: Usage, rates: dict[str, float], progress: float, means: RowMeans) -> None:
        """As any budget; then shorten the next nudge if the logits of this batch say that it would overshoot."""
        super()._record(used, rates, progress, means)
        if self._controller.overshot:
            counter = self._counter().at(used.work)
            weight = weight_of_rows(counter, used, means)

            def executed_after(nudge: float) -> float:
                opened = opened_after(self._gates, used, partial(self._own_nudge, nudge))
                return means.values(counter.relative(opened) * weight)[0]

            self._controller.look_ahead(executed_after, self.steer, late=not self.wait)

    def _own_nudge(self, nudge: float, site: str) -> float:
        """What a nudge takes from the logits of a gate: one at its floor is not closed further."""
        return 0.0 if nudge > 0.0 and self._at_floor(site) else nudge

    def _look_for_constant_gates(self, used: Usage, counter: MacCounter, progress: float) -> None:
        """Average decisions once the budget has come down, then find the gates that do not earn their network."""
        begin = self.warmup + self.anneal
        if progress < begin or self._watch.decided:
            return
        self._watch.add(self._gates, used)
        if progress >= min(begin + WATCHED, 1.0):
            self._watch.decide(counter, used, progress)

    def _advance_stages(self, used: Usage, counter: MacCounter, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        """With stages the cut alone is steered: it needs no penalty, because it can be put where the target is."""
        assert self._stages is not None
        assert self._steering is not None
        assert used.stages is not None
        self._stage_steps += 1
        if self._stage_steps % STEER_EVERY == 1:
            relative = counter.relative(deployed(counter.gates, used)) * means.weight
            (self._controller.relative,) = means.values(relative)
            self._controller.reference = self.target
            self._steering.step(self._stages, used)
        rates = means.values(*self._opened(used, means)) if self._gates else []
        return torch.zeros((), device=self._stages.cut.device), dict(zip(used, rates, strict=True))

    def _weighted(self, used: Usage, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        if self._stages is not None:
            return torch.zeros((), device=self._stages.cut.device), {}
        rates = means.values(*self._opened(used, means))
        counter = self._counter().at(used.work)
        relative = self._relative(counter, used) * weight_of_rows(counter, used, means)
        return self.lambda_ * relative, dict(zip(used, rates, strict=True))

    def _relative(self, counter: MacCounter, used: Usage) -> Tensor:
        """The executed MACs of this process's rows relative to dense, with a gradient that closes or opens gates."""
        opening = self.lambda_ < 0.0
        pressed = {site: pressed_usage(used[site], self._gates[site], opening=opening) for site in used}
        return counter.relative(pressed)

    def _counter(self) -> MacCounter:
        """The counter for the last inputs, whose target was checked when it was first used."""
        if self.counter is None:
            assert self._next_inputs is not None, "apply_ comes first"
            self._counters = ShapeCounters(self._next_inputs.model)
            self.counter = self._counters.counter_for(self._next_inputs.seen())
        elif self._counters is not None and self._next_inputs is not None and self._next_inputs.inputs is not None:
            self.counter = self._counters.counter_for(self._next_inputs.inputs)
        if self._next_inputs is not None and self._next_inputs.inputs is not None:
            self._next_inputs = None  # which holds inputs
        if not self._bound:
            given = self._given
            self.bind(self.counter)
            self._given = given
        return self.counter

    def _target_rate(self, progress: float) -> float:
        return self.target

    def _came_down(self, progress: float) -> bool:
        executed = self.relative
        return executed is not None and progress >= self.warmup + self.anneal and executed <= self.target + WITHIN

    @property
    def _guards_floor(self) -> bool:
        return True

    @property
    def _floor_gain(self) -> float:
        return self.gain

    def _at_floor(self, site: str) -> bool:
        readings = self.readings.get(site)
        return bool(readings) and readings[-1].g <= self.floor  # type: ignore[index]

    def calibrate_(self, model: nn.Module, data: Any, *, unseen: Any = None, rounds: int = 24) -> float:
        """Make the model with hard gates meet the target on `data`, as the function `calibrate_` does; the change is
        small if training held the budget. Returns what it then executes.

        unseen: rows that training has not seen; None: `data` are such rows. Layers that they close although training
            had them open are opened again first (`on_collapse="act"`), and what stays closed is added to `collapses`.
        """
        known = self.counter is not None and self.counter.counts(named_gates(model), stages_of(model))
        counter = self.counter if known else None
        if stages_of(model) is not None or self.on_collapse == "ignore":
            return calibrate_(model, data, macs=self.target, counter=counter, rounds=rounds)
        device = next(model.parameters()).device
        data = [move(x, device) for x, _ in iterate(data, CALIBRATION_BATCH)]
        new = data if unseen is None else [move(x, device) for x, _ in iterate(unseen, CALIBRATION_BATCH)]
        if not data or not new:
            raise ValueError("nothing to calibrate on: the dataset is empty")
        restored: list[str] = []
        if self.on_collapse == "act":
            trained = {site: recent_rate(rows) for site, rows in self.readings.items()}
            restored = restore_layers_(model, new, trained, self.floor)
        # A common shift would close layers again whose logits lie close together: the others make room.
        keep = restored if len(restored) < len(named_gates(model)) else ()
        pairs = [(x, None) for x in data]  # two positional inputs alone would look like inputs and targets
        achieved = calibrate_(model, pairs, macs=self.target, counter=counter, rounds=rounds, keep=keep)
        self.collapses += closed_to_new_rows(opened_by(model, new), self.floor)
        return achieved

    def reset(self) -> None:
        """Forget everything recorded so far, for another training run: the counter too, unless it was passed."""
        super().reset()
        self._forget_counter()
        self._controller, self._stage_steps, self._saved_counter = Controller(), 0, None
        self._watch, self.folded, self._late = GateWatch(), [], LateReadings()
        self._order.stop()
        self._order = ClosingOrder()

    def state_dict(self) -> dict[str, Any]:
        """The controller's memory and everything recorded, as plain JSON values."""
        own: dict[str, Any] = {"controller": self._controller.state_dict(), "stage_steps": self._stage_steps}
        if not self.wait:
            own["late"] = self._late.values()
        scales = self.counter is not None and self.counter.scaling is not None  # else the next inputs are counted
        if self.fold:
            own |= {"watch": self._watch.state_dict(), "folded": [vars(one) for one in self.folded]}
        if self.order_units:
            own["order"] = self._order.state_dict()
        own["counter"] = self.counter.to_dict() if self.counter is not None and scales else None
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._controller = Controller(**state["controller"])
        self._late.restore(state.get("late"))
        if "watch" in state:
            self._watch = GateWatch.from_state(state["watch"])
            self.folded = [Folded(**one) for one in state["folded"]]
        if "order" in state:
            self._order.stop()
            self._order = ClosingOrder.from_state(state["order"])
        self._stage_steps = state.get("stage_steps", 0)  # absent in checkpoints from before there were stages
        if not self._given and "counter" in state:  # the model comes with the next `apply_`
            self._forget_counter()
            self._saved_counter = state["counter"]
