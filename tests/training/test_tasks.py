"""`fit` and `measure` beyond one class per row: measurements, labels, tokens, own losses, metrics and optimizers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.data.tasks import Huber, Quantile
from tests.training.easy import differences, largest_difference

X = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))
VALUE = X[:, 0] * 2 - X[:, 1] + 3
LABELS = (X[:, :3] > 0).long()


def network(outputs: int = 1, *, gates: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, outputs))
    return dg.gate_(model, dg.GateConfig(block=4)) if gates else model  # type: ignore[return-value]


def fitted(model: nn.Module, y: Tensor, **options: Any) -> dg.training.History:
    settings = {"epochs": 30, "batch": 40, "lr": 1e-2, "show": False, **options}
    if "optimizer" in options:
        del settings["lr"]
    return dg.fit(model, (X[:300], y[:300]), valid=(X[300:], y[300:]), **settings)


@pytest.mark.parametrize("loss", ["mse", "huber", Huber(delta=0.5), "quantile"], ids=str)
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["flat", "column"])
def test_measurements_are_learned_by_every_loss(loss: Any, shape: tuple[int, ...]) -> None:
    model = network()
    history = fitted(model, VALUE.reshape(shape), loss=loss)
    assert history.final is not None
    assert history.final["r2"] > 0.95
    measured = dg.measure(model, (X[300:], VALUE[300:].reshape(shape)))
    for name in ("rmse", "mae", "r2"):
        assert measured.quality[name] == pytest.approx(history.final[name], rel=1e-5)
    with pytest.raises(AttributeError, match="no accuracy was measured, but rmse"):
        _ = measured.accuracy


def test_the_numbers_of_measurements_are_what_their_names_say() -> None:
    model, y = network(2), torch.stack([VALUE + 1e4, X[:, 2]], 1)
    found = dg.measure(model, (X, y), batch=32).quality
    with torch.no_grad():
        error = (model(X) - y).double()
    assert found["rmse"] == pytest.approx(float(error.square().mean(0).sqrt().mean()), rel=1e-6)
    assert found["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-6)
    spread = (y.double() - y.double().mean(0)).square().mean(0)
    assert found["r2"] == pytest.approx(float((1 - error.square().mean(0) / spread).mean()), rel=1e-6)


def test_quantiles_bracket_the_measurements() -> None:
    torch.manual_seed(3)
    y = VALUE + torch.randn(400)
    levels = Quantile(levels=(0.1, 0.5, 0.9))
    model = network(3)
    fitted(model, y, loss=levels, epochs=60)
    with torch.no_grad():
        low, _, high = model(X[:300]).unbind(1)
    assert 0.7 < float(((low < y[:300]) & (y[:300] < high)).float().mean()) < 0.95
    assert dg.measure(model, (X[300:], y[300:]), loss=levels).quality["r2"] > 0.5


def test_a_budget_holds_for_measurements() -> None:
    model = network(gates=True)
    history = fitted(model, VALUE, loss="mse", budget=dg.Budget(target=0.7), epochs=60)
    assert dg.measure(model, (X[300:], VALUE[300:])).relative == pytest.approx(0.7, abs=0.02)
    assert history.final is not None
    assert history.final["r2"] > 0.8


def test_stages_are_trained_on_measurements() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    dg.gate_(model, dg.GateConfig(kind="stages", stages=(8, 24), decide="head"))
    history = fitted(model, VALUE, loss="mse", budget=dg.Budget(target=0.7))
    assert history.final is not None
    assert history.final["r2"] > 0.8


def test_several_labels_are_learned() -> None:
    model = network(3)
    history = fitted(model, LABELS, loss="multilabel")
    assert history.final is not None
    assert history.final["micro_f1"] > 0.9
    found = dg.measure(model, (X[300:], LABELS[300:])).quality
    with torch.no_grad():
        right = (model(X[300:]) > 0) == LABELS[300:].bool()
    assert found["exact"] == pytest.approx(float(right.all(1).float().mean()))
    assert found["micro_f1"] == pytest.approx(history.final["micro_f1"])
    assert dg.measure(model, (X[300:], LABELS[300:].float()), loss="multilabel").quality == found


class Tagger(nn.Module):
    """Scores of classes for every token, or for the whole text."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.pooled = nn.Embedding(20, 16), pooled
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        return self.mlp(h.mean(1) if self.pooled else h)


TOKENS = torch.randint(20, (300, 7), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", ["tensor", "numpy"])
def test_a_model_of_tokens_reads_whole_numbers(kind: str) -> None:
    model, y = Tagger(pooled=True), (TOKENS.float().mean(1) > 9.5).long()
    with pytest.warns(UserWarning, match="no training row has class 2"):
        dg.fit(model, (TOKENS if kind == "tensor" else TOKENS.numpy(), y), epochs=20, lr=1e-2, show=False)
    assert dg.measure(model, (TOKENS, y)).accuracy > 0.9


def test_every_token_may_have_a_class_and_padding_counts_nowhere() -> None:
    y = TOKENS % 3
    padded = y.clone()
    padded[:, 5:] = -100
    model = dg.gate_(Tagger(pooled=False), dg.GateConfig(block=4), where="mlp.2")
    history = dg.fit(
        model, (TOKENS, padded), valid=(TOKENS, padded), epochs=25, lr=1e-2, budget=dg.Budget(target=0.8), show=False
    )
    assert history.final is not None
    assert history.final["accuracy"] > 0.95
    with torch.no_grad():
        right = (model(TOKENS).argmax(-1) == y)[:, :5]
        loss = F.cross_entropy(model(TOKENS).flatten(0, 1), padded.flatten())
    assert history.final["accuracy"] == pytest.approx(float(right.float().mean()))
    assert history.final["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert dg.measure(model, (TOKENS, padded)).accuracy == pytest.approx(history.final["accuracy"])


def test_tokens_outside_of_the_vocabulary_are_said() -> None:
    with pytest.raises(ValueError, match=r"cannot read rows of shape \[7\]: index out of range"):
        dg.fit(Tagger(pooled=True), (TOKENS + 15, TOKENS[:, 0] % 3), epochs=1, show=False)


def mean_absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).abs()


def mean_of_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).abs().mean()


def largest_error(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.squeeze(1) - targets).abs().max())


def test_a_loss_of_ones_own_may_give_rows_or_their_mean() -> None:
    models = [network(), network()]
    for model, loss in zip(models, (mean_absolute, mean_of_batch), strict=True):
        fitted(model, VALUE, loss=loss, epochs=4)
    assert largest_difference(*(model.state_dict() for model in models)) < 1e-5


def test_a_module_is_a_loss() -> None:
    models = [network(2), network(2)]
    y = torch.stack([VALUE, X[:, 2]], 1)
    fitted(models[0], y, loss=nn.MSELoss(), epochs=4)
    fitted(models[1], y, loss="mse", epochs=4)
    assert largest_difference(*(model.state_dict() for model in models)) < 1e-5


@pytest.mark.parametrize("loss", ["mse", mean_absolute], ids=["named", "own"])
def test_micro_batches_change_nothing(loss: Any) -> None:
    models = [network(), network()]
    for model, accumulate in zip(models, (1, 3), strict=True):
        fitted(model, VALUE, loss=loss, epochs=2, accumulate=accumulate)
    assert largest_difference(*(model.state_dict() for model in models)) < 1e-5


def test_metrics_of_ones_own_see_all_validation_rows() -> None:
    model = network()
    history = fitted(model, VALUE, loss="mse", metrics={"largest": largest_error}, epochs=2)
    assert history.final is not None
    with torch.no_grad():
        expected = largest_error(model(X[300:]), VALUE[300:])
    assert history.final["largest"] == pytest.approx(expected)
    measured = dg.measure(model, (X[300:], VALUE[300:]), metrics={"largest": largest_error}, batch=16)
    assert measured.quality["largest"] == pytest.approx(expected)


def test_the_best_epoch_of_measurements_has_the_lowest_loss() -> None:
    history = fitted(network(), VALUE + torch.randn(400), loss="mse", patience=3, epochs=80)
    losses = [row["valid"]["loss"] for row in history.log if row["valid"]]
    assert history.stopped_early
    assert history.best is not None
    assert history.best["loss"] == min(losses) == losses[-4]


SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def test_an_optimizer_of_ones_own_trains_with_its_own_learning_rate() -> None:
    model = network()
    history = fitted(model, VALUE, loss="mse", optimizer=SGD, epochs=20)
    assert max(row["lr"] for row in history.log) == pytest.approx(0.05, rel=0.05)
    assert history.final is not None
    assert history.final["r2"] > 0.95


def test_biases_do_not_decay_under_an_optimizer_of_ones_own() -> None:
    seen: list[Any] = []

    def make(groups: Any) -> torch.optim.Optimizer:
        seen.append(torch.optim.SGD(groups, lr=0.01, weight_decay=0.1))
        return seen[0]  # type: ignore[no-any-return]

    fitted(network(gates=True), VALUE, loss="mse", optimizer=make, epochs=1)
    decay = {p.ndim: group["weight_decay"] for group in seen[0].param_groups for p in group["params"]}
    assert decay == {2: 0.1, 1: 0.0}


class Interrupt(dg.training.Callback):
    """Ctrl-C after some steps."""

    def on_log(self, row: dict[str, float], step: int) -> None:
        if step == 11:
            raise KeyboardInterrupt


def test_a_run_with_its_own_loss_metrics_and_optimizer_resumes_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "loss": mean_absolute, "metrics": {"largest": largest_error}, "optimizer": SGD, "epochs": 3,
    }  # fmt: skip
    straight, stopped = network(gates=True), network(gates=True)
    one = fitted(straight, VALUE, **options, out=tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        fitted(stopped, VALUE, **options, out=tmp_path / "two", callbacks=[Interrupt()], checkpoint_seconds=0)
    resumed = network(gates=True)
    two = fitted(resumed, VALUE, **options, out=tmp_path / "two")
    assert not differences(straight.state_dict(), resumed.state_dict())
    assert one.log == two.log
    assert one.final == two.final


CHANGES: dict[str, dict[str, Any]] = {
    "loss": {"loss": mean_of_batch},
    "another named loss": {"loss": "huber"},
    "settings of a loss": {"loss": Huber(delta=2.0)},
    "metrics": {"metrics": {"worst": largest_error}},
    "optimizer": {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.8)},
    "no optimizer": {"optimizer": None},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_a_run_is_not_continued_with_another_task(tmp_path: Path, changed: dict[str, Any]) -> None:
    options: dict[str, Any] = {"loss": Huber(), "metrics": {"largest": largest_error}, "optimizer": SGD, "epochs": 1}
    if "huber" in changed.values():
        options["loss"] = "mse"
    fitted(network(), VALUE, **options, out=tmp_path)
    with pytest.raises(ValueError, match=r"was made with (loss|metrics|optimizer)="):
        fitted(network(), VALUE, **{**options, **changed}, out=tmp_path)


def test_a_loss_that_cannot_be_told_from_another_is_refused_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"loss is .* use a function defined at the top of a module"):
        fitted(network(), VALUE, loss=lambda a, b: (a.squeeze(1) - b) ** 2, out=tmp_path)


def test_a_teacher_of_measurements_is_imitated() -> None:
    teacher = network()
    fitted(teacher, VALUE, loss="mse")
    student = network()
    fitted(student, VALUE.roll(1), loss="mse", teacher=teacher, distill_weight=1.0)
    with torch.no_grad():
        assert float((student(X) - teacher(X)).square().mean()) < 0.1


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "float targets": (VALUE, {}, r"labels must be integers, found .*; for regression pass loss='mse'"),
    "a column": (VALUE[:, None], {}, r"flatten a column .*several measurements loss='mse'"),
    "several labels": (LABELS, {}, r"rows with several labels need loss='multilabel'"),
    "measurements as labels": (VALUE[:, None], {"loss": "multilabel"}, r"a row has a label, 1, or has not, 0; found"),
    "classes as labels": (LABELS[:, 0], {"loss": "multilabel"}, r"several labels per row are a matrix"),
    "too few outputs": (torch.stack([VALUE, VALUE], 1), {"loss": "mse"}, r"measurements of shape \[2, 2\] need"),
    "missing": (torch.full((400,), torch.nan), {"loss": "mse"}, r"targets must be finite, found 300"),
    "unknown": (VALUE, {"loss": "rmse"}, r"loss must be one of cross_entropy, mse, huber, quantile, multilabel"),
    "a class of losses": (VALUE, {"loss": nn.MSELoss}, r"loss must be one of"),
    "wrong rows": (VALUE, {"loss": lambda a, b: torch.zeros(3)}, r"the loss of each of the \d+ rows"),
    "weights of classes": (VALUE, {"loss": "mse", "class_weights": "balanced"}, "are for classes"),
    "smoothing": (VALUE, {"loss": "mse", "label_smoothing": 0.1}, "are for classes"),
    "levels": (VALUE, {"loss": Quantile(levels=(0.1, 0.9))}, r"need outputs of shape \[2, 2\]"),
    "two learning rates": (VALUE, {"loss": "mse", "optimizer": SGD, "weight_decay": 0.1}, "give your own optimizer"),
    "teacher": (VALUE, {"loss": mean_absolute, "teacher": network()}, "how far two outputs are apart"),
    "a name that is taken": (VALUE, {"loss": "mse", "metrics": {"loss": largest_error}}, "these names are taken"),
}


@pytest.mark.parametrize(("y", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_ambiguous_or_wrong_is_refused_with_a_sentence(y: Tensor, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(network(), y, epochs=1, **options)


def test_what_makes_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="optimizer must make an optimizer"):
        fitted(network(), VALUE, loss="mse", optimizer=lambda groups: None)


UNCLEAR: dict[str, tuple[Tensor, int]] = {
    "a column of classes": (LABELS[:, :1], 3),
    "float for many outputs": (VALUE, 3),
    "classes for one output": (LABELS[:, 0], 1),
}


@pytest.mark.parametrize(("y", "outputs"), UNCLEAR.values(), ids=UNCLEAR)
def test_measuring_says_what_it_cannot_tell(y: Tensor, outputs: int) -> None:
    with pytest.raises(ValueError, match=r"cannot tell what targets of shape .*loss='mse'"):
        dg.measure(network(outputs), (X, y))


def test_measuring_takes_class_numbers_as_float() -> None:
    y = LABELS[:, 0]
    assert dg.measure(network(3), (X, y.float())).quality == dg.measure(network(3), (X, y)).quality


def test_measuring_refuses_labels_that_the_model_has_no_output_for() -> None:
    with pytest.raises(ValueError, match=r"labels must be 0\.\.2 for a model with 3 outputs, found 0\.\.7"):
        dg.measure(network(3), (X, LABELS[:, 0] * 7))
