"""What a gate or router did on a dataset: load balance, dropped tokens, and whether hard inputs get more compute.

Shapes in names: S samples, R rows that the gate decided about (one per sample, or one per token), E experts, C classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import deployed
from dynamicgate.accounting.metrics import correlation
from dynamicgate.data import Arrays
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.gating.routing import top_k_mask
from dynamicgate.modules import evaluating


@dataclass(frozen=True)
class RoutingStats:
    """What one gate did on one dataset; docs/switch.md has the exact definitions. Fields that only a router has are
    None for other gates.

    active: mean over samples of the fraction of units that ran.
    corr_hardness: correlation of that fraction with hardness, which is 1 - the model's largest probability;
        corr_reference: with the hardness of the same sample for another model. None where the correlation is undefined
        because one of the two does not vary.
    load: assignments of each expert before any was dropped. entropy, cv: entropy of these counts in nats, and their
        coefficient of variation; max_entropy: that of an even load.
    mutual_information: of a row's most probable expert and its label, in nats.
    capacity: rows that one expert takes, mean over batches.
    assignments, dropped: the number of all assignments, and of those that were dropped.
    rows_with_drops, rows_dropped: rows that at least one of their experts dropped, and rows that all of them dropped.
    """

    site: str
    kind: str
    samples: int
    rows: int
    active: float
    corr_hardness: float | None
    corr_reference: float | None = None
    load: list[int] | None = None
    entropy: float | None = None
    max_entropy: float | None = None
    cv: float | None = None
    mutual_information: float | None = None
    capacity: float | None = None
    assignments: int | None = None
    dropped: int | None = None
    rows_with_drops: int | None = None
    rows_dropped: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<20}{_format(value)}" for name, value in asdict(self).items() if value is not None)


@torch.no_grad()
def measure_routing(
    model: nn.Module,
    data: Arrays | tuple[Tensor, Tensor],
    site: str | None = None,
    *,
    batch: int = 128,
    reference_model: nn.Module | None = None,
) -> RoutingStats:
    """Run `model` in evaluation mode over `data` and summarise the decisions of its gate at `site`.

    site: may be left out if the model has one gate. batch: rows of one forward pass, to which the capacity of experts
    refers. reference_model: another classifier, for `corr_reference`: its hardness does not depend on what the gates of
    `model` opened.
    """
    data = data if isinstance(data, Arrays) else Arrays(*data)
    if not len(data):
        raise ValueError("expected at least one sample, received an empty dataset")
    name, gate = _gate_at(model, site)
    classes = int(data.y.max()) + 1
    with evaluating(model), evaluating(reference_model or model):
        batches = [_run_batch(model, name, gate, x, y, classes, reference_model) for x, y in data.batches(batch)]
    active_S = torch.cat([b.active_S for b in batches])
    stats: dict[str, Any] = {
        "site": name,
        "kind": gate.config.kind,
        "samples": len(active_S),
        "rows": sum(b.rows for b in batches),
        "active": float(active_S.mean()),
        "corr_hardness": _correlation([b.hardness_S for b in batches], active_S),
        "corr_reference": _correlation([b.reference_hardness_S for b in batches], active_S),
    }
    if gate.config.kind == "router":
        stats |= _router_stats(gate, batches)
    return RoutingStats(**stats)


class _Batch(NamedTuple):
    """What the gate did in one batch."""

    rows: int
    active_S: Tensor
    hardness_S: Tensor | None
    reference_hardness_S: Tensor | None
    load_E: Tensor
    top_expert_EC: Tensor
    drops_R: Tensor
    capacity: int | None


def _run_batch(
    model: nn.Module, name: str, gate: Gate, x: Tensor, y_S: Tensor, classes: int, reference_model: nn.Module | None
) -> _Batch:
    with usage(model) as used:
        scores = model(x.to(gate.tau.device))
    decision = used[name]
    g_RE, routed_RE, p_RE = (t.double().cpu().flatten(0, -2) for t in (decision.open, decision.routed, decision.p))
    open_RE = deployed({name: gate}, used)[name].double().cpu().flatten(0, -2)
    active_R = open_RE @ gate.block_sizes.double().cpu() / gate.site.width
    y_R = y_S.cpu().repeat_interleave(len(g_RE) // len(y_S))  # a token has the label of its sample
    reference_hardness_S = None
    if reference_model is not None:
        reference_hardness_S = _hardness(reference_model(x.to(next(reference_model.parameters()).device)))
    return _Batch(
        rows=len(g_RE),
        active_S=active_R.reshape(len(y_S), -1).mean(1),
        hardness_S=_hardness(scores),
        reference_hardness_S=reference_hardness_S,
        load_E=routed_RE.sum(0),
        top_expert_EC=top_k_mask(p_RE, 1).T @ nn.functional.one_hot(y_R, classes).double(),
        drops_R=(routed_RE - g_RE).sum(1),
        capacity=gate.expert_capacity(len(g_RE)),
    )


def _router_stats(router: Gate, batches: list[_Batch]) -> dict[str, Any]:
    load_E = torch.stack([b.load_E for b in batches]).sum(0)
    top_expert_EC = torch.stack([b.top_expert_EC for b in batches]).sum(0)
    drops_R = torch.cat([b.drops_R for b in batches])
    capacities = [b.capacity for b in batches if b.capacity is not None]
    information = _entropy(top_expert_EC.sum(0)) + _entropy(top_expert_EC.sum(1)) - _entropy(top_expert_EC)
    return {
        "load": load_E.long().tolist(),
        "entropy": _entropy(load_E),
        "max_entropy": math.log(router.blocks),
        "cv": float(load_E.std(correction=0) / load_E.mean()),
        "mutual_information": max(0.0, information),
        "capacity": sum(capacities) / len(capacities) if capacities else None,
        "assignments": int(load_E.sum()),
        "dropped": int(drops_R.sum()),
        "rows_with_drops": int((drops_R > 0).sum()),
        "rows_dropped": int((drops_R == load_E.sum() / len(drops_R)).sum()),  # every row has k assignments
    }


def _gate_at(model: nn.Module, site: str | None) -> tuple[str, Gate]:
    gates = named_gates(model)
    if site is None and len(gates) == 1:
        return next(iter(gates.items()))
    if site not in gates:
        raise ValueError(f"site must be one of {', '.join(map(repr, gates)) or '(no gates here)'}, received {site!r}")
    return site, gates[site]


def _hardness(scores: Tensor) -> Tensor | None:
    """1 - the largest probability of each sample; None if the output is not one row of class scores per sample."""
    return 1.0 - scores.double().softmax(1).amax(1).cpu() if scores.ndim == 2 else None


def _correlation(hardness: list[Tensor | None], active_S: Tensor) -> float | None:
    """Over the samples of all batches; None without class scores, or where the correlation is undefined."""
    parts = [part for part in hardness if part is not None]
    return correlation(torch.cat(parts), active_S) if parts else None


def _entropy(counts: Tensor) -> float:
    """In nats, of the distribution proportional to `counts`."""
    return float(torch.special.entr(counts / counts.sum()).sum())


def _format(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
