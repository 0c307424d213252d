"""The two controls for stages: a cascade of independent networks, and stages that open at random.

A cascade asks the next network where the one before is not sure, and then believes that one alone: nothing an earlier
network computed is used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.metrics import confusion_counts, correlation, quality_of
from dynamicgate.accounting.stage_costs import accuracy_cost_curve, cut_for, finite_cut, opening_scores
from dynamicgate.data import Arrays
from dynamicgate.files import write_text
from dynamicgate.gating.recording import usage
from dynamicgate.gating.stages import stages_of
from dynamicgate.io.model_file import load
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, dense_macs, given
from dynamicgate.lab.methods.models import part_of_cascade
from dynamicgate.lab.methods.samples import SampleStats
from dynamicgate.modules import evaluating
from dynamicgate.presets import PLANS, stage_costs

ROWS = 2048


def train_cascade(
    s: Settings,
    splits: Splits,
    folder: Path,
    *,
    run_one: Callable[..., dict[str, Any]],
    device: str,
    label: str,
    show: bool,
) -> dict[str, Any]:
    """Train one network for each stage, put the cut where validation rows meet the budget, and measure the cascade.

    The networks themselves are measured on validation rows only: test rows are seen once, by the whole.
    """
    blind, runs, nets = replace(splits, test=splits.valid), [], []
    costs = stage_costs(PLANS[given(s.stages)], s.budget)
    for k, cost in enumerate(costs):
        part = replace(part_of_cascade(s, cost), seed=s.seed + 1000 * k).resolved(splits)
        place, name = folder / f"net-{k + 1}", f"{label}, network {k + 1} of {len(costs)}"
        runs.append(run_one(part, blind, place, device=device, label=name, show=show))
        nets.append(load(place / "model.safetensors"))
    full = dense_macs((splits.train.features, *given(s.hidden), splits.classes))
    macs_K = torch.tensor([MacCounter.for_mlp(net).executed({}) for net in nets], dtype=torch.float64).cumsum(0)
    valid_scores, test_scores = (outputs_of(nets, part) for part in (splits.valid, splits.test))
    cut = cut_for(unsure(valid_scores), macs_K.expand(len(splits.valid), -1), s.budget * full)
    valid_at_B, at_B = ((opening_scores(unsure(scores)) > cut).sum(1) for scores in (valid_scores, test_scores))
    run = describe_run(s, splits, test_scores, macs_K, at_B, full)
    run["valid"] = {
        "relative": float(macs_K[valid_at_B].mean()) / full,
        **quality_of(confusion_counts(stopped_at(valid_scores, valid_at_B), splits.valid.y.cpu())),
    }
    run |= {"seconds": sum(r["seconds"] for r in runs), "steps": sum(r["steps"] for r in runs)}
    run["params"] = sum(p.numel() for net in nets for p in net.parameters())
    if distributed.rank() == 0:
        stats = SampleStats()
        stats.add(stopped_at(test_scores, at_B), macs_K[at_B])
        write_text(folder / "samples.json", json.dumps(stats.to_dict(splits)))
        write_text(folder / "run.json", json.dumps(run))
    return run


@torch.no_grad()
def outputs_of(nets: list[nn.Module], part: Arrays) -> Tensor:
    """The scores of every network for every row, [K, N, C]."""
    found = []
    for net in nets:
        with evaluating(net):
            found.append(torch.cat([net(x).float() for x, _ in part.batches(ROWS)]))
    return torch.stack(found)


def unsure(scores_KNC: Tensor) -> Tensor:
    """What decides whether the next network is asked: minus the margin, for all networks but the last, [N, K - 1]."""
    first, second = scores_KNC[:-1].topk(2, dim=-1).values.unbind(-1)
    return (second - first).T


def stopped_at(scores_KNC: Tensor, at_N: Tensor) -> Tensor:
    """The scores of the network at which each row stops, [N, C]."""
    return scores_KNC[at_N, torch.arange(len(at_N))]


def describe_run(
    s: Settings, splits: Splits, scores_KNC: Tensor, macs_K: Tensor, at_B: Tensor, full: float
) -> dict[str, Any]:
    """A run as `run_one` returns it, without what only training knows."""
    y_B, count = splits.test.y.cpu(), len(at_B)
    stopped_BC = stopped_at(scores_KNC, at_B)
    cost_B = macs_K[at_B] / full
    right_BK = (scores_KNC.argmax(-1) == y_B).T
    opened = [float((at_B >= k).double().mean()) for k in range(len(macs_K))]
    p5, p50, p95 = torch.quantile(cost_B, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    exits = torch.bincount(at_B, minlength=len(macs_K)).double() / count
    accuracy_K = right_BK.double().mean(0)
    wrong_B = (stopped_BC.argmax(1) != y_B).double()
    curve = accuracy_cost_curve(unsure(scores_KNC), macs_K.expand(count, -1), right_BK, full)
    return {
        "model": s.model,
        "seed": s.seed,
        "data": splits.name,
        "quality": quality_of(confusion_counts(stopped_BC, y_B)),
        "macs": {
            "dense": full,
            "executed": float(cost_B.mean()) * full,
            "gate": 0.0,
            "relative": float(cost_B.mean()),
            "relative_zero_skip": None,  # not counted
            "structure_saved": 1.0 - float(macs_K[-1]) / full,
            "gate_saved": float(macs_K[-1]) / full - float(cost_B.mean()),
        },
        "proxies": {},
        "layers": [],
        "budget": s.budget,
        "sparsity": None,
        "samples": {"p5": p5, "p50": p50, "p95": p95},
        "gates": [],
        "stages": {
            "open": opened,
            "relative": (macs_K / full).tolist(),
            "accuracy": accuracy_K.tolist(),
            "random": float((exits * accuracy_K).sum()),
            "cost_error": correlation(cost_B, wrong_B),
        },
        "curve": [{**point, "cut": finite_cut(point["cut"])} for point in curve],
        "notes": [],
        "collapses": [],
        "settings": s.to_json(),
    }


@torch.no_grad()
def open_at_random_(model: nn.Module, valid: Arrays) -> None:
    """Let rows open stages by chance, as often as they open them on `valid`."""
    stages = stages_of(model)
    if stages is None:
        raise ValueError("stages can be opened at random only in a model that has some")
    device, opened, rows = stages.cut.device, torch.zeros(stages.count, dtype=torch.float64), 0
    with evaluating(model):
        for x, _ in valid.batches(ROWS):
            with usage(model) as used:
                model(x.to(device))
            assert used.stages is not None
            opened, rows = opened + used.stages.open.sum(0).double().cpu(), rows + len(x)
    rates = opened[1:] / opened[:-1].clamp(min=1)
    stages.config = replace(stages.config, decide="random")
    stages.cut.copy_(1.0 - rates)
