"""How `follow` measures: one test for each way in which a measured number can say something else than its name.

Mistakes in formulas are in `test_retention.py`.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynamicgate.continual import EWC, Learner, Retention, Stream, asking, follow, in_order, joined, split
from dynamicgate.data import Arrays
from dynamicgate.sparsity import SET, Recycler
from tests.continual.setups import (
    CLASSES,
    FEATURES,
    SETUPS,
    Data,
    assert_same,
    gated,
    killed_and_resumed,
    plain,
    steering,
    stream,
)

ASKED: dict[str, Any] = {"batch": 24, "epochs": 2, "lr": 1e-2, "show": False, "device": "cpu"}


def score_on(model: nn.Module, given: Stream, task: int) -> float:
    data = given.tasks[task].test
    with torch.no_grad():
        return float((model.eval()(data.rows(torch.arange(len(data)))).argmax(1) == data.y).double().mean())


def normalized() -> nn.Sequential:
    """A batch norm whose statistics move, and a dropout that closes nearly everything, both in training mode only."""
    torch.manual_seed(0)
    layers = (nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.8), nn.Linear(32, CLASSES))
    return nn.Sequential(*layers)


# Forward transfer


def test_forward_transfer_is_measured_before_a_task_is_learned_and_against_the_untrained_model() -> None:
    model, given = plain(), stream(3)
    before = [score_on(model, given, j) for j in range(3)]
    found = follow(model, given, **ASKED)
    assert found.untrained is not None
    assert found.untrained.tolist() == pytest.approx(before)
    after_first = plain()
    follow(after_first, stream(1), **ASKED)
    assert float(found.matrix[0, 1]) == pytest.approx(score_on(after_first, given, 1))
    by_hand = [float(found.matrix[j - 1, j]) - before[j] for j in (1, 2)]
    assert found.fwt == pytest.approx(sum(by_hand) / 2)
    assert math.isnan(float(found.matrix[0, 2])), "only the next task is asked about, unless test_later says so"


def test_forward_transfer_depends_on_what_was_learned() -> None:
    """A library had the same number for every method: it never asked the trained model."""
    found = [follow(plain(), stream(3), **{**ASKED, "lr": lr}).fwt for lr in (1e-7, 1e-2)]
    assert found[0] == pytest.approx(0.0, abs=0.01)
    assert abs(found[1]) > 0.01


@pytest.mark.parametrize("later", [False, True])
def test_class_incremental_streams_have_no_forward_transfer(later: bool) -> None:
    found = follow(plain(), split(Data(), 2), test_later=later, **ASKED)
    assert math.isnan(found.fwt)
    assert "FWT –" in repr(found)
    assert found.to_dict()["summary"]["fwt"] is None
    assert math.isnan(Retention.from_dict(found.to_dict()).fwt)
    assert bool(found.matrix[0, 1].isnan()) != later


# How a task is asked about


def test_tests_are_taken_in_evaluation_mode_and_training_goes_on_in_training_mode() -> None:
    modes: list[bool] = []

    class Noting(Learner):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            modes.append(self.model.training and self.model[3].training)
            return super().loss(x, y)

    model, given = normalized(), stream(2)
    found = follow(model, given, learner=Noting(model), test_every=1, **ASKED)
    assert float(found.matrix[1, 0]) == pytest.approx(score_on(model, given, 0))
    assert float(found.matrix[1, 1]) == pytest.approx(score_on(model, given, 1))
    assert len(modes) == 20
    assert all(modes)


@pytest.mark.parametrize("make", [normalized, plain, gated])
def test_measuring_does_not_change_what_is_learned(make: Any) -> None:
    """Statistics of a batch norm, random numbers of a dropout, and everything else."""
    model, watched = make(), make()
    found = follow(model, stream(), **ASKED)
    more = follow(watched, stream(), test_every=1, test_later=True, online=True, references=True, **ASKED)
    expected = model.state_dict()
    assert [key for key, value in watched.state_dict().items() if not torch.equal(value, expected[key])] == []
    assert torch.equal(found.matrix.tril(), more.matrix.tril())


def test_nothing_is_learned_from_test_rows() -> None:
    def noise(part: Arrays) -> Arrays:
        return Arrays(torch.full((7, FEATURES), 1e3), torch.zeros(7, dtype=torch.long))

    given = stream()
    other = replace(given, tasks=tuple(replace(task, test=noise(task.test)) for task in given))
    model, again = plain(), plain()
    follow(model, given, **ASKED)
    follow(again, other, **ASKED)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("known", "told"), [("ids", True), ("boundaries", False), ("nothing", False)])
def test_the_task_of_a_test_row_is_told_only_where_the_stream_tells_it(known: Any, told: bool) -> None:
    """Also within a task, while its context is open and named for training."""
    model, parts = SETUPS["keep"]()
    contexts, names = parts["contexts"], []
    inside = [False]

    def note(net: Any, _args: Any) -> None:
        if inside[0]:
            names.append(net.named)

    before = asking.Questions._scores

    def scores(self: Any, *args: Any) -> Any:
        inside[0] = True
        try:
            return before(self, *args)
        finally:
            inside[0] = False

    contexts.first.register_forward_pre_hook(note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking.Questions, "_scores", scores)
        follow(model, stream(3, known=known), **parts, test_every=2, horizon=8, **ASKED)
    assert len(names) > 10
    assert {name for name in names if name is not None} == ({0, 1, 2} if told else set())


def test_a_task_is_asked_among_all_classes_unless_it_is_told() -> None:
    """A model that answers class 3 to everything knows nothing of classes 0 and 1."""
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.1, 0.0, 0.0, 1.0]))
    device = torch.device("cpu")
    among_all = asking.Questions(model, split(Data(), 2), None, device)
    among_own = asking.Questions(model, split(Data(), 2, scenario="task"), None, device)
    assert [among_all.accuracy(j) for j in (0, 1)] == [0.0, 0.5]
    assert [among_own.accuracy(j) for j in (0, 1)] == [0.5, 0.5]


# Means


def unequal() -> Stream:
    """Tasks of 120 and 40 rows: a mean over rows is another number than a mean over tasks."""
    small = Data(40, seed=5)
    return in_order([Data(120), small], scenario="domain")


def test_accuracy_is_a_mean_over_tasks_and_not_over_rows() -> None:
    model, given = plain(), unequal()
    found = follow(model, given, **ASKED)
    each = [score_on(model, given, j) for j in (0, 1)]
    assert abs(each[0] - each[1]) > 0.05
    assert found.acc == pytest.approx(sum(each) / 2)
    assert found.acc != pytest.approx((120 * each[0] + 40 * each[1]) / 160)


def test_accuracy_on_a_task_is_a_mean_over_rows_and_not_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = plain(), stream(1)
    follow(model, given, **ASKED)
    whole = score_on(model, given, 0)
    monkeypatch.setattr(asking, "TEST_BATCH", 119)  # the last batch has one row
    assert asking.Questions(model, given, None, torch.device("cpu")).accuracy(0) == pytest.approx(whole)


def test_what_was_not_learned_yet_is_part_of_no_mean() -> None:
    lower = torch.tensor([[0.9, 0.0, 0.0], [0.8, 0.7, 0.0], [0.6, 0.5, 0.4]])
    upper = lower + torch.ones(3, 3).triu(1)
    low, up = Retention(lower), Retention(upper)
    for name in ("acc", "learned", "forgetting", "bwt", "learned_tasks"):
        assert getattr(low, name) == getattr(up, name)
    assert low.by_age(1) == up.by_age(1)


# Within tasks


def test_online_accuracy_is_that_before_the_step_on_the_same_rows() -> None:
    model, given = plain(), stream(2)
    data = given.tasks[0].train
    x = data.rows(torch.arange(len(data)))
    before = float((model.eval()(x).argmax(1) == data.y).double().mean())
    found = follow(model, given, **{**ASKED, "batch": 120, "epochs": 1, "lr": 0.1}, online=True)
    assert found.online[0] == pytest.approx(before)
    assert len(found.online) == 2


def test_a_drop_within_a_task_is_seen_and_how_often_it_was_looked_for_is_said() -> None:
    found = follow(plain(), stream(3), test_every=2, clock="constant", **{**ASKED, "lr": 0.1, "epochs": 6})
    assert found.lowest is not None
    for j in (0, 1):
        assert float(found.lowest[j]) <= float(found.matrix[j + 1 :, j].min())
    assert float(found.lowest[0]) < float(found.matrix[1:, 0].min()), "lower than after any task"
    assert found.stability_gap > 0.0
    assert (found.lowest_every, found.to_dict()["lowest_every"]) == (2, 2)
    assert "stability gap" in repr(found)
    assert "stability gap" not in repr(follow(plain(), stream(2), **ASKED))


# References


def test_joint_training_and_fresh_networks_have_the_settings_of_the_stream() -> None:
    given = stream(3)
    found = follow(plain(), given, references=True, **ASKED)
    assert found.joint is not None
    assert float(found.joint[0]) == float(found.matrix[0, 0]), "the first task alone is both"
    together = plain()
    follow(together, joined(replace(given, tasks=given.tasks[:2])), **ASKED)
    assert float(found.joint[1]) == pytest.approx(score_on(together, given, 1))
    alone = [follow(plain(), replace(given, tasks=(task,)), online=True, **ASKED).online[0] for task in given]
    assert found.fresh == pytest.approx(alone)
    assert found.fresh[0] == found.online[0]
    assert found.intransigence == pytest.approx(float((found.joint - found.matrix.diagonal()).mean()))
    assert len(found.plasticity) == 3
    assert "intransigence" in repr(found)
    assert "plasticity" in repr(found)


def test_joint_training_of_told_tasks_is_asked_among_the_classes_of_the_task() -> None:
    """Which a joint task of all classes would not know."""
    given = split(Data(), 2, scenario="task")
    found = follow(plain(), given, references=True, **{**ASKED, "lr": 1e-7, "epochs": 1})
    assert found.joint is not None
    assert found.untrained is not None
    assert found.joint.tolist() == pytest.approx(found.untrained.tolist(), abs=0.02), "nothing is learned at this rate"


def with_everything() -> tuple[nn.Module, dict[str, Any]]:
    model = gated()
    sparsifier = SET(model, 0.5, every=2, recycler=Recycler(model, every=3))
    return model, {"learner": EWC(model), "sparsifier": sparsifier, "budget": steering()}


REFERENCES = {
    "everything": with_everything,
    "continual backprop": SETUPS["continual backprop"],
    "contexts": SETUPS["keep"],
}


@pytest.mark.parametrize("name", REFERENCES)
def test_references_go_on_after_a_kill_and_leave_no_files(name: str, tmp_path: Path) -> None:
    model, parts = REFERENCES[name]()
    whole = follow(model, stream(), **parts, references=True, **ASKED)
    again, found, killed = killed_and_resumed(REFERENCES[name], stream(), tmp_path, references=True, **ASKED)
    assert killed >= 4
    assert_same(model, again, whole, found)
    assert list((tmp_path / "references").iterdir()) == []
    stored = json.loads((tmp_path / "stream.json").read_text())
    assert all(stored["summary"][key] is not None for key in ("intransigence", "plasticity", "fwt", "bwt"))


def test_copies_for_references_are_copies() -> None:
    """What a recycler, a sparsifier and a budget remember is theirs."""
    alone, parts = with_everything()
    follow(alone, stream(2), **parts, **ASKED)
    model, watched = with_everything()
    follow(model, stream(2), **watched, references=True, **ASKED)
    expected, found = parts["sparsifier"].recycler, watched["sparsifier"].recycler
    assert (found.steps, found.recycled) == (expected.steps, expected.recycled)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), model.parameters(), strict=True))
    assert watched["budget"].state_dict() == parts["budget"].state_dict()


def test_plasticity_while_a_stream_is_followed_is_that_of_the_tasks_so_far() -> None:
    found = Retention.empty(3)
    found.online, found.fresh = [0.5], [1.0, 0.0, 1.0]
    assert found.plasticity == [0.5]
    found.online = [0.5, 0.5]
    assert math.isnan(found.plasticity[1]), "a fresh network that knows nothing is no measure"
