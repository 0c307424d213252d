"""Small streams, models, optimizers and kills for the tests of `follow`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.continual import EWC, SI, Contexts, Keeper, Replay, Retention, Stream, follow, permuted
from dynamicgate.continual.learners import LwF
from dynamicgate.continual.plasticity import L2, L2Init, ShrinkAndPerturb
from dynamicgate.continual.replay import AGEM, DarkReplay
from dynamicgate.data import Arrays
from dynamicgate.sparsity import SET, Consolidation, Recycler, RigL

FEATURES, CLASSES = 12, 4


class Data:
    def __init__(self, rows: int = 120, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        centres = 2.0 * torch.randn(CLASSES, FEATURES, generator=draw) + 3.0 * torch.randn(FEATURES, generator=draw)
        y = torch.arange(rows) % CLASSES
        self.train, self.test = (Arrays(centres[y] + torch.randn(rows, FEATURES, generator=draw), y) for _ in range(2))


def stream(tasks: int = 3, **options: Any) -> Stream:
    return permuted(Data(), tasks, **options)


def plain() -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP((FEATURES, 32, CLASSES))


def contextual(contexts: int = 4) -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP((FEATURES, 32, CLASSES), dg.GateConfig(kind="context", block=8, contexts=contexts))


def gated() -> dg.nn.GatedMLP:
    """Gates that learn, with units that the first tasks leave free."""
    torch.manual_seed(0)
    return dg.nn.GatedMLP((FEATURES, 64, CLASSES), dg.GateConfig(block=4, open=0.3))


def steering() -> dg.Budget:
    """It moves gates in every way it has: nudges, tau and theta."""
    tau, theta = dg.schedule.linear(1.0, 0.5), dg.schedule.linear(0.5, 0.6)
    return dg.Budget(target=0.5, tau=tau, theta=theta, warmup=0.0, anneal=0.3, steer=1.0)


def units_kept(model: nn.Module) -> dict[str, Any]:
    return {"keeper": Keeper(model)}


def sparse_units_kept(model: nn.Module) -> dict[str, Any]:
    keeper = Keeper(model)
    return {"keeper": keeper, "sparsifier": RigL(model, 0.5, every=2, initial_density=1.0, keeper=keeper)}


def keeping(model: nn.Module, **options: Any) -> dict[str, Any]:
    """With contexts; options are theirs."""
    kept = sparse_units_kept(model)
    contexts = Contexts(model, kept["keeper"], kept["sparsifier"], **options)
    return {"contexts": contexts, "sparsifier": kept["sparsifier"]}


def consolidating(model: nn.Module) -> dict[str, Any]:
    keeper = Consolidation(model, after=2)
    return {"keeper": keeper, "sparsifier": RigL(model, 0.5, every=2, keeper=keeper)}


Build = Callable[[], tuple[nn.Module, dict[str, Any]]]
SETUPS: dict[str, Build] = {}


def of(make: Callable[[], nn.Module], parts: Callable[[nn.Module], dict[str, Any]]) -> Build:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        model = make()
        return model, parts(model)

    return build


def setup(name: str, make: Callable[[], nn.Module], parts: Callable[[nn.Module], dict[str, Any]]) -> None:
    SETUPS[name] = of(make, parts)


setup("plain", plain, lambda m: {})
setup("ewc", plain, lambda m: {"learner": EWC(m)})
setup("si", plain, lambda m: {"learner": SI(m)})
setup("lwf", plain, lambda m: {"learner": LwF(m)})
setup("replay", plain, lambda m: {"learner": Replay(m, rows=20)})
setup("dark replay", plain, lambda m: {"learner": DarkReplay(m, rows=20)})
setup("a-gem", plain, lambda m: {"learner": AGEM(m, rows=20)})
setup("l2", plain, lambda m: {"learner": L2(m)})
setup("l2 init", plain, lambda m: {"learner": L2Init(m)})
setup("shrink and perturb", plain, lambda m: {"learner": ShrinkAndPerturb(m)})
setup("keep", contextual, keeping)
setup("xdg", contextual, lambda m: {"contexts": Contexts(m, share=2, blocks="random")})
setup("set and recycling", plain, lambda m: {"sparsifier": SET(m, 0.5, every=2, recycler=Recycler(m, every=3))})
setup("consolidation", plain, consolidating)
setup("continual backprop", plain, lambda m: {"recycler": Recycler(m, kind="useless", rate=0.05, maturity=2)})

setup("keeper of learned gates", gated, units_kept)
setup("keeper and budget", gated, lambda m: {**units_kept(m), "budget": steering()})
setup("keeper, budget and sparsifier", gated, lambda m: {**sparse_units_kept(m), "budget": steering()})

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, weight_decay=0.05),
    "sgd, momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.05),
    "sgd, nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.05),
    "adam": partial(torch.optim.Adam, lr=1e-2, weight_decay=0.05),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.5),
    "rmsprop": partial(torch.optim.RMSprop, lr=5e-3, weight_decay=0.05),
    "rmsprop, momentum": partial(torch.optim.RMSprop, lr=5e-3, momentum=0.9, centered=True, weight_decay=0.05),
}


class Way:
    """A way to keep what was learned along a stream, with the arguments of `follow` that it needs."""

    def __init__(
        self,
        make: Build,
        *,
        known: str = "boundaries",
        keeps: int = 99,
        **asked: Any,
    ) -> None:
        """keeps: of how many tasks at a time the answers are kept."""
        self.make, self.known, self.keeps = make, known, keeps
        self.asked: dict[str, Any] = {"batch": 24, "epochs": 2, "show": False, "device": "cpu", **asked}

    def follow(self, tasks: int, optimizer: Any) -> nn.Module:
        """The model at the end of so many tasks."""
        model, parts = self.make()
        follow(model, stream(tasks, known=self.known), **parts, optimizer=optimizer, **self.asked)
        return model


released = partial(keeping, share=1, release=True)
WAYS = {
    "contexts": Way(SETUPS["keep"]),
    "contexts, nothing known": Way(SETUPS["keep"], known="nothing", horizon=8),
    "contexts, released": Way(of(lambda: contextual(2), released), keeps=2),
    "contexts, reused and released": Way(of(lambda: contextual(3), partial(released, reuse=1)), keeps=2),
    "keeper and budget": Way(SETUPS["keeper and budget"]),
    "keeper, budget and sparsifier": Way(SETUPS["keeper, budget and sparsifier"]),
}
"""Each keeps old answers to the bit."""


@torch.no_grad()
def answers(model: nn.Module, task: int) -> Tensor:
    """The scores of the training rows of a task."""
    data = stream(task + 1).tasks[task].train
    found: Tensor = model.eval()(data.rows(torch.arange(len(data))))
    return found


class KilledError(RuntimeError):
    """What stands for a kill."""


def killed_and_resumed(
    build: Build, given: Stream, out: Path, first: int = 4, **asked: Any
) -> tuple[nn.Module, Retention, int]:
    """Follow a stream, killed after `first` forward passes in training, then after one more each time: in another place
    of a step and a task. Every start is a new model with other weights and random numbers. Returns also how often that
    was."""
    for killed in range(40):
        model, parts = build()
        torch.manual_seed(killed)
        with torch.no_grad():
            for parameter in model.parameters() if killed else ():
                parameter.add_(0.1)  # whatever it was before: the file says what it is
        left = [first + killed]

        def count(module: nn.Module, _args: Any, left: list[int] = left) -> None:
            if module.training:
                left[0] -= 1
                if left[0] < 0:
                    raise KilledError

        model.register_forward_pre_hook(count)
        try:
            found = follow(model, given, **parts, **asked, out=out, checkpoint_seconds=0.0)
            return model, found, killed
        except KilledError:
            continue
    raise AssertionError("it never comes to an end")


def assert_same(model: nn.Module, again: nn.Module, whole: Retention, found: Retention) -> None:
    """To the bit: weights and buffers, and everything that was measured."""
    expected, got = model.state_dict(), again.state_dict()
    assert expected.keys() == got.keys()
    assert [key for key in expected if not torch.equal(expected[key], got[key])] == []
    assert whole.to_dict() == found.to_dict()
