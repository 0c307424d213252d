"""What both budgets share: tau and theta over training, a floor for every site, a watch for collapse (sec 4.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor, nn

from dynamicgate.budget.collapse import RAPID_WINDOW, Collapse, Reading, Rescue, diagnose
from dynamicgate.budget.gate_gradients import GateGradients
from dynamicgate.budget.locality import locality
from dynamicgate.budget.penalties import load_balance, straight_through_usage
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, is_gated, named_gates
from dynamicgate.gating.stages import StageGate, stages_of
from dynamicgate.modules import unwrap
from dynamicgate.schedule import Schedule, as_schedule

READINGS_KEPT = 200
FLOOR_GAIN = 20.0


@dataclass(kw_only=True)
class GateBudget(ABC):
    """What the gates of a model may use. `Budget` closes the loop, `OpenLoopBudget` follows the paper.

    In your own loop, for every batch::

        budget.apply_(model, progress)                  # before the forward pass
        with dg.usage(model) as used:
            loss = task_loss(model(x), y)
        (loss + budget.step(used, progress)).backward()

    tau, theta: values or schedules that replace the gates' own; None leaves them alone.
    floor: r_min, the mean open rate that every site is held above (sec 4.1(4)).
    on_collapse: "act" diagnoses into `collapses` and applies the remedy, "report" does not apply it, "ignore" does
        neither.
    balance: weight of a penalty on gates that use some of their blocks much more than others, for gates that choose
        among many, as those of wide layers in language models; 0 for none. About 0.1 where it helps.
    locality: weight of a penalty on blocks that only one of `together` rows opens: neighbours, and rows at the same
        place of different sequences. Rows that run together read every block that one of them opens.
    """

    tau: float | Schedule | None = None
    theta: float | Schedule | None = None
    floor: float = 0.02
    on_collapse: Literal["report", "act", "ignore"] = "act"
    balance: float = 0.0
    locality: float = 0.0
    together: int = 16

    lambda_: float = field(default=0.0, init=False)
    collapses: list[Collapse] = field(default_factory=list, init=False, repr=False)
    readings: dict[str, list[Reading]] = field(default_factory=dict, init=False, repr=False)
    _rescue: Rescue = field(default_factory=Rescue, init=False, repr=False)
    _gates: dict[str, Gate] = field(default_factory=dict, init=False, repr=False)
    _stages: StageGate | None = field(default=None, init=False, repr=False)
    _applied: bool = field(default=False, init=False, repr=False)
    _stepped: bool = field(default=False, init=False, repr=False)
    _model: ref[nn.Module] | None = field(default=None, init=False, repr=False, compare=False)
    _gradients: GateGradients = field(default_factory=GateGradients, init=False, repr=False)
    _rates: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """The open rates of the last `step`, which decide how strongly a site is lifted to its floor."""

    def __post_init__(self) -> None:
        if isinstance(self.tau, int | float):
            _check_tau(self.tau)
        if isinstance(self.theta, int | float):
            _check_theta(self.theta)
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is an open rate: expected 0 <= floor < 1, received {self.floor}")
        if self.on_collapse not in ("report", "act", "ignore"):
            raise ValueError(f"on_collapse must be report, act or ignore, received {self.on_collapse!r}")
        for name in ("balance", "locality"):
            if not (getattr(self, name) >= 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(
                    f"{name} is the weight of a penalty: expected 0 or more, received {getattr(self, name)}"
                )
        if self.together < 2:
            raise ValueError(f"together is how many rows run at once: expected 2 or more, received {self.together}")

    @torch.no_grad()
    def apply_(self, model: nn.Module, progress: float) -> None:
        """Set tau and theta of the gates for this moment; call it before the forward pass, because autograd objects to
        a later change."""
        if not is_gated(model):
            raise ValueError("a budget steers gates, and this model has none: call dynamicgate.gate_(model, ...) first")
        gates, stages = named_gates(model), stages_of(model)
        self._refuse_another(unwrap(model), gates)
        self._gates, self._stages, self._applied = gates, stages, True
        self._model = ref(unwrap(model))
        self._gradients.apply_(unwrap(model), progress, self._came_down(progress))
        now, caps = self._rescue.schedule_time(progress), self._rescue.theta_caps
        for name, gate in self._gates.items():
            if self.tau is not None:
                gate.tau.fill_(_check_tau(as_schedule(self.tau)(now)))
            if self.theta is not None:
                gate.theta.fill_(min(_check_theta(as_schedule(self.theta)(now)), caps.get(name, 1.0)))
            elif name in caps:
                gate.theta.clamp_(max=caps[name])

    def _refuse_another(self, model: nn.Module, gates: dict[str, Gate]) -> None:
        """An error for a second model: lambda, readings and what the controller remembers belong to the first."""
        known = {id(gate) for gate in self._gates.values()}
        if not self._stepped or self._model is None or self._model() is model:
            return
        if known.isdisjoint(id(gate) for gate in gates.values()):  # else it is a part of the first, or holds it
            raise ValueError(
                "this budget steers the gates of another model, and what it learned there is wrong here: make one "
                "budget for each model, or call budget.reset() before the next"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy does not know which model it will be used with: that may be a copy too."""
        return {**vars(self), "_model": None}

    def step(self, used: Usage, progress: float) -> Tensor:
        """Take in what the gates decided for this batch, and return what to add to the task loss. Once per optimizer
        step: it moves the controller and records readings. A batch without rows is a ValueError."""
        means = self._means(used)
        self._check_graph(used)
        term, rates = self._advance(used, progress, means)
        self._rates = rates
        term = term + self._floor_term(used, rates, means) + self._choice_terms(used, means)
        self._record(used, rates, progress, means)
        self._gradients.steps += 1
        self._stepped = True
        return term

    def penalty(self, used: Usage) -> Tensor:
        """What to add to the task loss with the weights of the last `step`. It changes nothing: use it for a log, or
        for the further micro-batches of one optimizer step."""
        means = self._means(used)
        term, rates = self._weighted(used, means)
        rates = self._rates if self._rates.keys() == rates.keys() else rates
        return term + self._floor_term(used, rates, means) + self._choice_terms(used, means)

    @abstractmethod
    def _advance(self, used: Usage, progress: float, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        """Move lambda to this moment; the weighted usage and the open rate of every site."""

    @abstractmethod
    def _weighted(self, used: Usage, means: RowMeans) -> tuple[Tensor, dict[str, float]]:
        """The weighted usage with the lambda there is, and the open rate of every site."""

    @abstractmethod
    def _target_rate(self, progress: float) -> float:
        """What the open rate is compared with when a collapse is diagnosed."""

    def _came_down(self, progress: float) -> bool:
        """Whether gates execute what they are to execute at the end."""
        return False

    @property
    def _guards_floor(self) -> bool:
        return self.on_collapse == "act"

    def _check_graph(self, used: Usage) -> None:
        """An error for decisions that no penalty can change, in a training step."""
        trained = [site for site in used if self._gates[site].training and self._gates[site].bias.requires_grad]
        if trained and torch.is_grad_enabled() and not any(used[site].p.requires_grad for site in trained):
            raise RuntimeError(
                "the forward pass of this step ran without gradients, so that the budget cannot act on the gates. With "
                "gradient checkpointing pass use_reentrant=False; otherwise run the model outside of torch.no_grad()"
            )

    def _means(self, used: Usage) -> RowMeans:
        if not self._applied:
            raise RuntimeError("call budget.apply_(model, progress) before the forward pass")
        means = RowMeans(_rows_of(used).flatten(0, -2))
        if not means.count:
            raise ValueError(
                "the batch of this step has no rows, so that no gate decided anything: leave empty batches out (of "
                "several processes some may have no rows, not all)"
            )
        return means

    def _opened(self, used: Usage, means: RowMeans) -> list[Tensor]:
        return [means.local(used[site].open) for site in used]

    def _floor_term(self, used: Usage, rates: dict[str, float], means: RowMeans) -> Tensor:
        """Pushes every site that is below its floor back up."""
        lift = torch.zeros((), device=_rows_of(used).device)
        for site, rate in rates.items():
            if self._guards_floor and not self._routes(site) and rate < self.floor:
                opened = means.mean(straight_through_usage(used[site]))
                lift = lift + 2.0 * self._floor_gain * (self.floor - rate) * (self.floor - opened)
        return lift

    def _choice_terms(self, used: Usage, means: RowMeans) -> Tensor:
        """Balance and locality, the mean over the gates that choose among blocks for each input; routers have a penalty
        of their own."""
        choosing = [used[site] for site in used if self._gates[site].config.kind == "dynamic"]
        total = _rows_of(used).new_zeros(())
        if self.balance and choosing:
            total = total + self.balance * torch.stack([load_balance(one, means) for one in choosing]).mean()
        if self.locality and choosing:
            terms = [locality(one, self.together, means) for one in choosing]
            total = total + self.locality * torch.stack(terms).mean()
        return total

    @property
    def _floor_gain(self) -> float:
        return FLOOR_GAIN

    def _routes(self, site: str) -> bool:
        return self._gates[site].config.kind == "router"  # always k of E: it has no floor and cannot collapse

    def _record(self, used: Usage, rates: dict[str, float], progress: float, means: RowMeans) -> None:
        """Note p and the open rate now and then, and look for collapse."""
        for site, rate in rates.items():
            readings = self.readings.setdefault(site, [])
            if readings and progress - readings[-1].progress < 1.0 / READINGS_KEPT:
                continue
            gate, p = self._gates[site], float(means.mean(used[site].p).detach())
            theta, tau, target = float(gate.theta), float(gate.tau), self._target_rate(progress)
            readings.append(Reading(progress, p, rate, theta, tau, self.lambda_, target))
            del readings[:-READINGS_KEPT]
            if not self._routes(site):
                self._look_for_collapse(site, readings)

    def _look_for_collapse(self, site: str, readings: list[Reading]) -> None:
        found = diagnose(site, readings, floor=self.floor) if self.on_collapse != "ignore" else None
        if found is None:
            return
        known = any(c.site == site and found.progress - c.progress < RAPID_WINDOW for c in self.collapses)
        if not known:  # one fall is one report
            self.collapses.append(found)
        if self.on_collapse == "act":
            self._rescue.act(found, readings[-1], known=known)

    def reset(self) -> None:
        """Forget everything recorded so far, for another training run."""
        self.lambda_, self.collapses, self.readings = 0.0, [], {}
        self._rescue, self._gates, self._stages, self._rates = Rescue(), {}, None, {}
        self._applied, self._stepped, self._model = False, False, None
        self._gradients = GateGradients()

    def state_dict(self) -> dict[str, Any]:
        """Everything recorded, as plain JSON values."""
        return {
            "lambda": self.lambda_,
            "rescue": self._rescue.state_dict(),
            "readings": {site: [list(r) for r in rows] for site, rows in self.readings.items()},
            "collapses": [vars(c) for c in self.collapses],
            "gradients": vars(self._gradients),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.lambda_ = state["lambda"]
        self._rescue = Rescue.from_state(state["rescue"])
        self.readings = {site: [Reading(*row) for row in rows] for site, rows in state["readings"].items()}
        self.collapses = [Collapse(**c) for c in state["collapses"]]
        self._gradients = GateGradients(**state.get("gradients", {}))  # absent in checkpoints from before


def _rows_of(used: Usage) -> Tensor:
    """A tensor with the rows of the recorded forward pass."""
    if used.stages is not None:
        return used.stages.open
    return next(iter(used.values())).p


def _check_tau(tau: float) -> float:
    if not (tau > 0.0 and math.isfinite(tau)):
        raise ValueError(f"the temperature tau must be positive and finite, received {tau}")
    return tau


def _check_theta(theta: float) -> float:
    if not 0.0 < theta < 1.0:
        raise ValueError(f"theta is compared with a probability: expected 0 < theta < 1, received {theta}")
    return theta
