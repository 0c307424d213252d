"""Sparsifiers and the state of optimizers, foreign optimizers, gradient scaling."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynamicgate as dg
from tests.sparsity.steps import rigl, train


def test_an_optimizer_without_the_sparse_weights_is_refused() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    with pytest.raises(ValueError, match=r"the optimizer does not train 'layers\.0'"):
        train(model, rigl(model), torch.optim.SGD(model.layers[1].parameters(), lr=0.1), 1, 100)


def test_an_optimizer_that_mixes_entries_of_a_weight_is_detected() -> None:
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


def test_optimizer_state_from_before_the_mask_is_cleared() -> None:
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
        if step in (1, 2):  # overflows: at a step where an update is due, and at the next, where it is still due
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
    assert sparsifier.updates == 2, "at the first finite step after the overflow, and one period later"
    assert not torch.equal(masks[2], masks[3])
