"""Sparsifiers inside stages: connections compete within the rectangle of each stage, and none exist outside."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.gating.stages import stack_names, stages_of
from dynamicgate.sparsity import Sparsifier, mask_agreement
from dynamicgate.sparsity.regions import layer_regions
from tests.sparsity.steps import train

KINDS = ("Static", "SET", "RigL", "Magnitude")
PATTERNS = ("unstructured", "fan-in", "16x1")
DENSITIES: dict[str, Any] = {
    "layers.0": (0.2, 0.3, 0.5),
    "layers.1": 0.25,
    "layers.2": (0.5, 0.25, 0.2),
    "layers.3": 0.4,
}
ROUNDING = 20  # fan-in rounds in every one of at most 32 rows


def staged(stages: tuple[float, ...] = (16, 16, 32), **options: Any) -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP((20, 64, 64, 64, 3), dg.GateConfig(kind="stages", stages=stages, **options))


def make(kind: str, model: nn.Module, density: Any = None, **options: Any) -> Sparsifier:
    every = {} if kind == "Static" else {"every": 5}
    found: Sparsifier = getattr(dg.sparsity, kind)(model, density or DENSITIES, **every, **options)
    return found


def outside(model: nn.Module) -> list[Tensor]:
    """The weights between hidden units that would read a later stage."""
    gate = stages_of(model)
    assert gate is not None
    linears: list[Any] = [model.get_submodule(name) for name in stack_names(model, gate)]
    return [
        (linear.mask | (linear.weight != 0))[~gate.allowed(position, linear.weight)]
        for position, linear in enumerate(linears)
    ]


def counts(sparsifier: Sparsifier) -> dict[str, list[int]]:
    return {layer.name: [layer.count_in(region) for region in layer.regions] for layer in sparsifier.layers}


def check_final(sparsifier: Sparsifier, pattern: str) -> None:
    """Every region has the number of connections that was asked for, up to the rounding of its pattern."""
    for layer in sparsifier.layers:
        for region, wanted in zip(layer.regions, sparsifier.final_by_stage(layer.linear), strict=True):
            mask = layer.mask[region.at]
            if pattern == "fan-in":
                assert mask.sum(1).tolist() == [round(region.density * mask.shape[1])] * len(mask)
            elif pattern == "16x1":
                height = min(16, len(mask))  # the output layer has 3 rows
                assert int(mask.sum()) == height * round(wanted / height)
                assert bool((mask.unflatten(0, (-1, height)).sum(1) % height == 0).all())
            else:
                assert int(mask.sum()) == round(wanted)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_ever_exists_outside_the_stages_and_each_has_its_density(kind: str, pattern: str) -> None:
    model = staged()
    sparsifier = make(kind, model, pattern=pattern)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    first = counts(sparsifier)
    start = [layer.mask.clone() for layer in sparsifier.layers]
    for step in range(40):
        F.cross_entropy(model(torch.randn(16, 20)), torch.randint(3, (16,))).backward()
        sparsifier.step(optimizer, step / 40)
        optimizer.step()
        optimizer.zero_grad()
        assert not any(bool(values.any()) for values in outside(model))
        assert kind == "Magnitude" or counts(sparsifier) == first, "constant to the entry, in every stage"
    check_final(sparsifier, pattern)
    moved = [not torch.equal(a, layer.mask) for a, layer in zip(start, sparsifier.layers, strict=True)]
    assert moved == [kind != "Static"] * 4
    for layer in sparsifier.layers:
        assert bool((layer.explored >= layer.mask).all())
        assert sparsifier.pending(layer.linear) == pytest.approx(0.0, abs=ROUNDING * len(layer.regions))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ["SET", "RigL"])
def test_a_dense_start_ends_at_the_wanted_densities(kind: str, pattern: str) -> None:
    model = staged()
    initial = {"*": 1.0} if kind == "SET" else {"layers.[123]": 0.4, "layers.0": (1.0, 0.1, 0.6)}
    sparsifier = make(kind, model, pattern=pattern, initial_density=initial)
    dense = [region.shape.numel() for region in sparsifier.layers[0].regions]
    if kind == "SET":
        assert counts(sparsifier)["layers.0"] == dense
        assert sparsifier.pending_by_stage(model.layers[0]) == pytest.approx(  # type: ignore[arg-type]
            [0.8 * dense[0], 0.7 * dense[1], 0.5 * dense[2]]
        )
        assert sparsifier.pending(model.layers[0]) == sum(sparsifier.pending_by_stage(model.layers[0]))  # type: ignore[arg-type]
    else:
        assert [region.initial_density for region in sparsifier.layers[0].regions] == [1.0, 0.3, 0.6]
        assert [region.initial_density for region in sparsifier.layers[2].regions] == [0.5, 0.4, 0.4]
    train(model, sparsifier, torch.optim.AdamW(model.parameters()), 40, 40)
    check_final(sparsifier, pattern)
    assert not any(bool(values.any()) for values in outside(model))


def test_magnitude_starts_with_all_connections_inside_the_stages() -> None:
    sparsifier = make("Magnitude", staged())
    for layer in sparsifier.layers:
        assert [layer.count_in(region) for region in layer.regions] == [r.shape.numel() for r in layer.regions]
    assert sparsifier.layers[1].count == 16 * 16 + 16 * 32 + 32 * 64


def test_connections_are_counted_by_stage() -> None:
    model = staged()
    sparsifier = make("RigL", model, {"layers.1": (0.25, 0.5, 1.0)})
    first, second, _, last = model.layers
    assert sparsifier.final_by_stage(second) == [64, 256, 2048]  # type: ignore[arg-type]
    assert sparsifier.layers[0].density == (64 + 256 + 2048) / 64**2
    assert sparsifier.stats()["layers.1"]["density"] == (64 + 256 + 2048) / 64**2
    assert "density 0.5781, by stage 0.2500, 0.5000, 1.0000" in str(sparsifier)
    assert sparsifier.final_by_stage(first) == [16 * 20, 16 * 20, 32 * 20], "dense, by stage"  # type: ignore[arg-type]
    assert sparsifier.final_by_stage(model.layers[2]) == [256, 512, 2048], "not the sparsifier's"  # type: ignore[arg-type]
    assert sparsifier.final_by_stage(last) == [48, 48, 96]  # type: ignore[arg-type]
    assert sparsifier.pending_by_stage(last) == [0, 0, 0]  # type: ignore[arg-type]
    other = nn.Linear(6, 16)
    assert (sparsifier.pending_by_stage(other), sparsifier.final_by_stage(other)) == ([0], [96])


def test_erk_treats_every_rectangle_as_a_layer() -> None:
    sparsifier = make("Static", staged(), 0.2, distribution="erk")
    regions = [region for layer in sparsifier.layers for region in layer.regions]
    assert len(regions) == 9  # the output layer is dense
    total = sum(region.shape.numel() for region in regions)
    assert sum(region.wanted for region in regions) == pytest.approx(0.2 * total)
    scale = {round(r.density * r.shape.numel() / sum(r.shape), 6) for r in regions}
    assert len(scale) == 1
    check_final(sparsifier, "unstructured")


def test_gate_networks_inside_stages_are_divided_too() -> None:
    model = dg.gate_(staged(), dg.GateConfig(block=8, net="linear"))
    places = layer_regions(model)
    assert places["layers.1.gate.net"] == [(slice(0, 8), slice(0, 20), 0)], "the first reads the input, which is there"
    assert places["layers.2.gate.net"] == [
        (slice(0, 2), slice(0, 16), 0),
        (slice(2, 4), slice(0, 32), 1),
        (slice(4, 8), slice(0, 64), 2),
    ]
    sparsifier = make("RigL", model, {"layers.?": 0.3, "layers.*.net": 0.4, "layers.2.gate.net": (0.9, 0.6, 0.5)})
    gates = [layer for layer in sparsifier.layers if layer.name.endswith("net")]
    assert counts(sparsifier)["layers.2.gate.net"] == [29, 38, 128]
    allowed = {layer: stages_of(model).order.get(layer.linear) for layer in gates}  # type: ignore[union-attr]
    train(model, sparsifier, torch.optim.AdamW(model.parameters()), 20, 25)
    assert sparsifier.updates == 3
    assert not any(bool((layer.mask & ~order).any()) for layer, order in allowed.items() if order is not None)
    assert not any(bool(values.any()) for values in outside(model))


def test_the_heads_that_decide_stay_dense_and_the_gate_on_stages_needs_no_watching() -> None:
    model = staged(decide="head")
    sparsifier = make("RigL", model, 0.3)
    assert [layer.name for layer in sparsifier.layers] == ["layers.0", "layers.1", "layers.2"]
    assert sparsifier.left_out["layers.3"] == "the output layer"
    assert sparsifier.left_out["layers.3.stages.heads.0"] == "a gate network"
    with dg.usage(model) as used:
        model(torch.randn(4, 20))
    sparsifier.watch(used)  # nothing to count
    assert not sparsifier.open_rates.gates


def test_settings_and_fingerprints_differ_with_the_densities_of_stages() -> None:
    one, other = (make("RigL", staged(), {"layers.1": each}) for each in ((0.5, 0.25, 0.3), (0.25, 0.375, 0.3)))
    assert one.layers[0].density == other.layers[0].density
    assert one.settings != other.settings
    assert one.fingerprint() != other.fingerprint()
    denser = make("RigL", staged(), {"layers.1": (0.5, 0.25, 0.3)}, initial_density={"*": (1.0, 0.5, 0.5)})
    assert denser.settings["initial_density"] == {"layers.1": [1.0, 0.5, 0.5]}
    assert "stages" not in make("RigL", dg.nn.GatedMLP((20, 64, 3)), 0.3).settings


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparsifier_inside_stages_continues_from_its_state(kind: str) -> None:
    def setup() -> tuple[nn.Module, Sparsifier, torch.optim.Optimizer]:
        model = staged()
        more = {"initial_density": 0.8} if kind in ("SET", "RigL") else {}
        return model, make(kind, model, **more), torch.optim.AdamW(model.parameters(), lr=0.01)

    model, sparsifier, optimizer = setup()
    train(model, sparsifier, optimizer, 18, 30)
    copied, second, other = setup()
    copied.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the moments
    second.load_state_dict(sparsifier.state_dict())
    for m, s, o in ((model, sparsifier, optimizer), (copied, second, other)):
        train(m, s, o, 28, 30)
    assert sparsifier.fingerprint() == second.fingerprint()
    pairs = zip(model.state_dict().values(), copied.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("kind", "density", "options", "message"),
    [
        ("RigL", {"layers.0": (0.1, 0.2)}, {}, r"'layers\.0' has 3 stages: expected one density or 3, received 0\.1"),
        ("RigL", (0.1, 0.2, 0.3), {}, "densities by stage are given by layer"),
        ("SET", {"layers.0": (0.1, 0.2, 1.5)}, {}, r"expected 0 < density <= 1, received 1\.5"),
        ("SET", 0.3, {"initial_density": {"layers.1": (0.5, 1.0)}}, r"'layers\.1' has 3 stages"),
        ("RigL", {"layers.1": (0.001, 0.2, 0.2)}, {}, r"stage 1 of 'layers\.1' has too few connections \(1\)"),
        ("Static", 0.3, {"pattern": "32x1"}, r"the stages of 'layers\.0' cut through the tiles of pattern '32x1'"),
        ("Magnitude", 0.3, {"pattern": "1x32", "include": ["layers.1"]}, "a stage begins or ends at input 16"),
        ("Magnitude", 0.3, {"pattern": "units"}, "removes whole units"),
    ],
)
def test_what_does_not_fit_stages_is_refused(kind: str, density: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind, staged(), density, **options)


def test_densities_by_stage_are_refused_without_stages() -> None:
    for given in ((0.1, 0.2), (0.1,)):
        with pytest.raises(ValueError, match=r"'layers\.0' has no stages: expected one density"):
            dg.RigL(dg.nn.GatedMLP((20, 64, 3)), {"layers.0": given})


def test_stages_must_come_before_the_sparsifier() -> None:
    model = dg.nn.GatedMLP((20, 64, 64, 3))
    sparsifier = make("RigL", model, 0.3)
    dg.gate_(model, dg.GateConfig(kind="stages"))
    with pytest.raises(ValueError, match=r"stages were put on 'layers\.1' after the sparsifier"):
        train(model, sparsifier, torch.optim.SGD(model.parameters(), lr=0.1), 1, 10)


# The masks of 40 steps as the code made them before there were stages: for "erk", and for a denser first layer.
BEFORE = """
Static unstructured 39fbf6a8e12e69 4359f9744cfb9c
Static fan-in 108141734247ca 2f5c9797eb8b4e
Static 16x1 0597bb934fed46 2f8190896628b8
SET unstructured 18e6a49a441046 2ec9e0d05476bd
SET fan-in a6ebbb38ee9f05 ca017d93bcfa78
SET 16x1 8d06e2949b9ce1 3720ab7f716a8c
RigL unstructured 0681a974c53907 95d2bc95671905
RigL fan-in ba4e4bb90ccf87 c8fad7c046eb1e
RigL 16x1 c5b04bf7905485 3f42044dca586f
Magnitude unstructured 1a080e808e60e2 c9d888e678ba3e
Magnitude fan-in 288403edb64758 ec6c6aecfd3a77
Magnitude 16x1 9a18b8b8be883b 1433d838b56c90
"""


def history(kind: str, **options: Any) -> str:
    """A digest of all masks of a run whose weights and gradients are drawn: the same on every machine."""
    generator = torch.Generator().manual_seed(3)
    model = dg.nn.GatedMLP((20, 35, 32, 3))
    for parameter in model.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator) - 0.5
    sparsifier = make(kind, model, 0.3, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    seen = {}
    for step in range(40):
        for parameter in model.parameters():
            parameter.grad = torch.rand(parameter.shape, generator=generator) - 0.5
        sparsifier.step(optimizer, step / 40)
        optimizer.step()
        seen |= {f"{step} {layer.name}": layer.mask.clone() for layer in sparsifier.layers}
    return f"{mask_agreement.fingerprint(seen):014x}"


@pytest.mark.parametrize("line", BEFORE.split("\n")[1:-1])
def test_without_stages_masks_are_those_of_before(line: str) -> None:
    kind, pattern, erk, denser = line.split()
    assert history(kind, pattern=pattern, distribution="erk") == erk
    start = {"initial_density": {"layers.0": 1.0}} if kind in ("SET", "RigL") else {}
    assert history(kind, pattern=pattern, **start) == denser
