"""Training models with stages: with `fit`, in an own loop, interrupted, in micro-batches and on two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import Budget, GateConfig, fit, measure
from dynamicgate.data import batches
from dynamicgate.training import StageLoss, read_log
from dynamicgate.training.options import FitOptions
from tests.gating.staged import the_gate
from tests.training import staged_run, staged_step
from tests.training.easy import blobs, dense, differences, largest_difference, weights_in
from tests.training.staged_run import staged
from tests.training.test_resume import StopAt, ctrl_c
from tests.two_nodes import run_in_two_processes


def hard_blobs(rows: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    return blobs(rows, seed=seed, spread=1.2)


# --- with fit


@pytest.mark.parametrize("decide", ["margin", "head"])
def test_fit_meets_the_budget_with_rows_that_stop_early(decide: str) -> None:
    model, valid = staged(decide), hard_blobs(400, seed=1)
    history = fit(
        model, hard_blobs(), valid=valid, budget=Budget(target=0.45), stage_loss=StageLoss(focus=0.3), epochs=20,
        batch=30, lr=5e-3, show=False,
    )  # fmt: skip
    assert history.final is not None
    assert history.final["relative"] == pytest.approx(0.45, abs=0.005)
    found = measure(model, valid)
    assert found.relative == pytest.approx(history.final["relative"], rel=1e-6)
    assert found.accuracy == history.final["accuracy"] > 0.8
    assert found.stages is not None
    assert 0.0 < found.stages["open"][2] <= found.stages["open"][1] < 1.0
    row = history.log[5]
    assert row["target"] == row["reference"] == 0.45
    assert len(row["stages"]) == 3
    assert row["stages"][0] == 1.0
    assert row["sites"] == {}


def test_without_a_budget_every_stage_learns_and_all_stay_open() -> None:
    model = staged()
    fit(model, blobs(), epochs=15, batch=24, lr=5e-3, show=False)
    found = measure(model, blobs(seed=1))
    assert found.stages is not None
    assert found.stages["open"] == [1.0, 1.0, 1.0]
    assert min(found.stages["accuracy"]) > 0.95
    alone = staged()
    fit(alone, blobs(), epochs=15, batch=24, lr=5e-3, stage_loss=StageLoss(weights=(0, 0, 1)), show=False)
    stages = measure(alone, blobs(seed=1)).stages
    assert stages is not None
    assert stages["accuracy"][2] > 0.95
    assert stages["accuracy"][0] < min(found.stages["accuracy"])


def test_one_epoch_of_fit_is_the_own_loop_line_by_line() -> None:
    """Plain AdamW steps on the order of `fit`, and the four lines."""
    x, y = hard_blobs(90)
    with_fit, own = staged("head"), staged("head")
    loss = StageLoss(focus=0.5, distill=0.3, weights=(1.0, 2.0, 3.0))
    fit(
        with_fit,
        (x, y),
        budget=Budget(target=0.5),
        stage_loss=loss,
        epochs=1,
        batch=30,
        warmup=0.0,
        weight_decay=0.0,
        show=False,
    )
    budget = Budget(target=0.5)
    optimizer = torch.optim.AdamW(own.parameters(), lr=2e-3, weight_decay=0.0)
    options = FitOptions(
        epochs=1, batch=30, lr=2e-3, gate_lr_scale=1.0, weight_decay=0.0, warmup=0.0, accumulate=1, clip=None,
        bf16=False, label_smoothing=0.0, patience=None, seed=0,
    )  # fmt: skip
    for step, rows in enumerate(batches(90, 30, seed=0, epoch=0)):
        optimizer.param_groups[0]["lr"] = options.learning_rate(step, 3)
        budget.apply_(own, step / 3)
        with dg.usage(own) as used:
            own(x[rows])
        total = loss(used, lambda out, rows=rows: F.cross_entropy(out, y[rows], reduction="none"))  # type: ignore[misc]
        (total + budget.step(used, step / 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
    budget.calibrate_(own, x)
    # fused AdamW rounds differently
    assert largest_difference(with_fit.state_dict(), own.state_dict()) < 1e-6


def test_a_teacher_and_class_weights_reach_every_stage() -> None:
    teacher = dense()
    fit(teacher, blobs(), epochs=8, batch=24, lr=1e-2, show=False)
    x, y = blobs()
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    student = staged()
    calls: list[int] = []
    teacher.register_forward_hook(lambda *_: calls.append(1))
    fit(
        student, (x, shuffled), teacher=teacher, distill_weight=1.0, class_weights="balanced", epochs=12, batch=24,
        lr=1e-2, show=False,
    )  # fmt: skip
    stages = measure(student, blobs(seed=1)).stages
    assert stages is not None
    assert min(stages["accuracy"]) > 0.9
    assert len(calls) == 12 * 10 + 1, "once a batch, not once a stage"


def test_stage_loss_needs_stages() -> None:
    with pytest.raises(ValueError, match=r"stage_loss is for a model with stages: call gate_\(model, GateConfig"):
        fit(dense(), blobs(), stage_loss=StageLoss(), epochs=1, show=False)


def test_micro_batches_give_the_weights_of_the_whole_batch() -> None:
    models = [staged("head"), staged("head")]
    for model, accumulate in zip(models, (1, 4), strict=True):
        loss = StageLoss(weights=(1.0, 2.0, 1.0), distill=0.4)
        fit(model, blobs(90), stage_loss=loss, epochs=3, batch=30, accumulate=accumulate, show=False)
    assert largest_difference(*(model.state_dict() for model in models)) < 3e-6


def test_a_budget_in_micro_batches_is_met() -> None:
    model = staged()
    fit(
        model,
        hard_blobs(),
        valid=hard_blobs(300, seed=1),
        budget=Budget(target=0.5),
        epochs=10,
        accumulate=3,
        show=False,
    )
    assert measure(model, hard_blobs(300, seed=1)).relative == pytest.approx(0.5, abs=0.005)


# --- interrupted


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("step", [1, 13, 32])
def test_an_interrupted_run_continues_to_the_same_bits(step: int, sparse: bool, tmp_path: Path) -> None:
    def run(out: Path) -> tuple[dict[str, Tensor], dg.training.History]:
        model = staged("head", dropout=0.2)
        sparsifier = dg.RigL(model, {"layers.0": 0.5, "layers.1": (0.4, 0.6, 0.5)}, every=3) if sparse else None
        history = fit(
            model, blobs(), valid=blobs(60, seed=1), budget=Budget(target=0.4), sparsifier=sparsifier, patience=9,
            stage_loss=StageLoss(weights=(1, 1, 2), focus=0.5), epochs=4, batch=30, seed=2, out=out,
            checkpoint_seconds=0.0, show=False,
        )  # fmt: skip
        return model.state_dict(), history

    expected, history = run(tmp_path / "straight")
    with StopAt(step, ctrl_c), pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped")
    continued, again = run(tmp_path / "stopped")
    assert differences(continued, expected) == []
    assert again.log == history.log
    assert (again.best, again.final) == (history.best, history.final)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"focus": 0.6}, r"was made with stages=\{.*'focus': 0.5.*this run has stages=\{.*'focus': 0.6"),
        ({"weights": (1.0, 1.0, 2.0)}, "'weights': None"),
        ({"decide": "entropy"}, "'decide': 'margin'"),
        ({"sizes": (8, 32, 16, 3), "stages": (0.5, 0.5)}, r"'bounds': \[\[0, 8, 16, 32\]"),
    ],
)
def test_a_checkpoint_of_other_stages_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    def run(**settings: Any) -> None:
        stages = settings.pop("stages", (0.25, 0.25, 0.5))
        config = GateConfig(kind="stages", stages=stages, decide=settings.pop("decide", "margin"))
        model = dg.nn.GatedMLP(settings.pop("sizes", (8, 32, 16, 3)), config)
        loss = StageLoss(**{"focus": 0.5, **settings})
        fit(model, blobs(), stage_loss=loss, epochs=2, batch=30, out=tmp_path, checkpoint_seconds=0.0, show=False)

    with StopAt(3, ctrl_c), pytest.raises(KeyboardInterrupt):
        run()
    with pytest.raises(ValueError, match=named):
        run(**change)


# --- two processes


@pytest.mark.slow
def test_two_processes_have_the_gradients_the_focus_and_the_cut_of_one(tmp_path: Path) -> None:
    done = run_in_two_processes([staged_step.__file__, str(tmp_path / "found")])
    assert [each.returncode for each in done] == [0, 0], done
    expected = staged_step.step(slice(0, 23))
    for rank in range(2):
        found = load_file(tmp_path / f"found.{rank}")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # the scores, and with them the cut and the loss of the heads, are float32
            torch.testing.assert_close(found[name], value.to(found[name].dtype), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_two_processes_train_to_the_weights_and_the_cut_of_one(sparse: bool, tmp_path: Path) -> None:
    settings = {"sparse": sparse, "epochs": 8}
    done = run_in_two_processes([staged_run.__file__, json.dumps({**settings, "out": str(tmp_path / "two")})])
    assert [each.returncode for each in done] == [0, 0], done
    staged_run.main(str(tmp_path / "one"), **settings)  # type: ignore[arg-type]
    one, two = (weights_in(tmp_path / name / "final.safetensors") for name in ("one", "two"))
    assert largest_difference(one, two) < 3e-6  # as in test_distributed.py
    logs = [list(read_log(tmp_path / name / "log.jsonl")) for name in ("one", "two")]
    assert [row["masks"] for row in logs[0]] == [row["masks"] for row in logs[1]]
    for key in ("loss", "relative"):
        assert [row[key] for row in logs[0]] == pytest.approx([row[key] for row in logs[1]], abs=1e-5)


# --- other tasks, other gates


def wavy(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """A line on one side, which is easy, and a wave on the other."""
    x = 2 * torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed)) - 1
    return x, torch.where(x < 0, x, torch.sin(9 * x))


def test_regression_in_an_own_loop_learns_and_stops_early() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    dg.gate_(model, GateConfig(kind="stages", stages=(0.125, 0.875), decide="head"))
    (x, y), (x_test, y_test) = wavy(1024, 0), wavy(1000, 1)
    loss, budget = StageLoss(outputs="values"), Budget(target=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(600):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 600)
        rows = torch.randint(len(x), (128,))
        budget.apply_(model, step / 600)
        with dg.usage(model) as used:
            model(x[rows])
        total = loss(used, lambda out, rows=rows: F.mse_loss(out, y[rows], reduction="none"))  # type: ignore[misc]
        (total + budget.step(used, step / 600)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert dg.calibrate_(model, x, macs=0.5) == pytest.approx(0.5, abs=0.001)
    model.eval()
    with dg.usage(model) as used, torch.no_grad():
        out = model(x_test)
    assert used.stages is not None
    first, last = (F.mse_loss(z, y_test).item() for z in used.stages.outputs)
    found, rate = F.mse_loss(out, y_test).item(), used.stages.open[:, 1].mean().item()
    at_random = (1 - rate) * first + rate * last
    assert last < 0.5 * first, "the second stage has something to add"
    assert 0.3 < rate < 0.7
    assert found - last < 0.5 * (at_random - last), "it opens for rows that need it"
    hard = x_test[:, 0] > 0
    assert used.stages.open[hard, 1].mean() > used.stages.open[~hard, 1].mean() + 0.2


def test_block_gates_inside_stages_train_and_measure() -> None:
    model = staged(sizes=(8, 32, 32, 3))
    dg.gate_(model, GateConfig(block=4, net="linear"))
    fit(
        model,
        hard_blobs(),
        valid=hard_blobs(300, seed=1),
        budget=Budget(target=0.4),
        epochs=15,
        batch=30,
        lr=5e-3,
        show=False,
    )
    found = measure(model, hard_blobs(300, seed=1))
    assert found.relative == pytest.approx(0.4, abs=0.01)
    assert found.accuracy > 0.8
    assert found.macs["gate"] == sum(gate.macs for gate in dg.named_gates(model).values())
    assert len(found.gates) == 2
    net: Any = dg.named_gates(model)["layers.2"].net
    model(hard_blobs()[0])
    assert not bool((net.weight != 0)[~net.mask].any())
    assert bool(the_gate(model).cut.isfinite().all())
