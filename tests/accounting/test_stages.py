"""The MACs of staged models against a loop over rows and connections, and the accuracy-cost curve against itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig, measure
from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.stage_costs import accuracy_cost_curve, cumulative_macs, cut_for, opening_scores, stage_macs
from tests.gating.staged import linears_of, sequential, stage, the_gate

SIZES, STAGES = (5, 13, 9, 3), (0.25, 0.25, 0.5)
GATED_SIZES = (5, 24, 16, 3)


def data(rows: int = 60) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 5), torch.randint(3, (rows,))


def put_cut_(model: nn.Module, x: Tensor) -> None:
    """Where rows stop at every stage."""
    with dg.usage(model.eval()) as used, torch.no_grad():
        model(x)
    assert used.stages is not None
    the_gate(model).cut.copy_(used.stages.score.median(0).values + 1e-4)


def make(kind: str) -> nn.Module:
    model = stage(
        sequential(GATED_SIZES if "gates" in kind else SIZES), STAGES, decide="head" if "head" in kind else "margin"
    )
    if "sparse" in kind:
        dg.sparsity.Static(model, 0.5)
    if "gates" in kind:
        dg.gate_(model, GateConfig(block=2, net="linear", open=0.55), where="4")
        dg.gate_(model, GateConfig(kind="static", block=2), where="2")
        gate = dg.named_gates(model)["2"]
        gate.bias.data[::3] = -1.0
        for gate in dg.named_gates(model).values():
            if isinstance(gate.net, nn.Linear):
                nn.init.normal_(gate.net.weight)
                gate.net.weight.data.mul_(getattr(gate.net, "mask", 1.0))
    return model.eval()


def count_by_hand(model: nn.Module, x: Tensor) -> list[int]:
    """Executed MACs of each row: every connection whose ends are both open, gate networks and heads."""
    stages, linears, gates = the_gate(model), linears_of(model), dg.named_gates(model)
    with dg.usage(model) as used, torch.no_grad():
        model(x)
    assert used.stages is not None
    found = []
    for row in range(len(x)):
        opened = int(used.stages.open[row].sum())
        total = sum(stages.bounds[-1][k + 1] for k in range(opened) if k < len(stages.heads))
        is_open: list[list[bool]] = [[True] * linears[0].in_features]
        for i, linear in enumerate(linears[1:]):
            gate = gates.get(["2", "4"][i])
            units = []
            for unit in range(linear.in_features):
                keep = unit < stages.bounds[i][opened]
                if gate is not None:
                    keep = keep and bool(used[["2", "4"][i]].open[row, unit // gate.config.block])
                units.append(keep)
            is_open.append(units)
        is_open.append([True] * linears[-1].out_features)
        for gate in gates.values():
            if isinstance(gate.net, nn.Linear):
                mask = getattr(gate.net, "mask", torch.ones_like(gate.net.weight, dtype=torch.bool))
                total += sum(sum(line) for line in mask.tolist())
        for i, linear in enumerate(linears):
            mask = getattr(linear, "mask", torch.ones_like(linear.weight, dtype=torch.bool)).tolist()
            for o in range(linear.out_features):
                for n in range(linear.in_features):
                    total += mask[o][n] and is_open[i][n] and is_open[i + 1][o]
        found.append(total)
    return found


KINDS = ["plain", "head", "sparse", "sparse head", "gates", "gates head", "sparse gates"]


@pytest.mark.parametrize("kind", KINDS)
def test_executed_macs_of_every_row_are_a_count_over_connections(kind: str) -> None:
    model, (x, y) = make(kind), data()
    put_cut_(model, x)
    expected = count_by_hand(model, x)
    assert len(set(expected)) >= 3
    rows: list[Tensor] = []
    found = measure(model, (x, y), watch=lambda _out, macs: rows.append(macs))
    assert torch.cat(rows).tolist() == expected
    dense = sum(linear.weight.numel() for linear in linears_of(model))
    assert found.macs["dense"] == dense
    assert found.macs["executed"] == pytest.approx(sum(expected) / len(x), rel=1e-12)
    assert found.relative == pytest.approx(sum(expected) / len(x) / dense, rel=1e-12)
    percentiles = np.quantile(np.array(expected) / dense, [0.05, 0.5, 0.95])
    assert [found.samples[name] for name in ("p5", "p50", "p95")] == pytest.approx(percentiles.tolist(), rel=1e-12)
    split = 1.0 - found.macs["structure_saved"] - found.macs["gate_saved"] + found.macs["gate"] / dense
    assert found.relative == pytest.approx(split, rel=1e-9)
    assert "accuracy" in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_counter_budget_and_measure_give_one_number(kind: str) -> None:
    model, (x, y) = make(kind), data()
    put_cut_(model, x)
    counter = dg.count_macs(model, x[:4])
    assert counter.other == 0.0
    with dg.usage(model) as used, torch.no_grad():
        model(x)
    relative = float(counter.relative(deployed(counter.gates, used)))
    assert relative == pytest.approx(measure(model, (x, y)).relative, rel=1e-6)
    assert float(MacCounter.for_mlp(model).relative(deployed(counter.gates, used))) == relative
    model.train()
    budget = dg.Budget(target=0.9, counter=counter)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.0)
    assert budget.relative == pytest.approx(relative, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_stopping_after_a_stage_costs_what_a_row_that_does_executes(kind: str) -> None:
    model, (x, _) = make(kind), data(12)
    counter, stages = dg.count_macs(model, x), the_gate(model)
    with dg.usage(model) as used, torch.no_grad():
        model(x)
    found = cumulative_macs(counter, deployed(counter.gates, used), len(x))
    for k in range(3):
        stages.cut.copy_(torch.tensor([-torch.inf if i < k else torch.inf for i in range(2)]))
        assert found[:, k].tolist() == count_by_hand(model, x)
    if "gates" not in kind:
        assert stage_macs(counter).tolist() == found[0].tolist()
        assert counter.all_open == pytest.approx(float(stage_macs(counter)[-1]) / counter.dense, rel=1e-6)


def test_connections_still_to_be_pruned_are_left_out_of_the_final_cost() -> None:
    model = stage(sequential((5, 32, 32, 3)), (16, 16))
    densities = {"0": (0.4, 0.6), "2": (0.25, 0.5), "4": (0.5, 0.5)}
    sparsifier = dg.RigL(model, densities, initial_density=dict.fromkeys(densities, 1.0), every=5)
    counter = dg.count_macs(model, torch.randn(2, 5))
    hidden = [(0.4 * 16 * 5, 0.6 * 16 * 5), (0.25 * 16 * 16, 0.5 * 16 * 32), (0.5 * 3 * 16, 0.5 * 3 * 16)]
    expected = [sum(layer[0] for layer in hidden), sum(sum(layer) for layer in hidden)]
    assert stage_macs(counter, sparsifier.pending_by_stage).tolist() == pytest.approx(expected, abs=3.0)
    whole = counter.all_open_without(sparsifier.pending) * counter.dense
    assert float(stage_macs(counter, sparsifier.pending_by_stage)[-1]) == pytest.approx(whole, rel=1e-6)
    assert stage_macs(counter).tolist() == [16 * 5 + 16 * 16 + 3 * 16, 32 * 5 + 16 * 16 + 16 * 32 + 3 * 32]


# --- what the measurement says about stages


def test_shares_accuracies_and_the_expectation_of_random_stops() -> None:
    model, (x, y) = make("plain"), data(200)
    put_cut_(model, x)
    found = measure(model, (x, y), batch=64)
    with dg.usage(model) as used, torch.no_grad():
        out = model(x)
    assert used.stages is not None
    assert found.stages is not None
    stops = used.stages.open.sum(1).long() - 1
    right = torch.stack([z.argmax(1) == y for z in used.stages.outputs], dim=1).double()
    assert found.stages["open"] == pytest.approx(
        [1.0, float((stops >= 1).double().mean()), float((stops >= 2).double().mean())]
    )
    assert found.stages["accuracy"] == pytest.approx(right.mean(0).tolist())
    assert found.stages["cut"] == the_gate(model).cut.tolist()
    random = sum(float((stops == k).double().mean() * right[:, k].mean()) for k in range(3))
    assert found.stages["random"] == pytest.approx(random)
    assert found.accuracy == pytest.approx(float((out.argmax(1) == y).double().mean()))
    cost = torch.tensor(count_by_hand(model, x)).double()
    wrong = (out.argmax(1) != y).double()
    assert found.stages["cost_error"] == pytest.approx(float(torch.corrcoef(torch.stack([cost, wrong]))[0, 1]))
    dense = found.macs["dense"]
    assert found.stages["relative"] == pytest.approx(
        [float(m) / dense for m in stage_macs(dg.count_macs(model, x[:2]))]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", [0, 9, 17, 24])
def test_a_point_of_the_curve_is_what_the_model_does_at_its_cut(kind: str, point: int) -> None:
    model, (x, y) = make(kind), data(80)
    put_cut_(model, x)
    wanted = measure(model, (x, y)).curve[point]
    the_gate(model).cut.fill_(wanted["cut"])
    found = measure(model, (x, y))
    assert found.accuracy == pytest.approx(wanted["accuracy"], rel=1e-12)
    assert found.relative == pytest.approx(wanted["relative"], rel=1e-9)
    assert found.stages is not None
    assert found.stages["open"] == pytest.approx(wanted["open"])
    assert found.curve == measure(model, (x, y)).curve, "it does not depend on where the cut is"


def test_the_curve_begins_with_stage_1_alone_and_ends_with_everything() -> None:
    model, (x, y) = make("plain"), data(80)
    found = measure(model, (x, y))
    assert found.stages is not None
    first, last = found.curve[0], found.curve[-1]
    assert (first["relative"], first["accuracy"]) == pytest.approx(
        (found.stages["relative"][0], found.stages["accuracy"][0])
    )
    assert (last["relative"], last["accuracy"]) == pytest.approx(
        (found.stages["relative"][2], found.stages["accuracy"][2])
    )
    assert first["open"] == [1.0, 0.0, 0.0]
    assert last["open"] == [1.0, 1.0, 1.0]
    costs = [point["relative"] for point in found.curve]
    assert costs == sorted(costs)


def test_without_labels_there_is_no_curve() -> None:
    model, (x, _) = make("plain"), data()
    found = measure(model, x)
    assert found.curve == []
    assert found.stages is not None
    assert found.stages.keys() == {"open", "relative", "cut"}
    values = measure(model, (x, torch.randn(60, 3)))
    assert (values.stages, values.curve) == (found.stages, [])


def test_a_model_without_stages_has_neither() -> None:
    found = measure(sequential(SIZES).eval(), data())
    assert found.stages is None
    assert found.curve == []


@pytest.mark.parametrize("kind", ["plain", "head", "gates"])
def test_rows_of_sequences_are_counted_each(kind: str) -> None:
    model = make(kind)
    x = torch.randn(6, 4, 5)
    put_cut_(model, x.flatten(0, 1))
    tokens, flat = measure(model, x), measure(model, x.flatten(0, 1))
    assert tokens.macs["executed"] == pytest.approx(4 * flat.macs["executed"], rel=1e-9)
    assert tokens.relative == pytest.approx(flat.relative, rel=1e-9)
    assert tokens.stages is not None
    assert flat.stages is not None
    assert tokens.stages["relative"] == pytest.approx(flat.stages["relative"], rel=1e-9)
    assert tokens.stages["open"] == pytest.approx(flat.stages["open"])


def test_a_measurement_is_json_that_every_reader_accepts() -> None:
    model, batch = make("plain"), data()
    found = measure(model, batch)
    assert found.curve[-1]["cut"] == -torch.inf
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["stages"]["cut"] == [None, None]
    assert read["curve"][-1]["cut"] is None
    assert read["curve"][:-1] == found.curve[:-1]


# --- where the cut must be


def cost_at(cut: float, score: Tensor, macs: Tensor) -> float:
    """The mean cost, one row after the other."""
    total = 0.0
    for s, m in zip(score.tolist(), macs.tolist(), strict=True):
        k = 0
        while k < len(s) and s[k] > cut:
            k += 1
        total += m[k]
    return total / len(score)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_cut_is_the_best_of_all_cuts(seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, stages = 11, 2 + seed % 3
    score = torch.randn(rows, stages - 1, generator=generator)
    if ties:
        score = (score * 2).round() / 2
    macs = torch.rand(rows, stages, generator=generator, dtype=torch.float64).cumsum(1)
    values = sorted(set(score.flatten().tolist()))
    candidates = [-torch.inf, *values, torch.inf]
    costs = [cost_at(cut, score, macs) for cut in candidates]
    for target in torch.linspace(
        float(macs[:, 0].mean()), float(macs[:, -1].mean()) + 0.1, 23, dtype=torch.float64
    ).tolist():
        cut = float(torch.tensor(cut_for(score, macs, target)))  # as the model holds it
        best = max(cost for cost in costs if cost <= target * (1 + 1e-9))
        assert cost_at(cut, score, macs) == pytest.approx(best, rel=1e-12)
    for wanted in costs:  # a target that was computed as a cost is met
        assert cost_at(cut_for(score, macs, wanted), score, macs) == pytest.approx(wanted, rel=1e-12)


def test_a_cut_between_neighbouring_numbers_keeps_them_apart() -> None:
    low = torch.tensor(1.0)
    for _ in range(4):
        high = torch.nextafter(low, torch.tensor(2.0))
        score = torch.stack([high, low])[:, None]
        macs = torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double()
        cut = torch.tensor(cut_for(score, macs, 1.5))
        assert (score[:, 0] > cut).tolist() == [True, False]
        low = high


def test_a_stage_needs_all_before_it() -> None:
    score = torch.tensor([[0.1, 5.0], [3.0, 2.0]])
    assert opening_scores(score).tolist() == [[pytest.approx(0.1), pytest.approx(0.1)], [3.0, 2.0]]
    macs = torch.tensor([[1.0, 2.0, 4.0]] * 2).double()
    assert cut_for(score, macs, 0.5) == 3.0, "nothing is affordable: no row opens a stage"
    assert cut_for(score, macs, 4.0) == -torch.inf
    right = torch.tensor([[False, False, True], [False, True, False]])
    curve: list[dict[str, Any]] = accuracy_cost_curve(score, macs, right, dense=8.0, points=4)
    assert [point["relative"] for point in curve] == [1 / 8, 1.5 / 8, 2.5 / 8, 4 / 8]
    assert [point["accuracy"] for point in curve] == [0.0, 0.5, 0.0, 0.5]
