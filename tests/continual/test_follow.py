"""`follow`: one loop for every learner, and the same result after a kill at any task and step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamicgate.continual import EWC, Contexts, Keeper, Retention, follow, joined, split
from dynamicgate.continual.plasticity import L2
from dynamicgate.continual.replay import AGEM
from dynamicgate.sparsity import SET, Recycler
from tests.continual.setups import (
    OPTIMIZERS,
    SETUPS,
    WAYS,
    Data,
    assert_same,
    consolidating,
    contextual,
    gated,
    killed_and_resumed,
    plain,
    steering,
    stream,
)


@pytest.mark.parametrize("name", SETUPS)
def test_a_killed_stream_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"batch": 24, "epochs": 2, "lr": 1e-2, "show": False, "weight_decay": 0.1, "device": "cpu"}
    model, parts = SETUPS[name]()
    whole = follow(model, stream(), **parts, **asked)
    again, found, killed = killed_and_resumed(SETUPS[name], stream(), tmp_path, **asked)
    assert killed >= 2
    assert_same(model, again, whole, found)


# each way with three optimizers, each optimizer with two or three ways: a checkpoint holds the state of any
@pytest.mark.parametrize(
    ("way", "optimizer"),
    [(way, [*OPTIMIZERS][(i + shift) % len(OPTIMIZERS)]) for i, way in enumerate(WAYS) for shift in (0, 2, 4)],
)
def test_a_killed_stream_goes_on_to_the_same_bits_with_every_optimizer(
    way: str, optimizer: str, tmp_path: Path
) -> None:
    asked = {**WAYS[way].asked, "optimizer": OPTIMIZERS[optimizer], "test_every": 3, "online": True}
    given = stream(4 if WAYS[way].keeps == 2 else 3, known=WAYS[way].known)
    model, parts = WAYS[way].make()
    whole = follow(model, given, **parts, **asked)
    again, found, killed = killed_and_resumed(WAYS[way].make, given, tmp_path, first=7, **asked)
    assert killed >= 2
    assert_same(model, again, whole, found)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_killed_stream_goes_on_where_nothing_is_known_and_a_budget_steers(optimizer: str, tmp_path: Path) -> None:
    """Context gates have no budget; a `Consolidation` needs no contexts."""

    def build() -> tuple[nn.Module, dict[str, Any]]:
        model = gated()
        return model, {**consolidating(model), "budget": steering()}

    asked: dict[str, Any] = {"batch": 24, "epochs": 2, "clock": "constant", "horizon": 12, "show": False}
    asked |= {"device": "cpu", "optimizer": OPTIMIZERS[optimizer]}
    given = stream(3, known="nothing")
    model, parts = build()
    whole = follow(model, given, **parts, **asked)
    assert parts["budget"].lambda_ != 0.0, "the loop is closed"
    again, found, killed = killed_and_resumed(build, given, tmp_path, first=7, **asked)
    assert killed >= 2
    assert_same(model, again, whole, found)


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
    for learner in (EWC(model), AGEM(model)):
        with pytest.raises(ValueError, match="must be told"):
            follow(model, nothing, learner=learner, clock="constant")
    with pytest.raises(ValueError, match="horizon"):
        follow(model, nothing, contexts=Contexts(model))
    with pytest.raises(ValueError, match="constant"):
        follow(model, nothing)
    with pytest.raises(ValueError, match="another model"):
        follow(model, stream(), keeper=Keeper(other))
    with pytest.raises(ValueError, match="optimizer"):
        follow(model, stream(), optimizer="lion")  # type: ignore[arg-type]


def test_a_run_that_was_asked_for_something_else_is_not_continued(tmp_path: Path) -> None:
    def run(strength: float = 1e-3, density: float = 0.5, rate: float = 1e-3) -> Retention:
        model = plain()
        recycler = Recycler(model, kind="useless", rate=rate)
        sparsifier = SET(model, density, every=None, until=1.0, recycler=recycler)
        return follow(model, stream(), learner=L2(model, strength=strength), sparsifier=sparsifier, batch=24,
                      out=tmp_path, show=False, device="cpu")  # fmt: skip

    first = run()
    assert torch.equal(run().matrix.nan_to_num(), first.matrix.nan_to_num())
    for name, asked in (("learner", {"strength": 1.0}), ("sparsifier", {"density": 0.2}), ("recycler", {"rate": 0.5})):
        with pytest.raises(ValueError, match=f"was made with {name}="):
            run(**asked)
