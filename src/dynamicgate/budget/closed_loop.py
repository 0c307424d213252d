"""The budget: how much may be open, and how that moves over training (sec 3.3, 4.1, Algorithm 1).

Two ways to use it. ``Budget(target=0.3)`` closes the loop: it watches the executed MACs of the hard gates (gate
networks and output layer included) and steers the penalty until they are 0.3 of dense. ``Budget(form="linear",
weight=...)`` is the paper's open loop, whose outcome depends on lambda.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget.calibration import check_reachable, shift_biases_
from dynamicgate.budget.collapse import RAPID_WINDOW, Collapse, Reading, diagnose
from dynamicgate.budget.controller import Controller
from dynamicgate.budget.penalties import PENALTIES, straight_through_usage
from dynamicgate.budget.processes import Processes
from dynamicgate.budget.rescue import Rescue
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.schedule import Schedule, as_schedule

READINGS_KEPT = 200


@dataclass
class Budget:
    """What the gates may use, and the controller that holds them to it.

    target: executed MACs relative to dense on hard gates, everything counted; None leaves the loop open.
    form, weight, keep: the open-loop penalty (a name in `PENALTIES`), its lambda, its keep target.
    tau, theta: values or schedules that replace the gates' own; None leaves them alone.
    warmup: share of training before the loop closes, so that capacity comes first (sec 4.1(2)).
    anneal: share of training over which the closed loop's reference falls from where the model is to the target.
    floor: r_min, the mean open rate that the controller holds every site above (sec 4.1(4)).
    gain, integral: proportional gain of the controller on lambda, and integral gain per step.
    steer: how far the logit biases move per step and unit of error; see `Controller`.
    on_collapse: "report" diagnoses into `collapses`, "act" also applies the remedy, "ignore" does neither.
    counter: from `dynamicgate.trace(model, example)` where layers run several times a sample; `fit` makes it for you.
    """

    target: float | None = None
    form: str = "linear"
    weight: float | Schedule = 0.0
    keep: float | Schedule = 0.5
    tau: float | Schedule | None = None
    theta: float | Schedule | None = None
    warmup: float = 0.05
    anneal: float = 0.5
    floor: float = 0.02
    gain: float = 20.0
    integral: float = 0.5
    steer: float = 0.3
    on_collapse: Literal["report", "act", "ignore"] = "report"
    counter: MacCounter | None = None

    lambda_: float = field(default=0.0, init=False)
    collapses: list[Collapse] = field(default_factory=list, init=False, repr=False)
    readings: dict[str, list[Reading]] = field(default_factory=dict, init=False, repr=False)
    _controller: Controller = field(default_factory=Controller, init=False, repr=False)
    _rescue: Rescue = field(default_factory=Rescue, init=False, repr=False)
    _checked: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.target is not None and not 0.0 < self.target <= 1.0:
            raise ValueError(f"a budget is a share of the dense MACs: expected 0 < target <= 1, received {self.target}")
        if self.form not in PENALTIES:
            raise ValueError(f"form must be one of {', '.join(PENALTIES)}, received {self.form!r}")
        if not (0.0 <= self.warmup < 1.0 and 0.0 < self.anneal <= 1.0 - self.warmup):
            raise ValueError(
                f"expected 0 <= warmup < 1 and 0 < anneal <= 1 - warmup, received {self.warmup}, {self.anneal}"
            )
        if isinstance(self.tau, int | float):
            _check_tau(self.tau)
        if isinstance(self.theta, int | float):
            _check_theta(self.theta)
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is an open rate: expected 0 <= floor < 1, received {self.floor}")
        if self.on_collapse not in ("report", "act", "ignore"):
            raise ValueError(f"on_collapse must be report, act or ignore, received {self.on_collapse!r}")

    @property
    def relative(self) -> float | None:
        """What the closed loop saw executed at the last step."""
        return self._controller.relative

    @property
    def reference(self) -> float | None:
        """What it should have been: the moving reference on its way to the target."""
        return self._controller.reference

    @torch.no_grad()
    def apply_(self, model: nn.Module, progress: float) -> None:
        """Set tau and theta for this moment and steer the biases; call it before the forward pass (after it, autograd
        would object)."""
        if not self._checked:
            self.check_(self.counter or MacCounter(model))
        now, caps = self._rescue.schedule_time(progress), self._rescue.theta_caps
        nudge, self._controller.nudge = self._controller.nudge, 0.0
        for name, gate in named_gates(model).items():
            if nudge and not (nudge > 0.0 and self._at_floor(name)):
                gate.bias.sub_(nudge)
            if self.tau is not None:
                gate.tau.fill_(_check_tau(as_schedule(self.tau)(now)))
            if self.theta is not None:
                gate.theta.fill_(min(_check_theta(as_schedule(self.theta)(now)), caps.get(name, 1.0)))
            elif name in caps:
                gate.theta.clamp_(max=caps[name])

    def check_(self, counter: MacCounter) -> None:
        """Count with `counter` from now on; an error if the target cannot be reached with it."""
        if self.target is not None:
            check_reachable(self.target, self.floor, counter)
        self.counter, self._checked = counter, True

    def reset_(self) -> None:
        """Forget everything seen so far, for another training run."""
        self.lambda_, self.collapses, self.readings = 0.0, [], {}
        self._controller, self._rescue, self._checked = Controller(), Rescue(), False

    def penalty(self, used: Usage, progress: float) -> Tensor:
        """What to add to the task loss."""
        if self.counter is None:
            raise RuntimeError("call budget.apply_(model, progress) before the forward pass")
        across = Processes(used)
        opened = [across.local(used[site].open) for site in used]
        if self.target is None:
            rates = across.told(*opened)
            loss = self._open_loop(used, progress, across)
        else:
            relative = self.counter.relative({site: straight_through_usage(used[site]) for site in used}) * across.share
            executed, *rates = across.told(relative, *opened)
            self._controller.step(
                executed, progress, all_open=self.counter.all_open, final_relative=self.counter.final_relative, target=self.target,
                warmup=self.warmup, anneal=self.anneal, gain=self.gain, integral=self.integral, steer=self.steer,
            )  # fmt: skip
            self.lambda_ = self._controller.lambda_ * self._rescue.relief
            loss = self.lambda_ * relative
        return loss + self._watch(used, dict(zip(used, rates, strict=True)), progress, across)

    def _open_loop(self, used: Usage, progress: float, across: Processes) -> Tensor:
        """lambda times the sum of one penalty per site (Algorithm 1)."""
        assert self.counter is not None
        now = self._rescue.schedule_time(progress)
        keep = as_schedule(self.keep)(now)
        self.lambda_ = as_schedule(self.weight)(now) * self._rescue.relief
        form, gates = PENALTIES[self.form], self.counter.gates
        return self.lambda_ * torch.stack([form(used[site], gates[site], keep, across.mean) for site in used]).sum()

    def _watch(self, used: Usage, rates: dict[str, float], progress: float, across: Processes) -> Tensor:
        """Hold every site above its floor, note p and g, and look for collapse."""
        lift = torch.zeros((), device=next(iter(used.values())).p.device)
        assert self.counter is not None
        for site, rate in rates.items():
            routes = self.counter.gates[site].config.kind == "router"  # always k of E: neither a floor nor a fall
            guarded = (self.target is not None or self.on_collapse == "act") and not routes
            if guarded and rate < self.floor:
                g = across.mean(straight_through_usage(used[site]))
                lift = lift + 2.0 * self.gain * (self.floor - rate) * (self.floor - g)
            readings = self.readings.setdefault(site, [])
            if not readings or progress - readings[-1].progress >= 1.0 / READINGS_KEPT:
                p = float(across.mean(used[site].p).detach())
                readings.append(self._read(site, progress, p, rate))
                del readings[:-READINGS_KEPT]
                if not routes:
                    self._look_for_collapse(site, readings)
        return lift

    def _read(self, site: str, progress: float, p: float, g: float) -> Reading:
        assert self.counter is not None
        gate = self.counter.gates[site]
        keep = as_schedule(self.keep)(self._rescue.schedule_time(progress)) if self.target is None else self.target
        return Reading(progress, p, g, float(gate.theta), float(gate.tau), self.lambda_, keep)

    def _look_for_collapse(self, site: str, readings: list[Reading]) -> None:
        found = diagnose(site, readings, floor=self.floor) if self.on_collapse != "ignore" else None
        if found is None:
            return
        known = any(c.site == site and found.progress - c.progress < RAPID_WINDOW for c in self.collapses)
        if not known:  # one fall is one report
            self.collapses.append(found)
        if self.on_collapse == "act":
            self._rescue.act(found, readings[-1], known=known)

    def _at_floor(self, site: str) -> bool:
        readings = self.readings.get(site)
        return bool(readings) and readings[-1].g <= self.floor  # type: ignore[index]

    def calibrate_(self, model: nn.Module, inputs: Iterable[Tensor], *, rounds: int = 24) -> float:
        """Shift the logits of all gates by one amount so that the hard model meets the target on `inputs`; returns what
        it then executes. Use data that was not used for testing. The shift is small if training held the budget."""
        if self.target is None:
            raise ValueError("only a Budget with a target can be calibrated")
        return shift_biases_(model, self.counter or MacCounter(model), self.target, list(inputs), rounds)

    def state_dict(self) -> dict[str, Any]:
        """The controller's memory, as plain JSON values."""
        return {
            "lambda": self.lambda_,
            "controller": self._controller.state_dict(),
            "rescue": self._rescue.state_dict(),
            "readings": {site: [list(r) for r in rows] for site, rows in self.readings.items()},
            "collapses": [vars(c) for c in self.collapses],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.lambda_ = state["lambda"]
        self._controller = Controller(**state["controller"])
        self._rescue = Rescue.from_state(state["rescue"])
        self.readings = {site: [Reading(*row) for row in rows] for site, rows in state["readings"].items()}
        self.collapses = [Collapse(**c) for c in state["collapses"]]


def _check_tau(tau: float) -> float:
    if not (tau > 0.0 and math.isfinite(tau)):
        raise ValueError(f"the temperature tau must be positive and finite, received {tau}")
    return tau


def _check_theta(theta: float) -> float:
    if not 0.0 < theta < 1.0:
        raise ValueError(f"theta is compared with a probability: expected 0 < theta < 1, received {theta}")
    return theta
