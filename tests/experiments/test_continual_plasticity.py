"""Networks that must stay able to learn: each method does its own work, and an interrupted run ends as a whole one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from experiments.continual import plasticity
from experiments.continual.side import Side
from torch import Tensor

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.sparsity.unit_utility import choose_useless_
from tests.experiments.continual_runs import quick

CPU = torch.device("cpu")


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
