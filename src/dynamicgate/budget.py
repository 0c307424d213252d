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
from torch import distributed as dist

from dynamicgate.collapse import RAPID_WINDOW, Collapse, Reading, diagnose
from dynamicgate.cost import Ledger, unwrap
from dynamicgate.gate import Gate
from dynamicgate.penalty import PENALTIES, straight_through_usage
from dynamicgate.schedule import Schedule, as_schedule, cosine
from dynamicgate.trace import evaluating
from dynamicgate.usage import Usage, gates_of, usage

LAMBDA_LIMIT = 10.0  # wind-up guard: the loss is a cross entropy of order 1
READINGS_KEPT = 200
EASING_PAUSE = 0.02


@dataclass
class Budget:
    """What the gates may use, and the controller that holds them to it.

    target: executed MACs relative to dense on hard gates, everything counted; None leaves the loop open.
    form, weight, keep: the open-loop penalty (a name in `PENALTIES`), its lambda, its keep target.
    tau, theta: values or schedules that replace the gates' own; None leaves them alone.
    warmup: share of training before the loop closes, so that capacity comes first (sec 4.1(2)).
    ramp: share of training over which the closed loop's reference falls from fully open to the target.
    floor: r_min, the mean open rate that the controller holds every site above (sec 4.1(4)).
    gain, integral: proportional gain of the controller, and integral gain per step.
    on_collapse: "report" diagnoses into `collapses`, "act" also applies the remedy, "ignore" does neither.
    ledger: from `dynamicgate.trace(model, example)` where layers run several times a sample; `fit` makes it for you.
    """

    target: float | None = None
    form: str = "linear"
    weight: float | Schedule = 0.0
    keep: float | Schedule = 0.5
    tau: float | Schedule | None = None
    theta: float | Schedule | None = None
    warmup: float = 0.05
    ramp: float = 0.5
    floor: float = 0.02
    gain: float = 20.0
    integral: float = 0.5
    steer: float = 0.0
    on_collapse: Literal["report", "act", "ignore"] = "report"
    ledger: Ledger | None = None

    lambda_: float = field(default=0.0, init=False)
    relative: float | None = field(default=None, init=False)
    reference: float | None = field(default=None, init=False)
    readings: dict[str, list[Reading]] = field(default_factory=dict, init=False, repr=False)
    collapses: list[Collapse] = field(default_factory=list, init=False, repr=False)
    _memory: float = field(default=0.0, init=False, repr=False)
    _nudge: float = field(default=0.0, init=False, repr=False)
    _theta_caps: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _relief: float = field(default=1.0, init=False, repr=False)
    _eased: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _hold: tuple[float, float] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.target is not None and not 0.0 < self.target <= 1.0:
            raise ValueError(f"a budget is a share of the dense MACs: expected 0 < target <= 1, received {self.target}")
        if self.form not in PENALTIES:
            raise ValueError(f"form must be one of {', '.join(PENALTIES)}, received {self.form!r}")
        if not (0.0 <= self.warmup < 1.0 and 0.0 < self.ramp <= 1.0 - self.warmup):
            raise ValueError(
                f"expected 0 <= warmup < 1 and 0 < ramp <= 1 - warmup, received {self.warmup}, {self.ramp}"
            )
        if isinstance(self.tau, int | float):
            _check_tau(self.tau)
        if isinstance(self.theta, int | float):
            _check_theta(self.theta)
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is an open rate: expected 0 <= floor < 1, received {self.floor}")
        if self.on_collapse not in ("report", "act", "ignore"):
            raise ValueError(f"on_collapse must be report, act or ignore, received {self.on_collapse!r}")

    def apply_(self, model: nn.Module, progress: float) -> None:
        """Set tau and theta for this moment; call it before the forward pass (after it, autograd would object)."""
        if self.ledger is None:
            self.ledger = Ledger(model)
            check_reachable(self, self.ledger)
        now = self._held(progress)
        for name, gate in gates_of(model).items():
            if self._nudge:
                with torch.no_grad():
                    gate.bias.sub_(self._nudge)
            if self.tau is not None:
                gate.tau.fill_(_check_tau(as_schedule(self.tau)(now)))
            if self.theta is not None:
                gate.theta.fill_(min(_check_theta(as_schedule(self.theta)(now)), self._theta_caps.get(name, 1.0)))
            elif name in self._theta_caps:
                gate.theta.clamp_(max=self._theta_caps[name])

    def penalty(self, used: Usage, progress: float) -> Tensor:
        """What to add to the task loss."""
        if self.ledger is None:
            raise RuntimeError("call budget.apply_(model, progress) before the forward pass")
        across = _Processes(used)
        if self.target is None:
            now = self._held(progress)
            keep = as_schedule(self.keep)(now)
            self.lambda_ = as_schedule(self.weight)(now) * self._relief
            form = PENALTIES[self.form]
            terms = [form(used[site], self.ledger.gates[site], keep, across.mean) for site in used]
            loss = self.lambda_ * torch.stack(terms).sum()
        else:
            relative = self.ledger.relative({site: straight_through_usage(used[site]) for site in used}) * across.share
            self._control(across.reduce(relative), progress)
            loss = self.lambda_ * relative
        return loss + self._watch(used, progress, across)

    def _control(self, relative: float, progress: float) -> None:
        """Proportional-integral control of lambda towards a reference that falls gently to the target."""
        assert self.ledger is not None
        assert self.target is not None
        self.relative = relative
        start = self.ledger.relative_at(1.0)
        self.reference = cosine(start, self.target, begin=self.warmup, end=self.warmup + self.ramp)(progress)
        if progress < self.warmup:
            self.lambda_ = 0.0
            return
        error = relative - self.reference
        self._nudge = max(-0.2, min(0.2, self.steer * error))
        self._memory = _clamp(self._memory + self.integral * error)
        self.lambda_ = _clamp(self.gain * error + self._memory) * self._relief

    def _watch(self, used: Usage, progress: float, across: _Processes) -> Tensor:
        """Hold every site above its floor, log p and g, and look for collapse."""
        lift = torch.zeros((), device=next(iter(used.values())).p_BG.device)
        assert self.ledger is not None
        keep = self.target if self.target is not None else as_schedule(self.keep)(self._held(progress))
        for site in used:
            decision, gate = used[site], self.ledger.gates[site]
            g = across.mean(straight_through_usage(decision))
            rate = float(g.detach())
            guarded = self.target is not None or self.on_collapse == "act"
            if guarded and rate < self.floor:
                lift = lift + 2.0 * self.gain * (self.floor - rate) * (self.floor - g)
            readings = self.readings.setdefault(site, [])
            if readings and progress - readings[-1].progress < 1.0 / READINGS_KEPT:
                continue
            p = float(across.mean(decision.p_BG).detach())
            readings.append(Reading(progress, p, rate, float(gate.theta), float(gate.tau), self.lambda_, keep))
            del readings[:-READINGS_KEPT]
            if self.on_collapse != "ignore" and (found := diagnose(site, readings, floor=self.floor)):
                known = any(c.site == site and progress - c.progress < RAPID_WINDOW for c in self.collapses)
                if not known:  # one fall is one report
                    self.collapses.append(found)
                if self.on_collapse == "act":
                    self._remedy(found, readings[-1], known=known)
        return lift

    def _remedy(self, collapse: Collapse, now: Reading, *, known: bool) -> None:
        if collapse.name == "phase-shock" and (known or self._hold is None):
            if not known:
                at = max(0.0, self._held(collapse.progress) - 0.1)
                self._hold = (at, min(1.0, collapse.progress + 0.1))
        elif now.p >= 0.2:  # waiting did not help, or it was the threshold from the start
            self._theta_caps[collapse.site] = 0.9 * now.p
        elif now.progress - self._eased.get(collapse.site, -1.0) >= EASING_PAUSE:
            # Again while it stays shut, but not before the last easing could have had an effect.
            self._relief *= 0.5
            self._eased[collapse.site] = now.progress

    def _held(self, progress: float) -> float:
        """Progress as the schedules see it: after a shock they go back, wait, and then catch up by the end."""
        if self._hold is None:
            return progress
        at, until = self._hold
        return at if progress <= until else at + (progress - until) * (1.0 - at) / max(1e-9, 1.0 - until)

    @torch.no_grad()
    def calibrate_(self, model: nn.Module, inputs: Iterable[Tensor], *, rounds: int = 24) -> float:
        """Shift all thresholds by one amount of logit so that the hard model meets the target on `inputs`; returns what
        it then executes. Use data that was not used for testing. The shift is small if training held the budget."""
        if self.target is None:
            raise ValueError("only a Budget with a target can be calibrated")
        gates = gates_of(model)
        ledger = self.ledger or Ledger(model)
        batches = list(inputs)
        before = {name: float(cut(gate)) for name, gate in gates.items()}

        def relative_at(shift: float) -> float:
            for name, gate in gates.items():
                gate.theta.copy_(torch.sigmoid((before[name] + shift) / gate.tau).clamp(1e-6, 1.0 - 1e-6))
            return executed_relative(model, ledger, batches)

        low, high = -8.0, 8.0
        found = [(abs(relative_at(0.0) - self.target), 0.0)]
        for _ in range(rounds):
            middle = 0.5 * (low + high)
            relative = relative_at(middle)
            found.append((abs(relative - self.target), middle))
            low, high = (middle, high) if relative > self.target else (low, middle)
        return relative_at(min(found, key=lambda f: (f[0], abs(f[1])))[1])

    def state_dict(self) -> dict[str, Any]:
        """The controller's memory, as plain JSON values."""
        return {
            "lambda": self.lambda_,
            "memory": self._memory,
            "relative": self.relative,
            "reference": self.reference,
            "theta_caps": dict(self._theta_caps),
            "relief": self._relief,
            "eased": dict(self._eased),
            "hold": self._hold,
            "readings": {site: [list(r) for r in rows] for site, rows in self.readings.items()},
            "collapses": [vars(c) for c in self.collapses],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.lambda_, self._memory = state["lambda"], state["memory"]
        self.relative, self.reference = state["relative"], state["reference"]
        self._theta_caps, self._relief = dict(state["theta_caps"]), state["relief"]
        self._eased = dict(state["eased"])
        self._hold = tuple(state["hold"]) if state["hold"] else None
        self.readings = {site: [Reading(*row) for row in rows] for site, rows in state["readings"].items()}
        self.collapses = [Collapse(**c) for c in state["collapses"]]


def cut(gate: Gate) -> Tensor:
    """tau * logit(theta): the logit above which the gate opens. Log it: tau and theta move it together."""
    return gate.tau * torch.logit(gate.theta)


@torch.no_grad()
def executed_relative(model: nn.Module, ledger: Ledger, inputs: Iterable[Tensor]) -> float:
    """Executed MACs relative to dense over `inputs`, hard gates, evaluation mode."""
    total, rows = 0.0, 0
    with evaluating(model):
        for x in inputs:
            with usage(unwrap(model)) as used:
                model(x)
            total += float(ledger.relative({site: used[site].g_BG for site in used})) * len(x)
            rows += len(x)
    return total / rows


def check_reachable(budget: Budget, ledger: Ledger) -> None:
    """A budget below the fixed costs is an error now, not a surprise after training."""
    if budget.target is None:
        return
    least = ledger.relative_at(max(budget.floor, 1e-9))
    if budget.target < least:
        gate = ledger.gate / ledger.dense
        raise ValueError(
            f"a budget of {budget.target} cannot be met: the gate networks alone cost {gate:.3f} of dense, and with "
            f"all gates at their floor of {budget.floor} the model executes {least:.3f}. Ask for more, or make the "
            "gates cheaper (larger block, net='low-rank' with a smaller rank, kind='static')"
        )


class _Processes:
    """Means over all processes of a distributed run, whose gradients average to those of one process."""

    def __init__(self, used: Usage) -> None:
        decision = next(iter(used.values()))
        self.together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.share = 1.0
        if self.together:
            rows = torch.tensor(float(decision.p_BG.shape[0]), device=decision.p_BG.device)
            total = rows.clone()
            dist.all_reduce(total)
            self.share = float(rows) * dist.get_world_size() / float(total)

    def reduce(self, value: Tensor) -> float:
        """The mean of a (share-weighted) value over processes."""
        value = value.detach().clone()
        if self.together:
            dist.all_reduce(value)
            value /= dist.get_world_size()
        return float(value)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all rows of all processes, with this process's share of the gradient."""
        local = value.sum() / max(1, value.numel()) * self.share
        return local + (self.reduce(local) - local.detach()) if self.together else local


def _check_tau(tau: float) -> float:
    if not (tau > 0.0 and math.isfinite(tau)):
        raise ValueError(f"the temperature tau must be positive and finite, received {tau}")
    return tau


def _check_theta(theta: float) -> float:
    if not 0.0 < theta < 1.0:
        raise ValueError(f"theta is compared with a probability: expected 0 < theta < 1, received {theta}")
    return theta


def _clamp(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("the budget controller received a value that is not finite: has the loss become NaN?")
    return max(-LAMBDA_LIMIT, min(LAMBDA_LIMIT, value))
