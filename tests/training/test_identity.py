"""A checkpoint is continued only by the same run, and a folder belongs to one process at a time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.training.fingerprint import budget_settings
from dynamicgate.training.folder_lock import InUseError, only_process
from dynamicgate.training.whole_batch import step_whole_batch
from tests.training.easy import blobs, dense

X, Y = blobs()
LATER: dict[str, Any] = {"fold": True, "order_units": True, "wait": False}
BASE: dict[str, Any] = {"epochs": 1, "batch": 32, "show": False, "valid": (X[:40], Y[:40])}


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


class Thrice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3.0


def with_activation(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), activation, nn.Linear(16, 3))


def frozen() -> nn.Module:
    model = with_activation(nn.ReLU())
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    return model


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": lambda: with_activation(nn.Tanh())}, "module '1'"),
        ({"model": frozen}, "frozen"),
        ({"train": (X, Y.roll(1))}, "data"),
        ({"train": (X[:, torch.randperm(8, generator=torch.Generator().manual_seed(1))], Y)}, "data"),
        ({"train": (torch.cat((X[:-1], -X[-1:])), Y)}, "data"),
        ({"valid": (X[40:80], Y[40:80])}, "valid"),
    ],
)
def test_whatever_changed_is_named(changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    dg.fit(with_activation(nn.ReLU()), (X, Y), out=tmp_path, **BASE)
    make: Callable[[], nn.Module] = changed.get("model", lambda: with_activation(nn.ReLU()))
    with pytest.raises(ValueError, match=f"was made with {named}"):
        dg.fit(
            make(), changed.get("train", (X, Y)), out=tmp_path, **{**BASE, "valid": changed.get("valid", BASE["valid"])}
        )


def test_the_code_of_a_class_is_part_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dg.fit(with_activation(Twice()), (X, Y), out=tmp_path, **BASE)
    dg.fit(with_activation(Twice()), (X, Y), out=tmp_path, **BASE)
    monkeypatch.setattr(Twice, "forward", Thrice.forward)
    with pytest.raises(ValueError, match="module '1'"):
        dg.fit(with_activation(Twice()), (X, Y), out=tmp_path, **BASE)


def test_a_folder_that_is_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    with only_process(tmp_path, ".fit.lock"):
        assert json.loads((tmp_path / ".fit.lock").read_text())["pid"] == os.getpid()
        with pytest.raises(InUseError, match=rf"in use by process {os.getpid()} on .*, since .* s\)"):
            dg.fit(dense(), blobs(), out=tmp_path, **BASE)
    dg.fit(dense(), blobs(), out=tmp_path, **BASE)
    assert not (tmp_path / ".fit.lock").exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with only_process(tmp_path, ".fit.lock"):
            os.write(tell, b"x")
            signal.pause()
    os.read(ready, 1)
    with pytest.raises(InUseError, match=f"process {child}"), only_process(tmp_path, ".fit.lock"):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / ".fit.lock").exists()
    with only_process(tmp_path, ".fit.lock"):
        assert json.loads((tmp_path / ".fit.lock").read_text())["pid"] == os.getpid()


def test_a_budget_sees_the_whole_batch_when_gradients_are_accumulated() -> None:
    found = {}
    for pieces in (1, 4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        dg.gate_(model, dg.GateConfig(block=4, net="low-rank", rank=1))
        for parameter in dg.named_gates(model)["2"].net.parameters():
            nn.init.normal_(parameter)
        budget = dg.Budget(target=0.7, warmup=0.0, floor=0.3)
        sparsifier = dg.RigL(model, density=0.8, every=2, gradient_steps=2)
        options = {"epochs": 2, "batch": 64, "show": False, "accumulate": pieces}
        dg.fit(model, (X, Y), budget=budget, sparsifier=sparsifier, **options)  # type: ignore[arg-type]
        # Without the biases of gates: calibration moves them at the end, to any place that meets the target.
        weights = torch.cat([p.detach().flatten() for n, p in model.named_parameters() if "gate.net.1.bias" not in n])
        found[pieces] = (weights, budget.relative, sparsifier.fingerprint())
    assert torch.allclose(found[1][0], found[4][0], atol=1e-6)
    assert found[1][1] == pytest.approx(found[4][1], abs=1e-6)
    assert found[1][2] == found[4][2]


def test_looking_at_a_whole_batch_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    dg.gate_(model, dg.GateConfig(train="gumbel"), where=[dg.Site("4", ("0",), "0", 16)])
    budget = dg.Budget(target=0.9, counter=dg.count_macs(model, X[:2]))
    budget.apply_(model, 0.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    seen = step_whole_batch(budget, model, X.split(30), 0.0, device=torch.device("cpu"), bf16=False)
    assert len(seen["4"].open) == len(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_loading_into_gates_of_another_kind_is_refused(tmp_path: Path) -> None:
    gated = partial(lambda config: dg.gate_(with_activation(nn.ReLU()), config))
    dg.save(gated(dg.GateConfig(block=4)), tmp_path / "m.safetensors")
    assert dg.load(tmp_path / "m.safetensors", into=gated(dg.GateConfig(block=4, open=0.9, theta=0.3)))
    with pytest.raises(ValueError, match="always_open=1 instead of 0"):
        dg.load(tmp_path / "m.safetensors", into=gated(dg.GateConfig(block=4, always_open=1)))


def test_layers_with_one_weight_have_one_mask() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].weight = model[0].weight
    sparsifier = dg.RigL(model, density=0.5, every=2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for step in range(10):
        nn.functional.cross_entropy(model(X), Y).backward()
        sparsifier.step(optimizer, step / 20)
        optimizer.step()
        optimizer.zero_grad()
    assert sparsifier.updates > 1
    assert torch.equal(model[0].mask, model[2].mask)
    assert int(model[0].mask.sum()) == 32
    assert not model[0].weight[~model[0].mask].any()


def test_penalties_are_not_differentiated_for_growth_that_has_ended() -> None:
    torch.manual_seed(0)
    model = dg.gate_(with_activation(nn.ReLU()), dg.GateConfig(net="low-rank", rank=1))
    sparsifier = dg.RigL(model, density=0.6, every=2, until=0.5)
    budget, optimizer = dg.Budget(target=0.8), torch.optim.SGD(model.parameters(), 0.01)
    for step in range(20):
        budget.apply_(model, step / 20)
        with dg.usage(model) as used:
            loss = nn.functional.cross_entropy(model(X), Y)
        penalty = budget.step(used, step / 20)
        sparsifier.watch(used, penalty)
        (loss + penalty).backward()
        sparsifier.step(optimizer, step / 20)
        optimizer.step()
        optimizer.zero_grad()
    assert sparsifier._penalty_gradients == {}


def test_options_of_a_budget_that_came_later_are_no_settings_while_they_are_off() -> None:
    """Checkpoints that were saved before there were such options can be continued."""
    off, on = (budget_settings(dg.Budget(target=0.5, **changed)) for changed in ({}, LATER))
    assert on == {**off, **LATER}
    assert not LATER.keys() & off.keys()
