"""What a sparsifier decides, what it refuses, and how it goes together with gates, scaling and saving."""

from __future__ import annotations

import copy
import typing
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.masks import connections, pattern_of
from dynamicgate.sparsity import Sparsifier
from dynamicgate.sparsity.activity import RARELY


def train(model: nn.Module, sparsifier: Sparsifier, optimizer: torch.optim.Optimizer, steps: int, total: int) -> None:
    """Steps on random data, with `watch` where there are gates."""
    generator = torch.Generator().manual_seed(5)
    features = next(m.in_features for m in model.modules() if isinstance(m, nn.Linear))
    for step in range(steps):
        x, y = torch.randn(32, features, generator=generator), torch.randint(3, (32,), generator=generator)
        if dg.named_gates(model):
            with dg.usage(model) as used:
                loss = F.cross_entropy(model(x), y)
            sparsifier.watch(used)
        else:
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        sparsifier.step(optimizer, step / total)
        optimizer.step()
        optimizer.zero_grad()


def rigl(model: nn.Module, density: float = 0.3, every: int = 5, **rest: object) -> dg.RigL:
    return dg.RigL(model, density, every=every, **rest)  # type: ignore[arg-type]


def test_rigl_drops_the_smallest_weights_and_grows_the_largest_gradients() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((10, 12, 3))
    sparsifier = rigl(model, every=1, fraction=0.5)
    layer = sparsifier.layers[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(torch.randn(50, 10)), torch.randint(3, (50,))).backward()
    before, weight = layer.mask.clone(), layer.weight.detach().clone()
    gradient = layer.weight.grad.clone()  # type: ignore[union-attr]
    sparsifier.step(optimizer, 0.0)
    dropped, grown = before & ~layer.mask, layer.mask & ~before
    assert int(dropped.sum()) == int(grown.sum()) == round(0.5 * int(before.sum()))
    assert weight[dropped].abs().max() <= weight[before & ~dropped].abs().min()
    assert gradient[grown].abs().min() >= gradient[~before & ~grown].abs().max()
    assert not layer.weight.grad[grown].any(), "they begin with the next step"  # type: ignore[index]


def test_gradients_are_summed_with_their_sign_over_the_steps_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    sparsifier = dg.RigL(model, 0.5, every=3, gradient_steps=2, rescale=False)
    layer, optimizer = sparsifier.layers[0], torch.optim.SGD(model.parameters(), lr=0.0)
    mask = layer.mask.clone()
    gradients = [torch.randn(5, 4, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    for step, gradient in enumerate(gradients):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        layer.weight.grad = gradient.clone()
        sparsifier.step(optimizer, step / 100)
    wanted = (gradients[1] + gradients[2]).abs().masked_fill(mask, -1.0)
    grown = layer.mask & ~mask
    assert torch.equal(grown, wanted >= wanted.flatten().sort(descending=True).values[int(grown.sum()) - 1])


def test_the_fraction_falls_to_zero_and_the_mask_then_stays() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(400, 20), torch.randint(3, (400,))
    model = dg.nn.GatedMLP((20, 30, 3))
    history = dg.fit(model, (x, y), sparsifier=rigl(model, until=0.5, fraction=0.4), epochs=10, batch=40, show=False)
    churn = [row["rewiring"]["layers.0"]["churn"] for row in history.log]
    assert churn[4] == pytest.approx(0.4, abs=0.01)
    assert churn[24] == pytest.approx(0.2, abs=0.04), "a quarter of the way is half of the cosine"
    assert churn[48] < 0.02
    explored = [row["rewiring"]["layers.0"]["explored"] for row in history.log]
    assert explored[50:] == [explored[50]] * len(explored[50:])


def test_a_run_shorter_than_one_period_is_an_error() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    with pytest.raises(ValueError, match="would never update them"):
        train(model, rigl(model, every=400), torch.optim.SGD(model.parameters(), lr=0.1), 80, 80)
    x, y = torch.randn(64, 6), torch.randint(3, (64,))
    with pytest.raises(ValueError, match="would never update them"):
        dg.fit(model, (x, y), sparsifier=rigl(model, every=400), epochs=2, batch=8, show=False)
    with pytest.raises(ValueError, match="does not come to its end"):
        dg.fit(model, (x, y), sparsifier=dg.sparsity.Magnitude(model, 0.5, until=0.99), epochs=1, batch=8, show=False)
    train(model, dg.sparsity.Static(model, 0.5), torch.optim.SGD(model.parameters(), lr=0.1), 5, 5)


def test_the_layers_are_chosen_by_name_and_told() -> None:
    model = dg.nn.GatedMLP((6, 8, 8, 3), dg.GateConfig(block=2))
    told = str(dg.RigL(model, 0.25))
    assert "layers.0  [8, 6]  unstructured  density 0.2500" in told
    assert "layers.2  dense: the output layer" in told
    assert "layers.1.gate.net  dense: a gate network" in told
    asked = dg.RigL(model, {"layers.*": 0.5, "*.gate.net": 0.3}, exclude=["layers.0"])
    assert [layer.name for layer in asked.layers] == ["layers.1", "layers.1.gate.net", "layers.2", "layers.2.gate.net"]
    assert asked.left_out == {"layers.0": "excluded"}
    with pytest.raises(ValueError, match=r"no Linear layer is called 'fc1'; the layers are layers\.0"):
        dg.RigL(model, 0.5, include=["fc1"])
    with pytest.raises(ValueError, match="no layer is left"):
        dg.RigL(model, 0.5, exclude=["*"])


def test_an_optimizer_that_trains_something_else_is_refused() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    with pytest.raises(ValueError, match=r"the optimizer does not train 'layers\.0'"):
        train(model, rigl(model), torch.optim.SGD(model.layers[1].parameters(), lr=0.1), 1, 100)


def test_an_optimizer_that_mixes_entries_is_found_out() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    sparsifier = rigl(model)

    class Mixes(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.mean())

    with pytest.raises(RuntimeError, match=r"weights of 'layers\.0' that have no connection are not zero.*Mixes mixes"):
        train(model, sparsifier, Mixes(model.parameters(), lr=0.1), 10, 100)


def test_moments_from_before_the_mask_are_forgotten() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((6, 8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    sparsifier = dg.sparsity.Static(model, 0.3, rescale=False)
    train(model, sparsifier, optimizer, 5, 100)
    layer = sparsifier.layers[0]
    assert not layer.weight[~layer.mask].any()


def test_a_step_that_gradient_scaling_skips_changes_nothing() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((6, 8, 3))
    sparsifier = rigl(model, every=2)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    layer, masks = sparsifier.layers[0], []
    for step in range(6):
        scaler.scale(F.cross_entropy(model(torch.randn(32, 6)), torch.randint(3, (32,)))).backward()
        if step in (1, 2):  # an overflow, once where an update is due and once where it still is
            model.layers[1].weight.grad[0, 0] = torch.inf  # type: ignore[index,union-attr]
        scaler.unscale_(optimizer)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        sparsifier.step(optimizer, step / 100)
        scaler.step(optimizer)
        scaler.update()
        if step in (1, 2):
            assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
        optimizer.zero_grad()
        masks.append(layer.mask.clone())
        assert bool(layer.weight.isfinite().all())
    assert torch.equal(masks[0], masks[2])
    assert sparsifier.updates == 2, "at the first good step after the overflow, and a period later"
    assert not torch.equal(masks[2], masks[3])


def test_rarely_open_units_get_their_share_of_new_connections() -> None:
    """Two halves of the units see gradients of the same size, one of them in a tenth of the rows."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((30, 40, 3), dg.GateConfig(kind="static", block=20))
    sparsifier = rigl(model, density=0.2, every=1, fraction=0.5, rescale=False)
    layer, optimizer = sparsifier.layers[0], torch.optim.SGD(model.parameters(), lr=0.0)
    gate = dg.named_gates(model)["layers.1"]
    g = torch.ones(100, 2)
    g[10:, 1] = 0.0
    used = dg.gating.Usage({"layers.1": gate})
    with dg.usage(model) as real:
        F.cross_entropy(model(torch.randn(100, 30)), torch.randint(3, (100,))).backward()
    used(gate, real["layers.1"]._replace(open=g))
    sparsifier.watch(used)
    gradient = torch.rand(40, 30)
    gradient[20:] *= 0.1
    layer.weight.grad = gradient
    before = layer.mask.clone()
    sparsifier.step(optimizer, 0.0)
    grown = layer.mask & ~before
    rare = int(grown[20:].sum()) / int(grown.sum())
    assert 0.4 < rare < 0.6, "without the correction it would be none"
    assert RARELY <= 0.1


def test_silent_units_lose_their_connections_first_and_gain_none() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 16, 12, 3), dg.GateConfig(kind="static", block=4))
    for kind in (dg.RigL, dg.sparsity.SET):
        sparsifier = kind(model, 0.4, every=2, fraction=0.3)
        gate = dg.named_gates(model)["layers.1"]
        with torch.no_grad():
            gate.bias[1] = -50.0  # units 4 to 7 of the first hidden vector never open
        layers = {layer.name: layer for layer in sparsifier.layers}
        rows, columns = layers["layers.0"], layers["layers.1"]
        before = int(rows.mask[4:8].sum()), int(columns.mask[:, 4:8].sum())
        train(model, sparsifier, torch.optim.AdamW(model.parameters()), 6, 1000)
        assert (int(rows.mask[4:8].sum()), int(columns.mask[:, 4:8].sum())) == (0, 0)
        assert min(before) > 0
        assert bool(sparsifier.open_rates.silent["layers.1"][1])
        with torch.no_grad():
            gate.bias[1] = 50.0
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, sparsifier, optimizer, 2, 1000)
        assert not bool(sparsifier.open_rates.silent["layers.1"].any()), "it has come back"


def test_a_revived_unit_starts_without_momentum() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 16, 3), dg.GateConfig(kind="static", block=4))
    sparsifier = dg.RigL(model, 0.5, every=2, fraction=0.05)
    optimizer = torch.optim.AdamW(model.parameters())
    layer = sparsifier.layers[0]
    train(model, sparsifier, optimizer, 3, 1000)
    sparsifier.open_rates.silent["layers.1"][2] = True
    x, y = torch.randn(32, 20), torch.randint(3, (32,))
    with dg.usage(model) as used:
        loss = F.cross_entropy(model(x), y)
    sparsifier.watch(used)
    loss.backward()
    sparsifier.step(optimizer, 0.003)
    moments = optimizer.state[layer.weight]
    assert not moments["exp_avg"][8:12].any()
    assert not moments["exp_avg_sq"][8:12].any()
    assert moments["exp_avg"][:8].any()


def test_a_model_with_gates_must_be_watched() -> None:
    model = dg.nn.GatedMLP((6, 8, 3), dg.GateConfig(block=2))
    sparsifier = rigl(model, every=1)
    F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
    with pytest.raises(ValueError, match=r"call sparsifier\.watch\(used, penalty\)"):
        sparsifier.step(torch.optim.SGD(model.parameters(), lr=0.1), 0.0)


def test_gates_that_come_after_the_rewirer_are_noticed() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    sparsifier = rigl(model)
    dg.gate_(model, dg.GateConfig(block=2))
    with dg.usage(model) as used:
        model(torch.randn(4, 6))
    with pytest.raises(ValueError, match="put gates on the model before the sparsifier"):
        sparsifier.watch(used)


def test_growth_follows_the_task_loss_and_not_the_penalty() -> None:
    """In the second layer's gate the penalty reaches the weights of the first."""
    found = []
    for weight in (0.0, 1000.0):
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((10, 16, 16, 3), dg.GateConfig(block=4))
        sparsifier = rigl(model, every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        torch.manual_seed(1)
        x, y = torch.randn(64, 10), torch.randint(3, (64,))
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x), y)
        penalty = weight * torch.stack(list(used.mean_p().values())).sum()
        sparsifier.watch(used, penalty)
        (loss + penalty).backward()
        sparsifier.step(optimizer, 0.0)
        found.append([layer.mask.clone() for layer in sparsifier.layers])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_masks_and_their_structure_are_saved_with_the_model(tmp_path: Path) -> None:
    model = dg.nn.GatedMLP((20, 32, 3))
    dg.RigL(model, 0.25, pattern="16x1")
    dg.save(model, tmp_path / "model.safetensors")
    back = dg.load(tmp_path / "model.safetensors")
    first, twin = model.layers[0], back.layers[0]  # type: ignore[index,union-attr]
    assert pattern_of(twin) == "16x1"  # type: ignore[arg-type]
    assert torch.equal(connections(first), connections(twin))  # type: ignore[arg-type]
    assert torch.equal(first.weight, twin.weight)  # type: ignore[union-attr]


def test_a_rewirer_goes_on_from_its_state(tmp_path: Path) -> None:
    def begin() -> tuple[dg.nn.GatedMLP, dg.RigL, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((12, 24, 3), dg.GateConfig(block=4))
        sparsifier = dg.RigL(model, 0.3, every=7, gradient_steps=4)
        return model, sparsifier, torch.optim.AdamW(model.parameters(), lr=0.01)

    model, sparsifier, optimizer = begin()
    train(model, sparsifier, optimizer, 12, 1000)
    twin, second, other = begin()
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the moments
    second.load_state_dict(sparsifier.state_dict())
    for m, r, o in ((model, sparsifier, optimizer), (twin, second, other)):
        train(m, r, o, 12, 1000)
    assert sparsifier.updates == second.updates == 3
    assert torch.equal(sparsifier.layers[0].mask, second.layers[0].mask)
    assert torch.equal(sparsifier.layers[0].explored, second.layers[0].explored)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def test_fit_logs_exploration_and_churn() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 10)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = dg.nn.GatedMLP((10, 32, 3))
    history = dg.fit(model, (x, y), sparsifier=rigl(model, every=10), epochs=10, batch=20, show=False)
    rows = [row["rewiring"]["layers.0"] for row in history.log]
    assert rows[0]["density"] == rows[-1]["density"] == pytest.approx(0.3, abs=0.01)
    explored = [row["explored"] for row in rows]
    assert explored == sorted(explored)
    assert explored[0] == pytest.approx(0.3, abs=0.01)
    assert explored[-1] > 0.4
    assert max(row["churn"] for row in rows) == pytest.approx(0.29, abs=0.02)
    assert all(row["rewiring"] is None for row in dg.fit(dg.nn.GatedMLP((10, 4, 3)), (x, y), epochs=1, show=False).log)


def test_one_shot_pruning_prunes_once() -> None:
    model = dg.nn.GatedMLP((20, 30, 3))
    sparsifier = dg.sparsity.Magnitude(model, 0.2, prune_from=0.5, until=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    layer = sparsifier.layers[0]
    train(model, sparsifier, optimizer, 50, 100)
    assert layer.count == 600
    smallest = layer.weight.detach().abs().flatten().sort().values[479]
    expected = layer.weight.detach().abs() > smallest
    F.cross_entropy(model(torch.randn(8, 20)), torch.randint(3, (8,))).backward()
    sparsifier.step(optimizer, 0.5)
    assert layer.count == 120
    assert torch.equal(layer.mask, expected)
    assert sparsifier.updates == 1
    optimizer.zero_grad()


def test_gradual_pruning_follows_the_cubic() -> None:
    sparsifier = dg.sparsity.Magnitude(dg.nn.GatedMLP((20, 30, 3)), 0.2, prune_from=0.2, until=0.6)
    assert sparsifier.density_at(0.2, 0.2) == 1.0
    assert sparsifier.density_at(0.4, 0.2) == pytest.approx(0.2 + 0.8 * 0.5**3)
    assert sparsifier.density_at(0.6, 0.2) == sparsifier.density_at(0.9, 0.2) == 0.2


def test_pruning_units_leaves_a_network_that_could_be_sliced() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((10, 20, 16, 3))
    sparsifier = dg.sparsity.Magnitude(model, 0.25, pattern="units", prune_from=0.1, until=0.4, every=5)
    train(model, sparsifier, torch.optim.AdamW(model.parameters(), weight_decay=0.1), 60, 100)
    first, second, last = model.layers
    kept = [layer.mask.any(1).nonzero().flatten() for layer in (first, second)]  # type: ignore[union-attr,operator]
    assert [len(units) for units in kept] == [5, 4]
    small = dg.nn.GatedMLP((10, 5, 4, 3))
    with torch.no_grad():
        for layer, source, rows, columns in (
            (small.layers[0], first, kept[0], torch.arange(10)),
            (small.layers[1], second, kept[1], kept[0]),
            (small.layers[2], last, torch.arange(3), kept[1]),
        ):
            layer.weight.copy_(source.weight[rows][:, columns])  # type: ignore[union-attr,operator,index]
            layer.bias.copy_(source.bias[rows])  # type: ignore[union-attr,operator,index]
    x = torch.randn(9, 10)
    torch.testing.assert_close(small(x), model(x))
    with pytest.raises(ValueError, match="whole units can only be pruned where one layer reads them"):
        dg.sparsity.Magnitude(dg.nn.GatedMLP((10, 8, 3)), 0.5, pattern="units", include=["layers.1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every is a number of optimizer steps"),
        ({"until": 0.0}, "until is a share of training"),
        ({"fraction": 0.0}, "a fraction of the connections"),
        ({"gradient_steps": 101}, "gradient_steps are part of a period of 100 steps"),
        ({"initial_density": 1.5}, "initial_density is a share of the connections"),
        ({"density": 0.001}, "too few connections"),
        ({"distribution": "kernel"}, "distribution must be uniform or erk"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dg.RigL(dg.nn.GatedMLP((6, 8, 3)), **{"density": 0.5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [dg.RigL, dg.sparsity.SET, dg.sparsity.Static, dg.sparsity.Magnitude])
def test_the_type_hints_of_a_constructor_can_be_read_at_run_time(kind: type[Sparsifier]) -> None:
    hints = typing.get_type_hints(kind.__init__)
    assert hints["model"] is nn.Module
    assert "layers" in hints
