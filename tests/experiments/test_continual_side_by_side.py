"""Networks that learn side by side: one model that forgets nothing, and the steps of every network on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from experiments.continual import keeping, noticing
from experiments.continual.settings import QUICK_KEEP
from experiments.continual.stack import Stack
from torch import Tensor
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual import Contexts, Keeper, follow
from dynamicgate.gating.context import ContextNet
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.sparsity.patterns import parse_pattern, prune_and_regrow
from tests.experiments.continual_runs import quick

CPU = torch.device("cpu")


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
