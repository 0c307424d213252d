"""How a gate shares out its work: balance of experts, dropped assignments, and whether hard inputs get more (sec 5.5).

Shapes in names: S samples, R rows that the gate decided about (one a sample, or one a token), E experts, C classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import deployed
from dynamicgate.data import Arrays
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.gating.routing import top_k_mask
from dynamicgate.modules import evaluating


@dataclass(frozen=True)
class RoutingStats:
    """What one gate did on one data set; see the page on the Switch for exact definitions. What only a router has is
    None for other gates.

    active: mean over samples of the share of units that ran.
    corr_hardness: correlation of that share with hardness, 1 - the model's largest probability; corr_judge: with the
        hardness that another model sees.
    load: assignments of each expert before any was dropped; entropy, cv: of these counts, in nats, and their standard
        deviation over their mean.
    mutual_information: of the most probable expert and the label, in nats.
    capacity: places of an expert, mean over batches. assignments, dropped: all of them, and those without a place.
    rows_short, rows_unserved: rows that lost at least one of their experts, and those that lost all.
    """

    site: str
    kind: str
    samples: int
    rows: int
    active: float
    corr_hardness: float | None
    corr_judge: float | None = None
    load: list[int] | None = None
    entropy: float | None = None
    max_entropy: float | None = None
    cv: float | None = None
    mutual_information: float | None = None
    capacity: float | None = None
    assignments: int | None = None
    dropped: int | None = None
    rows_short: int | None = None
    rows_unserved: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<20}{_shown(value)}" for name, value in self.to_dict().items() if value is not None)


@torch.no_grad()
def measure_routing(
    model: nn.Module,
    data: Arrays | tuple[Tensor, Tensor],
    site: str | None = None,
    *,
    batch: int = 128,
    judge: nn.Module | None = None,
) -> RoutingStats:
    """Run `model` in evaluation mode over `data` and account for the decisions of its gate at `site`.

    site: may be left out where the model has one gate. batch: rows of one forward pass, over which experts have a
    capacity. judge: another classifier, whose doubts are hardness that the model's own gates had no part in.
    """
    data = data if isinstance(data, Arrays) else Arrays(*data)
    if not len(data):
        raise ValueError("nothing to look at: the data set is empty")
    name, gate = _gate_at(model, site)
    with evaluating(model), evaluating(judge or model):
        seen = [_see(model, name, gate, x, y, int(data.y.max()) + 1, judge) for x, y in data.batches(batch)]
    share_S = torch.cat([s.share_S for s in seen])
    found: dict[str, Any] = {
        "site": name,
        "kind": gate.config.kind,
        "samples": len(share_S),
        "rows": sum(s.rows for s in seen),
        "active": float(share_S.mean()),
        "corr_hardness": _correlation(_joined([s.hardness_S for s in seen]), share_S),
        "corr_judge": _correlation(_joined([s.judged_S for s in seen]), share_S),
    }
    if gate.config.kind == "router":
        load_E, top_EC = (torch.stack(x).sum(0) for x in ([s.load_E for s in seen], [s.top_EC for s in seen]))
        lost_R = torch.cat([s.lost_R for s in seen])
        places = [s.places for s in seen if s.places is not None]
        found |= {
            "load": load_E.long().tolist(),
            "entropy": _entropy(load_E),
            "max_entropy": math.log(gate.blocks),
            "cv": float(load_E.std(correction=0) / load_E.mean()),
            "mutual_information": max(0.0, _entropy(top_EC.sum(0)) + _entropy(top_EC.sum(1)) - _entropy(top_EC)),
            "capacity": sum(places) / len(places) if places else None,
            "assignments": int(load_E.sum()),
            "dropped": int(lost_R.sum()),
            "rows_short": int((lost_R > 0).sum()),
            "rows_unserved": int((lost_R == load_E.sum() / len(lost_R)).sum()),  # every row asked for k
        }
    return RoutingStats(**found)


class _Seen(NamedTuple):
    """One batch."""

    rows: int
    share_S: Tensor
    hardness_S: Tensor | None
    judged_S: Tensor | None
    load_E: Tensor
    top_EC: Tensor
    lost_R: Tensor
    places: int | None


def _see(
    model: nn.Module, name: str, gate: Gate, x: Tensor, y_S: Tensor, classes: int, judge: nn.Module | None
) -> _Seen:
    with usage(model) as used:
        scores = model(x.to(gate.tau.device))
    decision = used[name]
    g_RE, routed_RE, p_RE = (t.double().cpu().flatten(0, -2) for t in (decision.open, decision.routed, decision.p))
    open_RE = deployed({name: gate}, used)[name].double().cpu().flatten(0, -2)
    share_R = open_RE @ gate.block_sizes.double().cpu() / gate.site.width
    y_R = y_S.cpu().repeat_interleave(len(g_RE) // len(y_S))  # a token has the label of its sample
    return _Seen(
        rows=len(g_RE),
        share_S=share_R.reshape(len(y_S), -1).mean(1),
        hardness_S=_hardness(scores),
        judged_S=None if judge is None else _hardness(judge(x.to(next(judge.parameters()).device))),
        load_E=routed_RE.sum(0),
        top_EC=top_k_mask(p_RE, 1).T @ nn.functional.one_hot(y_R, classes).double(),
        lost_R=(routed_RE - g_RE).sum(1),
        places=gate.places(len(g_RE)),
    )


def _gate_at(model: nn.Module, site: str | None) -> tuple[str, Gate]:
    gates = named_gates(model)
    if site is None and len(gates) == 1:
        return next(iter(gates.items()))
    if site not in gates:
        raise ValueError(f"site must be one of {', '.join(map(repr, gates)) or '(no gates here)'}, received {site!r}")
    return site, gates[site]


def _hardness(scores: Tensor) -> Tensor | None:
    """1 - the largest probability of each sample, where the model scores classes."""
    return 1.0 - scores.double().softmax(1).amax(1).cpu() if scores.ndim == 2 else None


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _correlation(a_S: Tensor | None, b_S: Tensor) -> float | None:
    """Pearson's, and 0 where either does not vary: a router without drops opens as much for every input."""
    if a_S is None:
        return None
    std_a, std_b = a_S.std(correction=0), b_S.std(correction=0)
    if min(std_a, std_b) < 1e-12:
        return 0.0
    return float(((a_S - a_S.mean()) * (b_S - b_S.mean())).mean() / (std_a * std_b))


def _entropy(counts: Tensor) -> float:
    """In nats, of the distribution that `counts` are in proportion to."""
    return float(torch.special.entr(counts / counts.sum()).sum())


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
