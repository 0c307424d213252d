"""Measurements against a loop over samples, layers and connections in float64."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig, measure
from dynamicgate.nn import GatedMLP, Normalize

Batch = tuple[Tensor, Tensor]


def data(rows: int = 60, features: int = 6, classes: int = 3) -> Batch:
    x = torch.randn(rows, features)
    return x.masked_fill(torch.rand_like(x) < 0.3, 0.0), torch.randint(0, classes, (rows,))


def network(**kwargs: Any) -> GatedMLP:
    config = kwargs.pop("gate", GateConfig(block=4, net="low-rank", rank=2, open=0.55))
    model = GatedMLP((6, 11, 7, 3), config, **kwargs)
    for gate in dg.named_gates(model).values():
        for module in gate.net.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)
    mask = torch.rand_like(model.layers[1].weight) < 0.6
    model.layers[1].register_buffer("mask", mask)
    with torch.no_grad():
        model.layers[1].weight.mul_(mask)
    return model


def brute_force(model: GatedMLP, x_BD: Tensor) -> tuple[list[int], list[int], list[list[int]]]:
    """Per sample: executed MACs, MACs if exact zeros are skipped too, and executed MACs of each layer."""
    executed, skipping, by_layer = [], [], []
    gates = dg.named_gates(model)
    for x in x_BD:
        h, raw = model.normalize(x[None])[0], x
        total, zero_skip, layers = 0, 0, []
        opens: dict[int, list[bool]] = {}
        for depth, layer in enumerate(model.layers):
            before, after = gates.get(f"layers.{depth}"), gates.get(f"layers.{depth + 1}")
            # behind an input-dependent gate the normalisation does not fold into a constant bias
            folds = depth == 0 and (before is None or before.config.kind == "static")
            seen = [bool(v != 0) for v in (raw if folds else h)]
            if depth not in opens:
                if before is None:
                    opens[depth] = [True] * layer.in_features
                else:  # a gate on the input
                    opens[depth] = _open(before, h)
                    total += before.macs
                    zero_skip += _gate_work(before, seen)
            live = [s and o for s, o in zip(seen, opens[depth], strict=True)]
            h = h * torch.tensor(opens[depth], dtype=h.dtype)
            wanted = [True] * layer.out_features
            if after is not None:
                wanted = _open(after, h)
                opens[depth + 1] = wanted
                total += after.macs
                zero_skip += _gate_work(after, live)
            work = 0
            for o in range(layer.out_features):
                for i in range(layer.in_features):
                    if hasattr(layer, "mask") and not layer.mask[o, i]:
                        continue
                    work += opens[depth][i] and wanted[o]
                    zero_skip += live[i] and wanted[o]
            layers.append(work)
            total += work
            h = torch.relu(h @ layer.weight.T + layer.bias)
        executed.append(total)
        skipping.append(zero_skip)
        by_layer.append(layers)
    return executed, skipping, by_layer


def _open(gate: dg.gating.Gate, h: Tensor) -> list[bool]:
    g = gate(h[None]).open[0]
    return [bool(g[unit // gate.config.block]) for unit in range(gate.site.width)]


def _gate_work(gate: dg.gating.Gate, live: list[bool]) -> int:
    first, *rest = [m for m in gate.net.modules() if isinstance(m, nn.Linear)] or [None]
    if first is None:
        return 0
    mask = getattr(first, "mask", torch.ones_like(first.weight)).bool()
    return sum(int(mask[:, i].sum()) for i, alive in enumerate(live) if alive) + sum(_exist(m) for m in rest)


def _exist(linear: nn.Linear) -> int:
    return int(getattr(linear, "mask", torch.ones_like(linear.weight)).sum())


@pytest.mark.parametrize("where", [dg.where.hidden, dg.where.everywhere])
@pytest.mark.parametrize("normalize", [None, Normalize(0.3, 2.0)])
@torch.no_grad()
def test_a_measurement_is_the_count_of_a_loop_over_samples_layers_and_connections(where, normalize) -> None:
    model = network(where=where, normalize=normalize).eval()
    x, y = data()
    executed, skipping, by_layer = brute_force(model, x)
    result = measure(model, (x, y), batch=17)
    dense = 6 * 11 + 11 * 7 + 7 * 3
    assert result.macs["dense"] == dense
    assert result.macs["executed"] == pytest.approx(np.mean(executed), rel=1e-12)
    assert result.macs["relative"] == pytest.approx(np.mean(executed) / dense, rel=1e-12)
    assert result.macs["gate"] == sum(gate.macs for gate in dg.named_gates(model).values())
    assert result.macs["relative_zero_skip"] == pytest.approx(np.mean(skipping) / dense, rel=1e-12)
    assert result.macs["relative_zero_skip"] < result.macs["relative"]
    assert [row["macs"] for row in result.layers] == pytest.approx(np.mean(by_layer, axis=0).tolist(), rel=1e-12)
    share = np.array(executed) / dense
    assert len(set(executed)) > 5
    expected = {f"p{q}": pytest.approx(np.percentile(share, q), rel=1e-12) for q in (5, 50, 95)}
    assert result.samples == expected
    assert result.count == 60
    assert result.params == sum(p.numel() for p in model.parameters())


def test_zeros_of_the_raw_input_can_be_skipped_behind_a_normalisation_and_not_behind_other_layers() -> None:
    x = torch.zeros(4, 6)
    x[:, 0] = 1.0
    folded = GatedMLP((6, 5, 3), normalize=Normalize(0.5, 2.0))
    shifted = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5))
    nn.init.constant_(shifted[0].bias, 1.0)
    after_relu = folded.act(folded.layers[0](folded.normalize(x)))
    expected = (4 * 1 * 5 + int((after_relu != 0).sum()) * 3) / 4 / 45
    assert measure(folded, x).macs["relative_zero_skip"] == pytest.approx(expected)
    assert measure(shifted, x).macs["relative_zero_skip"] == 1.0


def test_zero_skipping_sees_every_run_of_a_layer_that_runs_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.a(x))

    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    macs = measure(Twice(), x).macs
    assert macs["relative"] == 1.0
    assert macs["relative_zero_skip"] == (4 + 16) / 32


@torch.no_grad()
def test_the_mask_of_a_gate_network_is_counted() -> None:
    model = network().eval()
    for gate in dg.named_gates(model).values():
        for layer in gate.net:
            layer.register_buffer("mask", torch.rand_like(layer.weight) < 0.5)
            layer.weight.mul_(layer.mask)
    x, _ = data()
    executed, skipping, _ = brute_force(model, x)
    macs = measure(model, x).macs
    assert macs["dense"] == 164  # what the mask takes from a gate network is no other cost of the model
    assert macs["executed"] == pytest.approx(np.mean(executed), rel=1e-12)
    assert macs["relative_zero_skip"] == pytest.approx(np.mean(skipping) / 164, rel=1e-12)


# --- quality


def test_accuracy_and_macro_f1_are_those_of_sklearn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model, (x, y) = network(), data(rows=80)
    y[y == 2] = 0  # a class that is predicted but never true
    result = measure(model, (x, y), batch=32)
    predicted = model.eval()(x).argmax(1)
    assert 2 in predicted.tolist()
    assert result.quality["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted))
    assert result.quality["macro_f1"] == pytest.approx(metrics.f1_score(y, predicted, average="macro"))


def test_macro_f1_leaves_out_a_class_that_neither_occurs_nor_is_predicted() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model = nn.Linear(2, 5)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    y = torch.tensor([1, 1, 0])
    expected = metrics.f1_score(y, [1, 1, 1], average="macro", zero_division=0)
    assert measure(model, (torch.randn(3, 2), y)).quality["macro_f1"] == pytest.approx(expected)


# --- what the gates depend on


def test_evidence_of_input_dependence_is_recomputed_from_the_decisions() -> None:
    model, (x, y) = network(), data()
    result = measure(model, (x, y), batch=13)
    with dg.usage(model.eval()) as used, torch.no_grad():
        model(x)
    assert [gate["name"] for gate in result.gates] == ["layers.1", "layers.2"]
    for gate, sizes in zip(result.gates, ([4, 4, 3], [4, 3]), strict=True):
        g = used[gate["name"]].open.double()
        weights, rate = torch.tensor(sizes).double() / sum(sizes), g.mean(0)
        assert gate["open"] == pytest.approx(float((rate * weights).sum()))
        assert gate["always_on"] == pytest.approx(float(weights[rate == 1].sum()))
        assert gate["always_off"] == pytest.approx(float(weights[rate == 0].sum()))
        assert gate["varying"] == pytest.approx(1.0 - gate["always_on"] - gate["always_off"])
        assert gate["variance"] == pytest.approx(float((g.var(0, correction=0) * weights).sum()))
        for label in range(3):
            assert gate["open_by_class"][label] == pytest.approx(g[y == label].mean(0).tolist(), abs=5e-5)
        assert (gate["kind"], gate["block"], gate["blocks"]) == ("dynamic", 4, len(sizes))
    assert any(gate["varying"] > 0 for gate in result.gates)


def test_a_static_gate_does_not_vary() -> None:
    model = network(gate=GateConfig(kind="static", block=4))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias[0] = -3.0
    gates = measure(model, data()).gates
    assert [gate["varying"] for gate in gates] == [0.0, 0.0]
    assert [gate["variance"] for gate in gates] == [0.0, 0.0]
    assert gates[0]["always_off"] == pytest.approx(4 / 11)
    assert gates[0]["kind"] == "static"


def test_proxies_are_the_papers_formulas() -> None:
    model, (x, _) = network(), data()
    result = measure(model, x)
    with dg.usage(model.eval()) as used, torch.no_grad():
        model(x)
    weights = torch.tensor([6.0 * 11, 11.0 * 7])
    density = torch.tensor([1.0, float(model.layers[1].mask.float().mean())])
    for letter, column in (("p", 0), ("g", 1)):
        means = []
        for site, sizes in (("layers.1", [4, 4, 3]), ("layers.2", [4, 3])):
            share = torch.tensor(sizes).float() / sum(sizes)
            means.append((used[site][column].mean(0) * share).sum())
        alpha = torch.stack(means)
        assert result.proxies[f"compute_proxy_{letter}"] == pytest.approx(float(alpha.mean()), rel=1e-6)
        relmac, fused = (alpha * weights).sum() / weights.sum(), (alpha * weights * density).sum() / weights.sum()
        assert result.proxies[f"relmac_{letter}"] == pytest.approx(float(relmac), rel=1e-6)
        assert result.proxies[f"relmac_fuse_{letter}"] == pytest.approx(float(fused), rel=1e-6)


# --- policies


def test_a_gate_that_reads_its_own_layer_saves_only_its_reader() -> None:
    model = GatedMLP((6, 8, 3), GateConfig(reads="same"))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias.fill_(-50.0)
    result = measure(model, torch.randn(5, 6))
    assert [row["macs"] for row in result.layers] == [48.0, 0.0]
    assert result.macs["executed"] == 48 + 64


def test_a_gate_that_evaluates_softly_saves_nothing() -> None:
    model = GatedMLP((6, 8, 3), GateConfig(kind="static", evaluate="soft"))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias.fill_(-50.0)
    result = measure(model, torch.randn(5, 6))
    assert result.macs["relative"] == 1.0
    assert result.gates[0]["open"] == 1.0


def test_a_model_without_gates_costs_what_its_connections_cost() -> None:
    model = GatedMLP((6, 8, 3))
    result = measure(model, data())
    assert result.macs["relative"] == 1.0
    assert result.gates == []
    assert set(result.proxies.values()) == {1.0}
    model.layers[0].register_buffer("mask", torch.arange(48).view(8, 6) % 2 == 0)
    assert measure(model, data()).macs["executed"] == 24 + 24


def test_measuring_is_evaluation_and_every_module_gets_its_own_mode_back() -> None:
    model = network(dropout=0.5)
    model.train()
    model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    first, second = (measure(model, data(rows=8)) for _ in range(1) for _ in range(2))
    assert first.count == second.count
    assert [m.training for m in model.modules()] == modes
    with pytest.raises(RuntimeError):
        measure(model, torch.randn(3, 99))
    assert [m.training for m in model.modules()] == modes
    hooks = [hook for m in model.modules() for hook in m._forward_pre_hooks.values()]
    assert len(hooks) == 4  # decide and close, twice
    assert not any(m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_dropout_is_off_while_measuring() -> None:
    model, (x, y) = network(dropout=0.5), data()
    assert measure(model, (x, y)).to_dict() == measure(model, (x, y)).to_dict()


# --- forms of data and of results


def test_the_data_may_be_a_pair_an_object_a_tensor_or_batches() -> None:
    model, (x, y) = network(), data()
    whole = measure(model, (x, y)).to_dict()
    assert measure(model, (x, y), batch=7).to_dict()["samples"] == whole["samples"]
    assert measure(model, SimpleNamespace(x=x, y=y)).to_dict() == whole
    batches = zip(x.split(25), y.split(25), strict=True)
    assert measure(model, batches).quality == whole["quality"]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=25)
    assert measure(model, loader).quality == whole["quality"]
    unlabelled = measure(model, x)
    assert unlabelled.quality == {}
    assert unlabelled.macs == whole["macs"]
    assert unlabelled.gates[0]["open_by_class"] == []


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to measure: the dataset is empty"):
        measure(network(), (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)))


def test_a_measurement_survives_json_and_prints_its_headline() -> None:
    model, (x, y) = network(), data()
    y[y == 1] = 2  # a class without samples must still be valid JSON
    result = measure(model, (x, y))
    text = json.dumps(result.to_dict())
    again = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert again == result.to_dict()
    assert dg.accounting.Measurement(**again) == result
    assert again["gates"][0]["open_by_class"][1] == [None, None, None]
    assert (result.relative, result.accuracy) == (result.macs["relative"], result.quality["accuracy"])
    assert f"of 164 per sample = {result.relative:.4f}" in str(result)
    assert "layers.1" in str(result)


def test_a_compiled_model_is_measured_like_the_eager_one() -> None:
    model, (x, y) = network(), data()
    expected = measure(model, (x, y)).to_dict()
    assert measure(torch.compile(model, backend="eager"), (x, y)).to_dict()["macs"] == expected["macs"]
