"""Routing statistics against loops over counts, and the capacities published in the paper."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.accounting import measure_routing
from dynamicgate.nn import GatedMLP, Switch

Batch = tuple[Tensor, Tensor]


def data(rows: int = 200, classes: int = 3) -> Batch:
    return torch.randn(rows, 6), torch.randint(0, classes, (rows,))


def network(**switch: Any) -> nn.Sequential:
    model = nn.Sequential(Switch(6, 4, 5, **switch), nn.ReLU(), nn.Linear(6, 3))
    nn.init.normal_(model[0].down.gate.net.weight)
    return model


def routed_by_the_first_feature() -> nn.Sequential:
    """A row goes to expert e where its first feature is e."""
    model = network()
    with torch.no_grad():
        net = model[0].down.gate.net
        net.weight.zero_()
        net.weight[:, 0] = 40.0 * torch.arange(4)
        net.bias.copy_(-20.0 * torch.arange(4) ** 2)
    return model


def first_feature(values: list[int]) -> Tensor:
    x = torch.randn(len(values), 6)
    x[:, 0] = torch.tensor(values, dtype=torch.float32)
    return x


# --- balance


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("capacity", [None, 0.5])
def test_load_entropy_and_cv_count_the_assignments_before_any_is_dropped(top_k: int, capacity: float | None) -> None:
    model, (x, y) = network(top_k=top_k, capacity=capacity), data()
    found = measure_routing(model, (x, y), batch=50)
    net = model[0].down.gate.net
    chosen = Counter(e for row in net(x).tolist() for e in sorted(range(4), key=lambda e: -row[e])[:top_k])
    counts = [chosen[e] for e in range(4)]
    assert found.load == counts
    assert found.assignments == sum(counts) == 200 * top_k
    fractions = [count / sum(counts) for count in counts]
    assert found.entropy == pytest.approx(-sum(q * math.log(q) for q in fractions), rel=1e-9)
    mean = sum(counts) / 4
    assert found.cv == pytest.approx(math.sqrt(sum((c - mean) ** 2 for c in counts) / 4) / mean, rel=1e-9)
    assert found.max_entropy == math.log(4)


def test_even_routing_has_the_maximum_entropy_and_collapsed_routing_has_none() -> None:
    model, y = routed_by_the_first_feature(), torch.zeros(80, dtype=torch.long)
    even = measure_routing(model, (first_feature([0, 1, 2, 3] * 20), y))
    assert even.load == [20] * 4
    assert even.entropy == pytest.approx(math.log(4))
    assert even.cv == 0.0
    collapsed = measure_routing(model, (first_feature([2] * 80), y))
    assert collapsed.load == [0, 0, 80, 0]
    assert collapsed.entropy == 0.0
    assert collapsed.cv == pytest.approx(math.sqrt(3))


def test_mutual_information_is_the_entropy_of_what_the_expert_reveals_about_the_label() -> None:
    model = routed_by_the_first_feature()
    values = [0, 1, 2, 3] * 20
    x = first_feature(values)
    same, half, none = (
        torch.tensor(label) for label in (values, [v // 2 for v in values], [0, 0, 0, 0, 1, 1, 1, 1] * 10)
    )
    assert measure_routing(model, (x, same)).mutual_information == pytest.approx(math.log(4))
    assert measure_routing(model, (x, half)).mutual_information == pytest.approx(math.log(2))
    assert measure_routing(model, (x, none)).mutual_information == pytest.approx(0.0, abs=1e-12)


def test_mutual_information_is_of_the_most_probable_expert_and_the_label() -> None:
    model, (x, y) = network(top_k=2, capacity=0.4), data()
    joint = Counter(zip(model[0].down.gate.net(x).argmax(1).tolist(), y.tolist(), strict=True))
    experts, labels = Counter(e for e, _ in joint.elements()), Counter(y.tolist())
    expected = sum(n / 200 * math.log(n * 200 / (experts[e] * labels[c])) for (e, c), n in joint.items())
    assert measure_routing(model, (x, y), batch=64).mutual_information == pytest.approx(expected, rel=1e-9)


# --- capacity and drops


@pytest.mark.parametrize(("capacity", "mean"), [(2.5, 79.113924), (2.0, 63.291139)])
def test_the_mean_capacity_over_batches_of_the_mnist_test_set_is_the_published_one(
    capacity: float, mean: float
) -> None:
    model = nn.Sequential(Switch(2, 8, 1, 2, capacity), nn.Linear(2, 10))
    rows = torch.randn(10_000, 2), torch.randint(0, 10, (10_000,))
    assert measure_routing(model, rows, batch=128).capacity == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(("top_k", "capacity"), [(1, 0.5), (2, 0.5), (2, 0.2), (3, 0.9)])
def test_drops_are_counted_by_assignment_and_by_row(top_k: int, capacity: float) -> None:
    model, (x, y) = network(top_k=top_k, capacity=capacity), data()
    dropped = with_drops = fully_dropped = kept = 0
    for part in x.split(32):
        left = [math.ceil(capacity * len(part) * top_k / 4)] * 4
        for row in model[0].down.gate.net(part).tolist():
            lost = 0
            for e in sorted(range(4), key=lambda e: -row[e])[:top_k]:
                lost += left[e] == 0
                left[e] -= left[e] > 0
            dropped += lost
            with_drops += lost > 0
            fully_dropped += lost == top_k
            kept += top_k - lost
    found = measure_routing(model, (x, y), batch=32)
    assert dropped > 0
    assert (found.dropped, found.rows_with_drops, found.rows_dropped) == (dropped, with_drops, fully_dropped)
    assert found.active == pytest.approx(kept / 200 / 4)
    assert (found.rows, found.samples) == (200, 200)


def test_without_a_capacity_factor_nothing_is_dropped() -> None:
    found = measure_routing(network(top_k=2), data())
    assert found.capacity is None
    assert (found.dropped, found.rows_with_drops, found.rows_dropped, found.active) == (0, 0, 0, 0.5)


# --- hardness


def hardness(model: nn.Module, x: Tensor) -> np.ndarray:
    return 1 - model(x).detach().double().softmax(1).amax(1).numpy()


def test_correlation_is_that_of_the_hardness_of_each_sample_and_its_open_fraction() -> None:
    model, (x, y) = GatedMLP((6, 11, 3), GateConfig(block=4, open=0.5)), data()
    nn.init.normal_(dg.named_gates(model)["layers.1"].net.weight)
    reference_model = nn.Sequential(nn.Linear(6, 3))
    found = measure_routing(model, (x, y), batch=64, reference_model=reference_model)
    g = dg.named_gates(model)["layers.1"](x).open.double()
    fraction = (g * torch.tensor([4.0, 4.0, 3.0])).sum(1).numpy() / 11
    assert found.active == pytest.approx(fraction.mean())
    assert found.corr_hardness == pytest.approx(np.corrcoef(hardness(model, x), fraction)[0, 1], rel=1e-5)
    assert found.corr_reference == pytest.approx(np.corrcoef(hardness(reference_model, x), fraction)[0, 1], rel=1e-5)
    assert found.corr_reference != found.corr_hardness
    others = ("load", "entropy", "max_entropy", "cv", "mutual_information", "capacity", "assignments", "dropped")
    assert [getattr(found, name) for name in others] == [None] * len(others)
    assert (found.site, found.kind) == ("layers.1", "dynamic")


def test_correlation_is_undefined_where_every_input_opens_as_many_units() -> None:
    found = measure_routing(network(top_k=3), data(), reference_model=nn.Linear(6, 3))
    assert (found.corr_hardness, found.corr_reference) == (None, None)


def test_the_reference_correlation_needs_a_reference_model() -> None:
    found = measure_routing(network(top_k=1, capacity=0.5), data())
    assert found.corr_hardness is not None
    assert found.corr_reference is None


def test_a_gate_with_soft_evaluation_runs_every_unit() -> None:
    model = GatedMLP((6, 8, 3), GateConfig(evaluate="soft", open=0.3))
    assert measure_routing(model, data()).active == 1.0


# --- arguments


def test_tokens_are_rows_with_the_label_of_their_sample() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    switch = network(capacity=0.5)[0]
    model = nn.Sequential(switch, Mean(), nn.Linear(6, 3))
    x, y = torch.randn(20, 5, 6), torch.randint(0, 3, (20,))
    found = measure_routing(model, (x, y), batch=20)
    flat = measure_routing(nn.Sequential(switch, nn.Linear(6, 3)), (x.flatten(0, 1), y.repeat_interleave(5)), batch=100)
    assert (found.samples, found.rows) == (20, 100)
    for name in ("load", "mutual_information", "dropped", "rows_with_drops", "capacity"):
        assert getattr(found, name) == getattr(flat, name)
    assert found.active == pytest.approx(flat.active)


def test_a_model_with_several_gates_needs_the_name_of_a_site() -> None:
    model = nn.Sequential(Switch(6, 4, 5), nn.ReLU(), Switch(6, 3, 2), nn.Linear(6, 3))
    assert measure_routing(model, data(), "2.down").max_entropy == math.log(3)
    with pytest.raises(ValueError, match=r"site must be one of '0.down', '2.down', received None"):
        measure_routing(model, data())
    with pytest.raises(ValueError, match=r"site must be one of \(no gates here\), received None"):
        measure_routing(nn.Linear(6, 3), data())
    with pytest.raises(ValueError, match="expected at least one sample, received an empty dataset"):
        measure_routing(model, data(0), "2.down")


def test_the_model_is_left_as_it_was_and_arrays_are_accepted() -> None:
    model, (x, y) = network().train(), data()
    found = measure_routing(model, dg.data.Arrays(x, y))
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert found == measure_routing(model, (x, y))


def test_the_dictionary_has_the_names_of_the_fields() -> None:
    found = measure_routing(network(capacity=1.0), data())
    assert found.to_dict() == asdict(found)


def test_it_prints_and_turns_into_json() -> None:
    found = measure_routing(network(capacity=1.0), data())
    assert json.loads(json.dumps(found.to_dict()))["load"] == found.load
    text = str(found)
    assert "corr_reference" not in text
    assert f"entropy             {found.entropy:.4f}" in text
    assert "samples             200" in text
