"""Continual learning: every kind of run from end to end at a quick size, and networks side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.continual import cells, classes, grids, keeping, noticing, page, plasticity
from experiments.continual.laboratories import Laboratories
from experiments.continual.page import pages, title
from experiments.continual.settings import BYTES, QUICK_KEEP, replay_of
from experiments.continual.shown import rows_of, usual_hidden
from experiments.continual.side import Side
from experiments.continual.stack import Stack
from experiments.continual.tables import CONTINUAL, TUNED
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual import Contexts, Keeper, Replay, follow
from dynamicgate.data import Arrays
from dynamicgate.gating.context import ContextNet
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.stream_methods import class_order, stream_of
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.results import collect, write_finished
from dynamicgate.sparsity.patterns import parse_pattern, prune_and_regrow
from dynamicgate.sparsity.unit_utility import choose_useless_

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_dataset("digits").flat()


def as_cells(splits: Splits) -> cells.Cells:
    """The same rows, and some by which settings can be chosen."""
    return cells.Cells(splits.name, splits.train, splits.valid, splits.test, splits.classes, 0.0, 1.0, inner=splits)


def quick(table: str, model: str, work: Path, **settings: Any) -> Job:
    found = CONTINUAL.table(table)
    found = replace(found, quick={**found.quick, **settings})
    return Job(found, model, 0, quick=True, work=work, device="cpu")


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ("e0-permuted-5", "gate, short"), ("e0-permuted-5", "gate+rigl, short"), ("e1", "keep"), ("e1", "joint"),
        ("e1", "xdg"), ("e2", "separate"), ("e2", "static"), ("e2", "joint"), ("e3", "keep"), ("e5", "fresh"),
        ("e5", "side by side"), ("e6-wide", "width 2,000"), ("e7", "keep"), ("e8", "readout 1000"), ("e8", "er 200"),
        ("e8", "readout 500, windows"), ("e8", "readout 500, learned"), ("e9", "keep + reuse"),
        ("e9-cifar10", "lwf"), ("e10", "nearest mean"), ("e10", "keep"), ("e11", "jumping, gates 0.1, every 10"),
        ("e11-consolidation", "jumping, every 30, kept after 1"), ("e8", "er, 32 MB"), ("e3", "horizon 1000"),
        ("tuning-horizon", "horizon 1000"), ("tuning-classes", "er, 2 MB, lr 0.001"),
        ("tuning-learners", "keep, lr 0.005"), ("tuning-plasticity", "side by side"),
        ("tuning-keep", "joint, labels smoothed, lr 0.001"),
    ],
)  # fmt: skip
def test_a_run_of_every_kind(table: str, model: str, tmp_path: Path, digits: Splits) -> None:
    job = quick(table, model, tmp_path, **({"window": 3} if "windows" in model else {}))
    found = job.table.train(job, as_cells(digits) if table == "e10" else digits)
    assert found["model"] == model
    assert 0.0 <= found["quality"]["accuracy"] <= 1.0
    assert "relative" in found["macs"]


def test_contexts_side_by_side_are_one_model_that_forgets_nothing(tmp_path: Path, digits: Splits) -> None:
    job = quick("e2", "keep", tmp_path, epochs=8, density=0.3)
    found = job.table.train(job, digits)
    quality = found["quality"]
    assert quality["forgetting"] == 0.0
    assert quality["assembled"]["apart"] < 1e-4, "the model of the library answers the same"
    assert quality["assembled"]["accuracy"] == pytest.approx(quality["acc"], abs=1e-9)
    assert quality["assembled"]["open_blocks"] == 1.0
    assert quality["assembled"]["gate"] == 3 * 64 == found["macs"]["gate"]


def test_side_by_side_and_one_after_the_other_learn_as_much(digits: Splits) -> None:
    asked = {**QUICK_KEEP, "epochs": 6, "lr": 1e-2, "density": None}
    images = keeping.images_of(digits, 3, 0, CPU)
    seen = keeping.told(images, asked, 0)
    nets = keeping.join(keeping.learn(images, seen, asked, 0))
    side = keeping.test(images, seen, nets, keeping.mean_rows(images, seen), 3)
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((64, 96, 10), dg.GateConfig(kind="context", block=32, contexts=3))
    stream = keeping.stream_of(digits, 3, 0)
    contexts = Contexts(model, Keeper(model))
    after = follow(model, stream, contexts=contexts, epochs=6, batch=50, lr=1e-2, show=False, device="cpu")
    assert side.forgetting == after.forgetting == 0.0
    assert side.acc == pytest.approx(after.acc, abs=0.05)
    x = stream.tasks[1].train.rows(torch.arange(5))
    assert torch.equal(images.rows(torch.tensor([1]), torch.arange(5)[None])[0], x), "the same permutations"


def test_where_nothing_is_known_contexts_are_found(digits: Splits) -> None:
    images = keeping.images_of(digits, 3, 0, CPU)
    seen = keeping.notice(images, {**QUICK_KEEP, "strange": 8.0}, 0)
    assert seen.tasks.tolist() == [0, 1, 2]


def test_a_stack_takes_the_steps_of_its_networks() -> None:
    stack = Stack.draw(2, (6, 5, 3), seed=0, device=CPU)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for layer, weight, bias in ((model[0], stack.weights[0], stack.biases[0]),
                                    (model[2], stack.weights[1], stack.biases[1])):  # fmt: skip
            layer.weight.copy_(weight[1].T)
            layer.bias.copy_(bias[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        x, y = torch.randn(2, 8, 6), torch.randint(3, (2, 8))
        grads, _ = stack.gradients(x, y)
        stack.adam_(grads, torch.tensor([0.0, 1e-2]))
        optimizer.zero_grad()
        F.cross_entropy(model(x[1]), y[1]).backward()
        optimizer.step()
    torch.testing.assert_close(stack.weights[0][1].T, model[0].weight.detach())
    torch.testing.assert_close(stack.biases[1][1], model[2].bias.detach())


def test_a_stack_exchanges_as_the_sparsifiers_do() -> None:
    stack = Stack.draw(3, (12, 10, 3), seed=0, device=CPU)
    stack.sparsify_(0, 0.5, seed=1)
    mask = stack.masks[0]
    assert mask is not None
    before, grow = mask.clone(), torch.rand(3, 12, 10)
    which = torch.tensor([True, False, True])
    weight = stack.weights[0].clone()
    stack.exchange_(0, grow, 0.3, 0.4, which)
    now = stack.masks[0]
    assert now is not None
    for k in (0, 2):
        expected = prune_and_regrow(parse_pattern("unstructured"), before[k], weight[k].abs(), grow[k], 0.3, 0.4)
        assert torch.equal(now[k], expected)
    assert torch.equal(now[1], before[1])


def test_a_stack_takes_fused_steps_as_the_optimizer_does() -> None:
    stack = Stack.draw(1, (6, 5, 3), seed=0, device=CPU)
    weights = [w[0].clone().requires_grad_() for w in stack.weights]
    biases = [b[0].clone().requires_grad_() for b in stack.biases]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(3):
        x, y = torch.randn(1, 8, 6), torch.randint(3, (1, 8))
        stack.adam_(stack.gradients(x, y)[0], 1e-2, 0.1)
        optimizer.zero_grad()
        F.cross_entropy((x[0] @ weights[0] + biases[0]).relu() @ weights[1] + biases[1], y[0]).backward()
        optimizer.step()
    torch.testing.assert_close(stack.weights[0][0], weights[0].detach())
    torch.testing.assert_close(stack.biases[1][0], biases[1].detach())


def test_pieces_of_batches_are_noticed_as_one_batch_after_the_other(digits: Splits) -> None:
    images, asked = keeping.images_of(digits, 3, 0, CPU), {**QUICK_KEEP, "batch": 25, "epochs": 3, "strange": 1.4}
    net = ContextNet(64, 1, 200)
    expected: list[list[Tensor]] = []
    for task in range(3):
        for rows in noticing.order_of(images, asked, 0, task):
            x = images.rows(torch.tensor([task]), rows[None])[0]
            strange = net.strangeness(x)
            best = int(strange.argmin())
            if float(strange[best]) >= 1.4:
                best = len(expected)
                expected.append([])
            net.learn_(best, x)
            expected[best].append(rows)
    found = noticing.notice(images, {**asked, "tasks": 3}, 0)
    assert len(expected) > 3, "low enough that known contexts seem strange at times, and batches change about"
    assert [p.tolist() for p in found.positions] == [torch.stack(rows).tolist() for rows in expected]


def test_a_long_stream_is_tested_when_a_task_is_learned_and_at_the_end(
    digits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = quick("e7", "keep", tmp_path, epochs=8, density=0.3)
    whole = job.table.train(job, digits)["quality"]
    monkeypatch.setattr(keeping, "WHOLE", 2)
    long = job.table.train(job, digits)["quality"]
    assert long["retention"] is None
    assert long["acc"] == whole["acc"]
    assert long["by_age"] == whole["by_age"]
    assert long["forgetting"] is None, "what was best is not known where not all was measured"
    assert long["bwt"] == pytest.approx(whole["bwt"])
    assert whole["forgetting"] > 0.1, "the oldest was released"


def test_contexts_are_named_in_projections(digits: Splits, tmp_path: Path) -> None:
    job = quick("e4", "keep", tmp_path, epochs=8, density=0.3)
    found = job.table.train(job, digits)
    router = found["quality"]["routers"]["64"]
    assert router["named"] > 0.9
    assert router["acc"] == pytest.approx(found["quality"]["acc"], abs=0.05)
    assert router["gate"] == 64 * (64 + 3)


def test_silent_units_are_recycled_only_where_the_method_says_so(digits: Splits) -> None:
    side = Side(["dense", "redo"], (64, 20, 10), 1e-2, [0], CPU)
    for bias in side.stack.biases[:1]:
        bias[:, :5] = -100.0
    x, y = digits.train.values[None, :32], digits.train.y[None, :32]
    for _ in range(3):
        side.step(x, y)
    side.between()
    assert bool((side.stack.biases[0][0, :5] < -50).all())
    assert bool((side.stack.biases[0][1, :5] == 0).all())
    assert math.isfinite(float(side.stack.weights[0].sum()))


def test_continual_backprop_replaces_old_useless_units_and_their_mean_moves_to_the_next_bias(digits: Splits) -> None:
    options = {"continual backprop": {"rate": 0.05, "maturity": 4}}
    side = Side(["dense", "continual backprop"], (64, 20, 10), 1e-9, [0], CPU, options)  # nearly nothing is learned
    side.stack.biases[0] += 5.0  # all units are active
    side.stack.weights[1][:, 7] *= 1e-3  # the least useful unit
    x, y = digits.train.values[None, :32], digits.train.y[None, :32]
    before = [w.clone() for w in side.stack.weights]
    for step in range(5):
        side.step(x, y)
        changed = (side.stack.weights[0][1] != before[0][1]).all(0).nonzero().flatten().tolist()
        assert changed == ([7] if step == 4 else []), "the first whole unit is due with the fifth step: 20 x 0.05"
    assert bool((side.stack.weights[1][1, 7] == 0.0).all())
    assert side.age[0][1].tolist() == [0.0 if unit == 7 else 5.0 for unit in range(20)]
    hidden: list[Tensor] = []
    side.forward(x.expand(2, -1, -1), hidden, [])
    mean = hidden[0][0].mean(0)  # of the dense twin, whose unit 7 is as it was
    moved = side.stack.biases[1][1] - side.stack.biases[1][0]
    torch.testing.assert_close(moved, mean[7] * before[1][1, 7], atol=1e-5, rtol=1e-3)
    assert torch.allclose(side.stack.weights[0][0], before[0][0], atol=1e-6), "the dense network is not touched"


def test_fractions_of_units_add_up_and_the_young_are_spared() -> None:
    due, utility = torch.zeros(2, dtype=torch.float64), torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    old = torch.tensor([[True, False, True], [True, True, True]])
    chosen = [choose_useless_(due, utility, old, torch.tensor([0.25, 0.4])) for _ in range(2)]
    assert chosen[0].tolist() == [[False] * 3, [True, False, False]]
    assert chosen[1].tolist() == [[False, False, True], [True, False, False]]
    torch.testing.assert_close(due, torch.tensor([0.0, 0.4], dtype=torch.float64))


def test_stored_runs_relate_to_the_network_that_others_train() -> None:
    for table in CONTINUAL.tables:
        if usual_hidden(table, quick=False) is not None:
            macs = [run["macs"] for runs in rows_of(CONTINUAL, table.name).values() for run in runs]
            assert len({one["dense"] for one in macs}) <= 1
            assert all(one["relative"] == one["executed"] / one["dense"] for one in macs)


def test_a_grid_chooses_where_it_is_stored_whole_and_says_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(CONTINUAL.table("tuning-learners"), seeds=(1000,))
    grid = {"naive": grids.points((1e-5, 1e-4, 1e-3)), "si": grids.points((1e-3, 3e-3), (1.0, 10.0, 100.0))}
    reached = {"naive, lr 1e-05": 0.5, "naive, lr 0.0001": 0.7, "naive, lr 0.001": 0.6, "si 1": 0.8, "si 10": 0.9}
    runs = {(m, 1000): {"hash": Job(table, m, 1000).hash, "quality": {"acc": acc}} for m, acc in reached.items()}
    monkeypatch.setattr(grids, "stored_runs", lambda name: runs)
    assert grids.chosen(table, grid) == {"naive": (None, 1e-4)}, "that of SI is not whole"
    assert grids.settings_by(table, grid) == {"naive": {"lr": 1e-4}}
    assert not grids.at_edge((None, 1e-4), grid["naive"])
    assert grids.at_edge((None, 1e-3), grid["naive"])
    assert grids.at_edge((10.0, 1e-3), grid["si"]), "inside by strength, at the edge by rate"
    runs["naive, lr 0.001", 1000]["quality"]["acc"] = 0.7015
    assert grids.chosen(table, grid) == {"naive": (None, 1e-4)}, "as good but for chance, and inside"
    runs["naive, lr 0.001", 1000]["quality"]["acc"] = 0.71
    assert grids.chosen(table, grid) == {"naive": (None, 1e-3)}
    runs["naive, lr 0.001", 1000]["hash"] = "stale"
    assert grids.chosen(table, grid) == {}


def test_no_stored_choice_lies_at_an_edge() -> None:
    for table, tried in TUNED.values():
        for row, point in grids.chosen(table, tried).items():
            assert not grids.at_edge(point, tried[row]), f"{table.name}: try more values of {row} beyond {point}"


def test_replay_at_equal_bytes_keeps_no_more_than_a_readout() -> None:
    rows = replay_of(BYTES["er, 2 MB"], 784)["learner"]["rows"]
    learner = Replay(torch.nn.Linear(784, 10), rows=rows)
    x = torch.randint(256, (rows, 784), dtype=torch.uint8).float() / 255
    learner.loss(x, torch.arange(rows) % 10)
    assert BYTES["er, 2 MB"] - 785 < learner.bytes <= BYTES["er, 2 MB"]


def test_gates_close_units_of_their_own_methods_and_recycling_opens_them(digits: Splits) -> None:
    side = Side(["dense", "set + recycling + gates"], (64, 20, 10), 1e-2, [0, 1], CPU)
    x, y = (torch.stack([part[:32]] * 2) for part in (digits.train.values, digits.train.y))
    side.stack.gates[2][:, :5] = -100.0  # closed for everything
    hidden: list[Tensor] = []
    side.forward(x.repeat(2, 1, 1), hidden, [])
    assert bool((hidden[0][2:, :, :5] == 0).all())
    assert bool((hidden[0][:2, :, :5] != 0).any())
    side.step(x, y)
    side.between()
    assert bool((side.stack.gates[2][2:, :5] == 1.0).all())
    assert bool((side.stack.gates[2][:2, :5] < -50.0).all())


def test_methods_of_a_seed_learn_the_same_rows_and_seeds_do_not_meet(digits: Splits) -> None:
    both = Side(["dense", "static"], (64, 20, 10), 1e-2, [3, 4], CPU)
    alone = Side(["dense", "static"], (64, 20, 10), 1e-2, [4], CPU)
    alone.stack.masks[0] = torch.ones_like(alone.stack.weights[0], dtype=torch.bool)
    x, y = digits.train.values[:64].view(2, 32, 64), digits.train.y[:64].view(2, 32)
    for _ in range(3):
        both.step(x, y)
        alone.step(x[1:], y[1:])
    torch.testing.assert_close(both.stack.weights[0][1], alone.stack.weights[0][0])


def test_pulls_and_noise_are_those_of_their_own_methods(digits: Splits) -> None:
    side = Side(["dense", "l2 init", "l2", "shrink and perturb"], (64, 20, 10), 1e-2, [0, 1], CPU)
    x, y = (torch.stack([part[:32]] * 2) for part in (digits.train.values, digits.train.y))
    side.step(x, y)
    dense, init, l2, shaken = side.stack.weights[0].split(2)
    assert torch.equal(dense, init), "at first there is no way back to where it began"
    assert not torch.equal(dense, l2)
    assert not torch.equal(dense, shaken)
    side.step(x, y)
    dense, init, *_ = side.stack.weights[0].split(2)
    assert not torch.equal(dense, init)


def test_an_interrupted_run_of_plasticity_ends_as_an_uninterrupted_one(
    digits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quick("e5", "side by side", tmp_path / "whole", tasks=4, every=5, saved=0.0)
    job = quick("e5", "side by side", tmp_path / "cut", tasks=4, every=5, saved=0.0)
    write = plasticity.Done.write

    def write_and_stop(done: plasticity.Done, path: Path, side: Side) -> None:
        write(done, path, side)
        if done.task == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(plasticity.Done, "write", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        job.table.train(job, digits)
    monkeypatch.undo()
    found = [one.table.train(one, digits)["quality"] for one in (whole, job)]
    assert found[0] == found[1]


def test_networks_that_are_new_in_every_task_begin_adam_anew(digits: Splits) -> None:
    side = Side(["fresh"], (64, 20, 10), 1e-2, [0], CPU)
    side.step(digits.train.values[None, :32], digits.train.y[None, :32])
    side.new_task(1)
    assert all(float(step) == 0.0 for step in side.stack.steps)
    with pytest.raises(ValueError, match="on its own"):
        Side(["fresh", "dense"], (64, 20, 10), 1e-2, [0], CPU)


def test_orders_of_classes_differ_by_seed_and_are_those_of_all_methods(digits: Splits) -> None:
    asked = CONTINUAL.table("e8").models
    for seed in (0, 1):
        streams = [stream_of(digits, dict(asked[model]), seed) for model in ("readout 1000", "er 200", "joint")]
        assert len({tuple(task.name for task in stream) for stream in streams}) == 1
    assert class_order(digits, 0) != class_order(digits, 1)


def test_changes_of_images_end_in_plain_rows() -> None:
    images = [Arrays(torch.full((n, 3, 2, 2), 255, dtype=torch.uint8), torch.arange(n) % 2, lambda b: b.float() / 255)
              for n in (6, 2, 2)]  # fmt: skip
    splits = Splits("images", images[0], images[1], images[2], 2, 0.0, 1.0).flat()
    for change in CONTINUAL.table("e9-cifar10").changes:
        splits = change.apply(splits)
    assert splits.train.values.shape == (8, 12), "training and validation rows"
    assert torch.equal(splits.test.values, torch.full((2, 12), 2.0))


def test_learned_features_are_those_of_the_first_task(digits: Splits) -> None:
    stream = stream_of(digits, {"stream": "split", "shuffled": True}, 0)
    first = replace(stream, tasks=stream.tasks[:1])
    drawn = classes.random_features(64, 30, 0)
    of_all, of_first = (classes.learned_features(one, *drawn, 0) for one in (stream, first))
    assert torch.equal(of_all[0], of_first[0])
    assert not torch.equal(of_all[0], drawn[0])


def test_filters_answer_in_a_grid() -> None:
    features, size, macs = classes.random_filters(64, 100, 0, 3)
    rows = torch.rand(5, 64)
    assert features(rows).shape == (5, size)
    assert size == 96
    assert macs == 6 * 3 * 3 * 6 * 6, "six filters of nine pixels, at 6 x 6 places"


def test_cells_of_later_types_change_nothing_of_the_features_of_the_first() -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(1.0, (400, 3000)).astype(np.float32)
    y = torch.arange(400) % 8
    names = tuple("abcdefgh")
    whole = cells.prepared(csr_matrix(np.log1p(counts)), y, names, seed=0)
    first = class_order(whole, 0)[:2]
    later = ~torch.isin(y, torch.tensor(first)).numpy()
    counts[later] = draw.poisson(5.0, (int(later.sum()), 3000))
    other = cells.prepared(csr_matrix(np.log1p(counts)), y, names, seed=0)
    at = torch.isin(whole.train.y, torch.tensor(first))
    assert torch.equal(whole.train.values[at], other.train.values[at]), "genes, means and deviations are the same"
    assert not torch.equal(whole.train.values, other.train.values)


def test_settings_of_cells_are_chosen_by_validation_cells_of_the_split(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = torch.arange(400) % 8
    counts = draw.poisson(1.0 + 0.5 * (np.arange(3000) % 8 == y.numpy()[:, None]), (400, 3000)).astype(np.float32)
    whole = cells.prepared(csr_matrix(np.log1p(counts)), y, tuple("abcdefgh"), seed=0)
    assert whole.inner is not None
    assert len(whole.inner.train) + len(whole.inner.test) == len(whole.train)
    table = replace(CONTINUAL.table("e10"), models={"readout": {"method": "readout", "stream": "split", "hidden": [8],
                    "candidates": [{"decay": 1e-6}, {"decay": 1.0}, {"method": "nearest mean"}]}})  # fmt: skip
    job = Job(table, "readout", 0, work=tmp_path, device="cpu")
    found = job.table.train(job, whole)
    assert len(found["tried"]) == 3
    assert found["chosen"] == job.settings["candidates"][found["tried"].index(max(found["tried"]))]
    changed = replace(whole, test=replace(whole.test, y=whole.test.y.flip(0)))
    assert job.table.train(job, changed)["tried"] == found["tried"], "test cells have no say"
    with pytest.raises(ValueError, match="validation cells"):
        job.table.train(job, load_dataset("digits").flat())


def test_cells_that_choose_are_not_those_that_test() -> None:
    x, y = csr_matrix(np.random.default_rng(0).random((60, 10), np.float32)), torch.arange(60)  # a label names its cell
    two = Laboratories(("a", "b"), (x, x), (y, y), np.ones(10, bool))
    whole, inner = two.stream(0)[0], replace(two, choosing=True).stream(0)[0]
    parts = [set(part.y.tolist()) for part in (inner.train, inner.test, whole.test)]
    assert [len(part) for part in parts] == [36, 12, 12]
    assert len(set.union(*parts)) == 60


def test_genes_are_those_of_the_first_laboratory() -> None:
    draw = np.random.default_rng(0)
    cells_of = [csr_matrix(draw.poisson(1.0, (60, 2500)).astype(np.float32)) for _ in range(3)]
    y, shared = torch.arange(60) % 6, np.arange(2500) < 400
    firsts = []
    for second in cells_of[1:]:
        two = Laboratories(("a", "b"), (cells_of[0], second), (y, y), shared)
        firsts.append(two.stream(0).tasks[0].train.values)
        assert replace(two, only_shared=True).stream(0).features == 400
    assert torch.equal(*firsts)


def test_the_page_says_what_runs_say(tmp_path: Path, digits: Splits) -> None:
    experiment = replace(CONTINUAL, root=tmp_path, quick=True)
    data = {"name": "mnist", "train": 1, "valid": 1, "test": 1, "features": 64, "classes": 10}
    for table, model in (("e1", "naive"), ("e5", "side by side"), ("e7", "keep"), ("e0-permuted-5", "dense, short"),
                         ("e0-permuted-5", "gate, short"), ("e11", "jumping, gates 0.1, every 10"),
                         ("e11-consolidation", "jumping, every 30, kept after 1"), ("e1", "keep"), ("e1", "xdg"),
                         ("e10-shared-genes", "naive")):  # fmt: skip
        job = replace(next(j for j in experiment.jobs([experiment.table(table)]) if j.model == model), device="cpu")
        rows = as_cells(digits) if table.startswith("e10") else digits
        write_finished(job, {"data": data, "created": "now"}, job.table.train(job, rows))
        collect(experiment.results, [job])
    found = pages(experiment)
    sections = found["docs/continual-results.md"]
    assert not isinstance(sections, str)
    text = "".join(sections.values())
    for part in ("E1: Ten permutations", "naive", "set + recycling", "by age", "forgets more than dense", "every 10",
                 "kept after 1", "balanced, PBMC 68k"):  # fmt: skip
        assert part in text
    usual = 64 * 32 + 32 * 32 + 32 * 10
    for model in ("naive", "keep", "xdg"):
        run = rows_of(experiment, "e1")[model][0]
        assert run["macs"]["dense"] == usual, "one network for all methods"
        assert run["macs"]["relative"] == run["macs"]["executed"] / usual
    summary = found["docs/continual.md"]
    assert not isinstance(summary, str)
    assert "with room for 2" in summary["summary"]
    assert all(str(found[f"docs/figures/continual-{name}.svg"]).startswith("<svg") for name in ("age", "capacity"))
    named = [name for names in page.SECTIONS.values() for name in names]
    assert sorted(named) == sorted(table.name for table in CONTINUAL.tables), "every table has a place on the page"
    assert all(title(name) for name in named)
