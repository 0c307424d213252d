"""`follow`: one loop for every learner, and the same result after a kill at any task and step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.continual import (
    EWC,
    SI,
    Contexts,
    Keeper,
    Replay,
    Stream,
    follow,
    joined,
    permuted,
    split,
)
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


def keeping(model: nn.Module) -> dict[str, Any]:
    keeper = Keeper(model)
    sparsifier = RigL(model, 0.5, every=2, initial_density=1.0, keeper=keeper)
    return {"contexts": Contexts(model, keeper, sparsifier), "sparsifier": sparsifier}


def units_kept(model: nn.Module) -> dict[str, Any]:
    keeper = Keeper(model)
    return {"keeper": keeper}


def consolidating(model: nn.Module) -> dict[str, Any]:
    keeper = Consolidation(model, after=2)
    return {"keeper": keeper, "sparsifier": RigL(model, 0.5, every=2, keeper=keeper)}


SETUPS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {}


def setup(name: str, make: Callable[[], nn.Module], parts: Callable[[nn.Module], dict[str, Any]]) -> None:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        model = make()
        return model, parts(model)

    SETUPS[name] = build


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
setup("consolidation", plain, lambda m: consolidating(m))
setup("continual backprop", plain, lambda m: {"recycler": Recycler(m, kind="useless", rate=0.05, maturity=2)})


@pytest.mark.parametrize("name", SETUPS)
def test_a_killed_stream_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"batch": 24, "epochs": 2, "lr": 1e-2, "show": False, "weight_decay": 0.1, "device": "cpu"}
    model, parts = SETUPS[name]()
    whole = follow(model, stream(), **parts, **asked)
    again, parts = SETUPS[name]()
    killed = 0
    while killed < 20:  # after every few steps, in another place each time
        try:
            found = follow(
                again, _killing(stream(), again, 4 + killed), **parts, **asked, out=tmp_path, checkpoint_seconds=0.0
            )
            break
        except _KilledError:
            killed += 1
            again, parts = SETUPS[name]()
            torch.manual_seed(killed)
    assert killed >= 2
    assert torch.equal(whole.matrix.nan_to_num(-1.0), found.matrix.nan_to_num(-1.0))
    expected = model.state_dict()
    assert all(torch.equal(expected[key], value) for key, value in again.state_dict().items())


class _KilledError(RuntimeError):
    pass


def _killing(given: Stream, model: nn.Module, calls: int) -> Stream:
    """The model dies after so many forward passes in training: a kill at any place of a step."""
    left = [calls]

    def count(module: nn.Module, _args: Any) -> None:
        if module.training:
            left[0] -= 1
            if left[0] < 0:
                raise _KilledError

    model.register_forward_pre_hook(count)
    return given


def test_keeping_forgets_nothing_and_plain_training_does() -> None:
    asked: dict[str, Any] = {"batch": 24, "epochs": 8, "lr": 2e-2, "show": False, "device": "cpu"}
    model, parts = SETUPS["keep"]()
    kept = follow(model, stream(4), **parts, **asked)
    assert kept.forgetting == 0.0
    assert kept.acc > 0.85
    model, _ = SETUPS["plain"]()
    assert follow(model, stream(4), **asked).forgetting > 0.1


@pytest.mark.parametrize("known", ["ids", "boundaries", "nothing"])
def test_contexts_are_found_whatever_is_known(known: Any) -> None:
    model, parts = SETUPS["keep"]()
    given = stream(4, known=known)
    horizon = 40 if known == "nothing" else None
    found = follow(model, given, **parts, batch=24, epochs=8, lr=2e-2, horizon=horizon, show=False, device="cpu")
    assert parts["contexts"].opened == 4
    assert found.acc > 0.85
    assert found.forgetting == 0.0


def test_the_log_says_how_much_is_free(tmp_path: Path) -> None:
    model, parts = SETUPS["keep"]()
    asked: dict[str, Any] = {"test_every": 2, "test_later": True, "online": True, "show": False, "device": "cpu"}
    follow(model, stream(), **parts, batch=24, out=tmp_path, **asked)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    tested = [row for row in rows if "tested" in row]
    assert [row["contexts"] for row in tested] == [1, 2, 3]
    assert [row["free"]["layers.1"] for row in tested] == [0.75, 0.5, 0.25]
    stored = json.loads((tmp_path / "stream.json").read_text())
    assert len(stored["online"]) == 3
    assert stored["lowest"][0] is not None
    assert all(value is not None for row in stored["matrix"] for value in row)
    with pytest.raises(ValueError, match="batch"):
        follow(model, stream(), **parts, batch=12, out=tmp_path, **asked)
    with pytest.raises(ValueError, match="data"):
        follow(model, stream(seed=1), **parts, batch=24, out=tmp_path, **asked)


def test_joint_training_is_one_task_with_all_rows() -> None:
    given = stream(3)
    together = joined(given)
    assert len(together) == 1
    assert len(together.tasks[0].train) == 360
    index = torch.tensor([0, 125, 250, 119])
    expected = torch.stack(
        [given.tasks[n].train.rows(torch.tensor([r]))[0] for n, r in ((0, 0), (1, 5), (2, 10), (0, 119))]
    )
    assert torch.equal(together.tasks[0].train.rows(index), expected)
    model = plain()
    assert follow(model, together, batch=24, epochs=10, lr=1e-2, show=False, device="cpu").acc > 0.8


def test_the_scenario_task_asks_among_the_classes_of_the_task() -> None:
    model = plain()
    told = follow(model, split(Data(), 2, scenario="task"), batch=24, epochs=4, lr=1e-2, show=False, device="cpu")
    model = plain()
    not_told = follow(model, split(Data(), 2), batch=24, epochs=4, lr=1e-2, show=False, device="cpu")
    assert told.acc > not_told.acc


def test_what_does_not_go_together_is_refused() -> None:
    nothing = stream(known="nothing")
    model, other = contextual(), contextual()
    with pytest.raises(ValueError, match="must be told"):
        follow(model, nothing, learner=EWC(model), clock="constant")
    with pytest.raises(ValueError, match="horizon"):
        follow(model, nothing, contexts=Contexts(model))
    with pytest.raises(ValueError, match="constant"):
        follow(model, nothing)
    with pytest.raises(ValueError, match="another model"):
        follow(model, stream(), keeper=Keeper(other))
    with pytest.raises(ValueError, match="optimizer"):
        follow(model, stream(), optimizer="lion")  # type: ignore[arg-type]
