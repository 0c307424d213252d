"""Methods against forgetting: each does what its formula says, and most of them forget less than plain training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.continual import Stream, Task, labels_shuffled, permuted
from dynamicgate.continual.learners import EWC, SI, Learner, LwF
from dynamicgate.continual.replay import AGEM, DarkReplay, Memory, Replay
from dynamicgate.data import Arrays

ALL: dict[str, Any] = {
    "naive": Learner,
    "ewc": EWC,
    "si": SI,
    "lwf": LwF,
    "er": Replay,
    "der++": DarkReplay,
    "a-gem": AGEM,
}


def blobs(rows: int = 240) -> Task:
    torch.manual_seed(3)
    y = torch.arange(rows) % 4
    x = torch.randn(rows, 12) + 2.5 * torch.randn(4, 12)[y]
    return Task("blobs", Arrays(x[:160], y[:160]), Arrays(x[160:], y[160:]), (0, 1, 2, 3))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def learn(learner: Learner, task: Task, epochs: int = 12) -> None:
    optimizer = torch.optim.SGD(learner.model.parameters(), lr=0.05)
    learner.begin(task)
    for _ in range(epochs):
        for x, y in task.train.batches(16):
            optimizer.zero_grad()
            learner.loss(x, y).backward()
            learner.after_backward()
            optimizer.step()
            learner.after_step()
    learner.finish(task)


def follow(learner: Learner, stream: Stream, epochs: int = 12) -> list[float]:
    """Accuracy on all tasks at the end."""
    for task in stream:
        learn(learner, task, epochs)
    return [accuracy(learner.model, task) for task in stream]


def accuracy(model: nn.Module, task: Task) -> float:
    with torch.no_grad():
        return float((model(task.test.values).argmax(1) == task.test.y).float().mean())


@pytest.mark.parametrize("name", ALL)
def test_the_first_task_is_learned_as_plain_training_learns_it(name: str) -> None:
    """Before there is a past, nothing is different, except that replay sees its own rows again."""
    task = blobs()
    learner, plain = ALL[name](network()), Learner(network())
    learn(learner, task)
    learn(plain, task)
    if name in ("er", "der++"):
        assert accuracy(learner.model, task) >= accuracy(plain.model, task) - 0.05
    else:
        for ours, theirs in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["ewc", "si", "er", "der++", "a-gem"])
def test_it_forgets_less_than_plain_training(name: str) -> None:
    stream = permuted(blobs(), 4)
    strength = {"ewc": {"strength": 30.0}, "si": {"strength": 1.0}}.get(name, {})
    kept = follow(ALL[name](network(), **strength), stream)
    lost = follow(Learner(network()), stream)
    assert sum(kept[:-1]) > sum(lost[:-1]) + 0.05


def test_the_penalty_of_ewc_is_half_the_importance_times_the_squared_distance() -> None:
    learner = EWC(network(), strength=3.0)
    learn(learner, blobs(), epochs=1)
    assert float(learner.penalty().detach()) == 0.0
    moved = {}
    with torch.no_grad():
        for name, p in learner.model.named_parameters():
            moved[name] = torch.randn_like(p)
            p.add_(moved[name])
    expected = sum(1.5 * float((learner.importance[name] * moved[name].square()).sum()) for name in moved)
    assert float(learner.penalty().detach()) == pytest.approx(expected, rel=1e-4)


def test_importance_is_the_mean_squared_gradient_of_drawn_labels() -> None:
    """A linear model of two classes: the expectation over labels is known."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2, bias=False)
    x = torch.randn(900, 3)
    task = Task("t", Arrays(x, torch.arange(900) % 2), Arrays(x, torch.arange(900) % 2), (0, 1))
    learner = EWC(model)
    learner.finish(task)
    p = model(x).softmax(1)[:, 1].detach()
    expected = ((p * (1 - p))[:, None] * x.square()).mean(0)  # E over labels of (p - y)^2 x^2
    torch.testing.assert_close(learner.importance["weight"][0], expected, rtol=0.15, atol=0.02)


def test_the_paths_of_si_add_up_to_the_fall_of_the_loss() -> None:
    """With small steps on one batch, the sum over weights of what each gained is what the loss has fallen by."""
    model = network()
    learner, task = SI(model), blobs()
    x, y = task.train.values, task.train.y
    before = float(F.cross_entropy(model(x), y).detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(50):
        optimizer.zero_grad()
        learner.loss(x, y).backward()
        optimizer.step()
        learner.after_step()
    fallen = before - float(F.cross_entropy(model(x), y).detach())
    assert sum(float(path.sum()) for path in learner._path.values()) == pytest.approx(fallen, rel=0.02)


def test_lwf_holds_a_model_to_what_it_said_before_the_task() -> None:
    learner = LwF(network(), strength=1.0)
    stream = labels_shuffled(blobs(), 2)
    learn(learner, stream[0])
    learner.begin(stream[1])
    x, y = stream[1].train.values, stream[1].train.y
    assert float(learner.loss(x, y).detach()) == pytest.approx(
        float(F.cross_entropy(learner.model(x), y).detach()), abs=1e-5
    )
    with torch.no_grad():
        learner.model[2].bias.add_(torch.tensor([3.0, 0.0, 0.0, 0.0]))
    assert float(learner.loss(x, y).detach()) > float(F.cross_entropy(learner.model(x), y).detach()) + 0.1


def test_a_memory_is_a_fair_sample_of_all_rows() -> None:
    counts = torch.zeros(60)
    for seed in range(400):
        memory = Memory(6, seed=seed)
        for part in torch.arange(60.0).split(7):
            memory.add(part[:, None], part.long())
        assert len(memory) == 6
        counts[memory.columns[1][torch.arange(6)]] += 1
    assert counts.sum() == 2400
    assert counts.min() > 15, "every row is expected 40 times"
    assert counts.max() < 70


def test_images_and_labels_are_kept_in_a_byte_each_and_come_back_to_the_bit() -> None:
    pixels = torch.randint(256, (50, 30), dtype=torch.uint8)
    x, y = (pixels.float() / 255 - 0.1307) / 0.3081, torch.arange(50) % 10
    memory = Memory(50)
    for part in range(0, 50, 7):
        memory.add(x[part : part + 7], y[part : part + 7])
    every = torch.arange(50)
    assert torch.equal(memory.columns[0][every], x)
    assert torch.equal(memory.columns[1][every], y)
    kept = [sum(t.numel() * t.element_size() for t in c.state_dict().values()) for c in memory.columns]
    assert kept[0] == 50 * 30 + 4 * len(x.unique())
    assert kept[1] == 50 + 8 * 10


def test_values_that_are_no_bytes_are_kept_as_they_are() -> None:
    memory, x = Memory(8), torch.randn(8, 100)
    x[0, :4] = torch.tensor([0.0, -0.0, float("nan"), float("inf")])
    memory.add(x[:1], x[:1].bfloat16())  # few values at first: bytes
    assert memory.columns[0].rows_R.dtype == torch.uint8
    memory.add(x[1:], x[1:].bfloat16())
    assert memory.columns[0].rows_R.dtype == torch.float32
    every = torch.arange(8)
    assert torch.equal(memory.columns[0][every].view(torch.int32), x.view(torch.int32))
    assert torch.equal(memory.columns[1][every].view(torch.int16), x.bfloat16().view(torch.int16))


def test_replay_counts_what_it_stores_and_goes_on_with_it() -> None:
    x, y = torch.randint(256, (40, 8)).float() / 255, torch.arange(40) % 4
    learner, other = (Replay(nn.Linear(8, 4), rows=30) for _ in range(2))
    learner.loss(x, y)
    state = learner.state_dict()
    table = len(learner.memory.columns[0][torch.arange(30)].unique())
    generator = state["memory.draw"].numel() + 8
    assert learner.bytes == 30 * (8 + 1) + 4 * table + 8 * 4 + generator
    other.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(learner.memory.draw(20), other.memory.draw(20), strict=True))


def test_a_gem_takes_out_what_would_hurt_and_nothing_else() -> None:
    learner = AGEM(network(), rows=50)
    stream = permuted(blobs(), 2)
    learn(learner, stream[0], epochs=4)
    x, y = stream[1].train.values[:16], stream[1].train.y[:16]
    hurt = 0
    for _ in range(20):
        learner.model.zero_grad()
        learner.loss(x, y).backward()
        plain = [p.grad.clone() for p in learner.model.parameters() if p.grad is not None]
        old = gradient(learner.model, *learner._judge)  # type: ignore[misc]
        before = sum(float((a * b).sum()) for a, b in zip(plain, old, strict=True))
        learner.after_backward()
        now = [p.grad for p in learner.model.parameters() if p.grad is not None]
        product = sum(float((a * b).sum()) for a, b in zip(now, old, strict=True))
        if before < 0:
            hurt += 1
            assert product == pytest.approx(0.0, abs=1e-3 * abs(before) + 1e-6)
        else:
            assert all(torch.equal(a, b) for a, b in zip(plain, now, strict=True))
        torch.optim.SGD(learner.model.parameters(), lr=0.1).step()
    assert hurt > 0


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


@pytest.mark.parametrize("name", ["ewc", "si", "er", "der++"])
def test_the_state_goes_on_between_tasks(name: str) -> None:
    stream = permuted(blobs(), 2)
    whole = ALL[name](network())
    learn(whole, stream[0], epochs=2)
    model = copy.deepcopy(whole.model)
    loaded = ALL[name](model)
    loaded.load_state_dict({key: tensor.clone() for key, tensor in whole.state_dict().items()})
    loaded.tasks = whole.tasks
    assert loaded.bytes == whole.bytes > 0
    for learner in (whole, loaded):
        learn(learner, stream[1], epochs=2)
    for ours, theirs in zip(whole.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match="expected the state of"):
        loaded.load_state_dict({"other": torch.zeros(1)})


@pytest.mark.parametrize("kind", [EWC, SI])
def test_what_is_kept_moves_with_the_model(kind: type[EWC]) -> None:
    learner = kind(nn.Linear(3, 2))
    learner.to(torch.device("meta"))
    moved = [*learner.state_dict().values(), *learner.task_state().values()]
    assert {tensor.device.type for tensor in moved} == {"meta"}
