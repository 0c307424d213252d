"""`fit` learns, meets its budget, and is reproducible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dynamicgate as dg
from dynamicgate import Budget, fit, measure
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.training.optimizer import adamw
from dynamicgate.training.options import FitOptions
from tests.training.easy import blobs, dense, differences, gated, largest_difference, weights_in


@contextmanager
def before_each_step(callback: Callable[[torch.optim.Optimizer], None]) -> Iterator[None]:
    handle = register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: callback(optimizer))
    try:
        yield
    finally:
        handle.remove()


def test_a_dense_network_learns_an_easy_task() -> None:
    model = dense()
    history = fit(model, blobs(), epochs=8, batch=24, lr=1e-2, show=False)
    assert history.log[-1]["loss"] < 0.1 * history.log[0]["loss"]
    assert measure(model, blobs(seed=1)).quality["accuracy"] > 0.97
    assert history.steps == 8 * 10
    assert not model.training


@pytest.mark.slow
def test_a_gated_network_learns_digits_within_its_budget() -> None:
    splits = load_dataset("digits")
    model = dg.nn.GatedMLP((64, 64, 10), dg.GateConfig(net="low-rank", rank=4), normalize=dg.nn.Normalize(0.3, 0.38))
    fit(model, splits.train, valid=splits.valid, budget=Budget(target=0.5), epochs=10, batch=32, show=False)
    found = measure(model, splits.test)
    assert found.quality["accuracy"] > 0.9
    assert abs(found.macs["relative"] - 0.5) <= 0.03


@pytest.mark.parametrize("target", [0.45, 0.7])
def test_the_budget_is_met_on_the_training_data(target: float) -> None:
    model, data = gated(), blobs()
    fit(model, data, budget=Budget(target=target), epochs=8, batch=24, show=False)
    found = measure(model, data)
    assert abs(found.macs["relative"] - target) <= 0.02
    assert found.quality["accuracy"] > 0.9


def test_a_budget_that_whole_blocks_cannot_meet_gives_a_warning() -> None:
    model = gated(block=32, kind="static")  # all or nothing
    with pytest.warns(UserWarning, match=r"the budget was missed: asked for 0.500 of the dense MACs, executes (1|0)\."):
        fit(model, blobs(), budget=Budget(target=0.5), epochs=2, batch=24, show=False)


def test_the_final_validation_result_is_that_of_the_calibrated_model() -> None:
    model, valid = gated(), blobs(60, seed=3)
    history = fit(model, blobs(), valid=valid, budget=Budget(target=0.5), epochs=8, batch=24, show=False)
    found = measure(model, valid)
    assert history.final is not None
    assert history.final["accuracy"] == found.quality["accuracy"]
    assert history.final["relative"] == pytest.approx(found.macs["relative"], rel=1e-6)
    assert history.final["relative"] != history.log[-1]["valid"]["relative"]
    assert fit(dense(), blobs(), epochs=1, show=False).final is None


def test_the_same_seed_gives_the_same_bits_whatever_the_global_random_state() -> None:
    ends = []
    for drawn in (1, 12):
        model = gated(dropout=0.2, train="bernoulli")
        torch.rand(drawn)
        fit(model, blobs(), budget=Budget(target=0.6), epochs=2, batch=50, seed=5, show=False)
        ends.append(model.state_dict())
    assert differences(*ends) == []


def test_another_seed_gives_other_weights() -> None:
    ends = []
    for seed in (5, 6):
        model = dense()
        fit(model, blobs(), epochs=1, batch=50, seed=seed, show=False)
        ends.append(model.state_dict())
    assert set(differences(*ends)) == set(ends[0])


def test_the_global_random_state_is_left_as_it_was() -> None:
    model = gated(dropout=0.2, train="bernoulli")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    fit(model, blobs(), epochs=1, batch=50, seed=5, show=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_accumulated_micro_batches_equal_the_whole_batch() -> None:
    ends = []
    weights = torch.tensor([1.0, 2.0, 0.5])
    for accumulate in (1, 4):
        model = dense()
        fit(
            model, blobs(100), epochs=6, batch=30, accumulate=accumulate, class_weights=weights, label_smoothing=0.1,
            show=False,
        )  # fmt: skip
        ends.append(model.state_dict())
    # Sums in another order: each of 24 steps of at most 2e-3 may differ by some float32 roundings (6e-8 relative) of a
    # gradient, which AdamW does not damp. Wrongly weighted micro-batches (30 = 8 + 8 + 7 + 7 rows) differ by 1e-3.
    assert 0.0 < largest_difference(*ends) < 2e-6


def test_accumulating_over_more_steps_than_rows_uses_one_row_per_step() -> None:
    model = dense()
    history = fit(model, blobs(9), epochs=1, batch=4, accumulate=50, show=False)
    assert history.steps == 3


def test_clip_bounds_the_gradient_norm() -> None:
    def norms(clip: float | None) -> list[float]:
        found: list[float] = []
        model = dense()
        gradient = lambda _: found.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))  # noqa: E731
        with before_each_step(gradient):
            fit(model, blobs(), epochs=1, batch=24, clip=clip, show=False)
        return found

    assert min(norms(None)) > 0.05
    assert max(norms(0.05)) <= 0.05 * (1 + 1e-5)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")  # a CPU without bf16 warns and continues
def test_bf16_trains_float32_weights() -> None:
    model, full = gated(), gated()
    fit(model, blobs(), epochs=6, batch=24, lr=1e-2, bf16=True, show=False)
    fit(full, blobs(), epochs=6, batch=24, lr=1e-2, show=False)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert measure(model, blobs(seed=1)).quality["accuracy"] > 0.95
    assert largest_difference(model.state_dict(), full.state_dict()) > 1e-4


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_class_weights_give_the_loss_computed_by_hand(smoothing: float) -> None:
    x, y = blobs(60)
    keep = torch.cat([(y == 0).nonzero()[:4], (y == 1).nonzero(), (y == 2).nonzero()[:9]]).flatten()
    x, y = x[keep], y[keep]
    by_hand = torch.tensor([33 / (3 * 4), 33 / (3 * 20), 33 / (3 * 9)])
    for class_weights in ("balanced", by_hand, by_hand.double()):
        model = dense()
        logs_NC = model(x).detach().log_softmax(1)
        wanted_NC = F.one_hot(y, 3) * (1 - smoothing) + smoothing / 3
        expected = float(-(by_hand * wanted_NC * logs_NC).sum() / by_hand[y].sum())
        history = fit(
            model, (x, y), epochs=1, batch=33, class_weights=class_weights, label_smoothing=smoothing, show=False
        )
        assert history.log[0]["loss"] == pytest.approx(expected, rel=1e-6)
        assert float(by_hand[y].mean()) == pytest.approx(1.0)


def test_balanced_weights_ignore_a_class_that_does_not_occur() -> None:
    x, y = blobs(60, classes=2)
    with pytest.warns(UserWarning, match="no training row has class 2"):
        history = fit(dense(), (x, y), epochs=1, class_weights="balanced", show=False)
    assert history.log[0]["loss"] == pytest.approx(F.cross_entropy(dense()(x), y).item(), rel=1e-6)


def test_early_stopping_restores_the_best_epoch(tmp_path: Path) -> None:
    model, valid = dense(), blobs(60, seed=3, spread=1.0)
    history = fit(model, blobs(), valid=valid, epochs=40, batch=24, patience=3, out=tmp_path, show=False)
    accuracies = [row["valid"]["accuracy"] for row in history.log if row["valid"]]
    assert history.stopped_early
    assert history.steps == 10 * len(accuracies) < 400
    assert history.best is not None
    assert history.best["accuracy"] == max(accuracies)
    assert history.best["epoch"] == accuracies.index(max(accuracies)) == len(accuracies) - 1 - 3
    assert measure(model, valid).quality["accuracy"] == max(accuracies)
    assert differences(model.state_dict(), weights_in(tmp_path / "best.safetensors")) == []
    assert differences(model.state_dict(), weights_in(tmp_path / "last.safetensors")) != []


def test_an_epoch_over_the_budget_cannot_be_best() -> None:
    budget, valid = Budget(target=0.5), blobs(60, seed=3)
    history = fit(gated(), blobs(), valid=valid, budget=budget, epochs=20, batch=24, lr=1e-2, patience=2, show=False)
    rows = [row["valid"] for row in history.log if row["valid"]]
    assert rows[0]["relative"] > 0.9
    assert history.best is not None
    assert history.best["relative"] <= 0.51
    assert history.best["accuracy"] == max(row["accuracy"] for row in rows if row["relative"] <= 0.51)
    assert history.stopped_early


def test_without_patience_the_last_weights_are_kept(tmp_path: Path) -> None:
    model = dense()
    history = fit(model, blobs(), valid=blobs(60, seed=3), epochs=6, batch=24, out=tmp_path, show=False)
    assert history.best is not None
    assert history.best["epoch"] < 5
    assert differences(model.state_dict(), weights_in(tmp_path / "last.safetensors")) == []


def test_weight_decay_applies_to_weight_matrices_also_of_gates_and_to_nothing_else() -> None:
    model = dg.nn.GatedMLP((8, 16, 16, 3), dg.GateConfig(net="two-layer", rank=2))
    frozen = model.layers[0].weight.requires_grad_(False)
    options = FitOptions(lr=1e-3, weight_decay=0.3, gate_lr_scale=0.2)
    groups = adamw(model, options, torch.device("cpu")).param_groups
    decays, rest, gate_decays, gates = groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in decays["params"]} == {"layers.1.weight", "layers.2.weight"}
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0, 0.3, 0.0]
    assert [group["lr_scale"] for group in groups] == [1.0, 1.0, 0.2, 1.0]
    assert {names[id(p)] for p in rest["params"]} == {"layers.0.bias", "layers.1.bias", "layers.2.bias"}
    trained = [p for group in groups for p in group["params"]]
    assert {id(p) for p in trained} == names.keys() - {id(frozen)}
    assert all(".gate." in names[id(p)] and p.ndim == 2 for p in gate_decays["params"])
    assert all(".gate." in names[id(p)] and p.ndim == 1 for p in gates["params"]), "biases hold the budget"


def test_gate_lr_scale_scales_the_learning_rate_of_gate_weights() -> None:
    moved = {}
    for rate in (1.0, 0.01):
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((8, 16, 3), dg.GateConfig(block=4))
        weight = dg.named_gates(model)["layers.1"].net.weight
        before = weight.detach().clone()
        fit(
            model,
            blobs(),
            budget=dg.budget.OpenLoopBudget(weight=0.1),
            epochs=2,
            batch=24,
            gate_lr_scale=rate,
            show=False,
        )
        moved[rate] = float((weight.detach() - before).abs().max())
    assert 0.0 < moved[0.01] < 0.03 * moved[1.0]


def test_the_learning_rate_warms_up_and_decays_to_zero() -> None:
    rates = [row["lr"] for row in fit(dense(), blobs(), epochs=4, batch=24, lr=1e-2, warmup=0.25, show=False).log]
    assert rates[0] == pytest.approx(1e-3)
    assert max(rates) < 1e-2
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] < 1e-4


@pytest.mark.parametrize("form", ["pair", "list", "numpy", "arrays"])
def test_data_may_be_pairs_lists_numpy_or_arrays(form: str) -> None:
    x, y = blobs(60)
    given: dict[str, Any] = {
        "pair": (x.double(), y.int()),
        "list": [x, y],
        "numpy": (x.numpy(), y.numpy()),
        "arrays": dg.data.Arrays(x, y),
    }
    reference, model = dense(), dense()
    fit(reference, (x, y), epochs=1, batch=20, show=False)
    fit(model, given[form], epochs=1, batch=20, show=False)
    assert differences(model.state_dict(), reference.state_dict()) == []


def test_images_may_be_flattened_by_the_model() -> None:
    x, y = blobs(60)
    model = nn.Sequential(nn.Flatten(), *dense())
    flat = dense()
    fit(model, (x.reshape(60, 2, 4), y), epochs=1, batch=20, show=False)
    fit(flat, (x, y), epochs=1, batch=20, show=False)
    assert differences(dict(model[1].state_dict()), dict(flat[0].state_dict())) == []


def test_a_hand_written_loop_gives_the_same_weights() -> None:
    """What `fit` does, written out."""
    x, y = blobs(100)
    model, mine = gated(), gated()
    fit(model, (x, y), epochs=2, batch=30, weight_decay=0.0, warmup=0.0, seed=4, show=False)
    optimizer = torch.optim.AdamW(mine.parameters(), weight_decay=0.0, fused=True)
    mine.train()
    step, total = 0, 8
    for epoch in range(2):
        for rows in dg.data.batches(100, 30, seed=4, epoch=epoch):
            optimizer.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * step / total))))
            F.cross_entropy(mine(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    assert largest_difference(model.state_dict(), mine.state_dict()) < 1e-6  # `fit` divides a sum by the count


def tensors_of(history: dg.training.History) -> list[Tensor]:
    return [torch.tensor(row["loss"]) for row in history.log if row["loss"] is not None]


def test_the_loss_in_the_log_is_the_mean_over_the_batch() -> None:
    x, y = blobs(60)
    expected = F.cross_entropy(dense()(x), y)
    for accumulate in (1, 7):
        history = fit(dense(), (x, y), epochs=1, batch=60, accumulate=accumulate, show=False)
        torch.testing.assert_close(tensors_of(history)[0], expected.detach())


def test_a_budget_can_be_reused_for_a_second_run() -> None:
    weights = []
    budget = dg.Budget(target=0.6)
    for _ in range(2):
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((8, 16, 3), dg.GateConfig(rank=1))
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        dg.fit(model, (x, x[:, :3].argmax(1)), budget=budget, epochs=3, batch=16, show=False)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
