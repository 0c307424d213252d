"""`StageLoss` against a computation by hand, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.gating.recording import Usage
from dynamicgate.training import StageLoss
from tests.gating.staged import sequential, stage, staged, the_gate

ROWS = 17


def forward(model: nn.Module, x: Tensor) -> Usage:
    with dg.usage(model) as used:
        model(x)
    return used


def example(decide: Any = "margin", outputs: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    model = stage(sequential((5, 13, 9, outputs)), decide=decide).double()
    x = torch.randn(ROWS, 5, dtype=torch.float64)
    used = forward(model, x)
    assert used.stages is not None
    the_gate(model).cut.copy_(used.stages.score.detach().median(0).values)
    return model, x, torch.randint(outputs, (ROWS,))


def cross_entropy(y: Tensor) -> Any:
    return lambda out: F.cross_entropy(out, y, reduction="none")


def log_softmax(z: list[float]) -> list[float]:
    shifted = [value - max(z) for value in z]
    total = torch.tensor(shifted, dtype=torch.float64).exp().sum().log().item()
    return [value - total for value in shifted]


def by_hand(model: nn.Module, x: Tensor, y: Tensor, loss: StageLoss) -> float:
    """One row and one stage after the other; a squared error for float targets."""
    found = forward(model, x).stages
    assert found is not None
    outputs = [z.detach().tolist() for z in found.outputs]
    opened, score = found.open.tolist(), found.score.detach().tolist()
    count = len(outputs)
    weights = loss.weights or (1.0,) * count
    rates = [sum(row[k] for row in opened) / len(opened) for k in range(count)]

    def of(k: int, row: int) -> float:
        if y.is_floating_point():
            target = y[row].tolist()
            return sum((a - b) ** 2 for a, b in zip(outputs[k][row], target, strict=True)) / len(target)
        return -log_softmax(outputs[k][row])[int(y[row])]

    def distance(k: int, row: int) -> float:
        now, last = outputs[k][row], outputs[-1][row]
        if loss.outputs == "values":
            return sum((a - b) ** 2 for a, b in zip(now, last, strict=True)) / len(now)
        p, q = (log_softmax([value / 2.0 for value in z]) for z in (last, now))
        return 4.0 * sum(torch.tensor(a).double().exp().item() * (a - b) for a, b in zip(p, q, strict=True))

    total = 0.0
    for row in range(len(x)):
        for k in range(count):
            value = of(k, row)
            if k < count - 1:
                value = (1 - loss.distill) * value + loss.distill * distance(k, row)
            attention = 1.0 if k == 0 else (1 - loss.focus) + loss.focus * opened[row][k] / max(rates[k], 1e-3)
            total += weights[k] / sum(weights) * value * attention
        if the_gate(model).config.decide == "head":
            for k in range(count - 1):
                error = abs(score[row][k] - (of(k, row) - of(count - 1, row)))
                total += (0.5 * error**2 if error < 1.0 else error - 0.5) / (count - 1)
    return total / len(x)


@pytest.mark.parametrize("decide", ["margin", "head"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": (1.0, 2.0, 5.0)},
        {"weights": (0.0, 0.0, 1.0)},
        {"focus": 1.0},
        {"focus": 0.4, "weights": (3.0, 1.0, 1.0)},
        {"distill": 0.7},
        {"distill": 1.0, "focus": 0.5, "weights": (1.0, 2.0, 1.0)},
        {"distill": 0.7, "outputs": "values"},
    ],
)
def test_the_loss_is_what_a_loop_over_rows_and_stages_gives(options: dict[str, Any], decide: str) -> None:
    model, x, y = example(decide)
    loss = StageLoss(**options)
    # distances, scores and open rates are float32
    tolerance = 1e-6 if decide == "head" or loss.distill or loss.focus else 1e-12
    found = loss(forward(model, x), cross_entropy(y))
    assert found.item() == pytest.approx(by_hand(model, x, y, loss), rel=tolerance)
    rows = loss.of_rows(forward(model, x), cross_entropy(y))
    assert rows.shape == (ROWS,)
    assert rows.mean().item() == found.item()


@pytest.mark.parametrize("outputs", [1, 3])
def test_values_are_predicted_with_a_squared_error(outputs: int) -> None:
    model, x, _ = example("head", outputs)
    y, loss = torch.randn(ROWS, outputs, dtype=torch.float64), StageLoss(distill=0.3, outputs="values")
    found = loss(forward(model, x), lambda out: F.mse_loss(out, y, reduction="none"))
    assert found.item() == pytest.approx(by_hand(model, x, y, loss), rel=1e-6)


def test_the_gradient_is_that_of_the_sum_of_the_losses_of_cut_networks() -> None:
    model, x, y = example()
    StageLoss(weights=(1.0, 1.0, 2.0))(forward(model, x), cross_entropy(y)).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    linears, bounds = [model[0], model[2], model[4]], the_gate(model).bounds  # type: ignore[index]
    weights = [linear.weight.detach().clone().requires_grad_() for linear in linears]
    biases = [linear.bias.detach().clone().requires_grad_() for linear in linears]
    total = torch.zeros((), dtype=torch.float64)
    for k, weight in enumerate((0.25, 0.25, 0.5), start=1):
        h = torch.tanh(x @ weights[0][: bounds[0][k]].T + biases[0][: bounds[0][k]])
        h = torch.tanh(h @ weights[1][: bounds[1][k], : bounds[0][k]].T + biases[1][: bounds[1][k]])
        out = h @ weights[2][:, : bounds[1][k]].T + biases[2]
        total = total + weight * F.cross_entropy(out, y)
    total.backward()
    for i, name in enumerate(("0", "2", "4")):
        allowed = the_gate(model).allowed(i, weights[i])
        torch.testing.assert_close(found[f"{name}.weight"][allowed], weights[i].grad[allowed], rtol=1e-10, atol=1e-12)  # type: ignore[index]
        torch.testing.assert_close(found[f"{name}.bias"], biases[i].grad, rtol=1e-10, atol=1e-12)


def test_heads_learn_to_predict_and_features_do_not_learn_to_be_predictable() -> None:
    with_head, x, y = example("head")
    plain = example("margin")[0]
    plain.load_state_dict(with_head.state_dict(), strict=False)
    for model in (with_head, plain):
        StageLoss()(forward(model, x), cross_entropy(y)).backward()
    heads = dict(the_gate(with_head).heads.named_parameters())
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in heads.values())
    for name, parameter in plain.named_parameters():
        assert torch.equal(with_head.get_parameter(name).grad, parameter.grad), name


def test_a_stage_that_no_row_opens_is_trained_on_none() -> None:
    model, x, y = example()
    the_gate(model).cut.fill_(torch.inf)
    StageLoss(focus=1.0)(forward(model, x), cross_entropy(y)).backward()
    first = the_gate(model).bounds[0][1]
    grad: Any = model[0].weight.grad  # type: ignore[index,union-attr]
    assert bool((grad[:first] != 0).any())
    assert bool((grad[first:] == 0).all())


def test_rows_of_sequences_are_rows() -> None:
    model, x, y = example("head")
    x, y = x[:16], y[:16]
    loss = StageLoss(focus=0.6, distill=0.4)
    flat = loss.of_rows(forward(model, x), cross_entropy(y))
    used, y_tokens = forward(model, x.reshape(4, 4, 5)), y.reshape(4, 4)
    for row_loss in (
        lambda out: F.cross_entropy(out.flatten(0, 1), y, reduction="none"),
        lambda out: F.cross_entropy(out.transpose(1, 2), y_tokens, reduction="none"),
    ):
        torch.testing.assert_close(loss.of_rows(used, row_loss), flat, rtol=1e-6, atol=1e-6)


def test_no_rows_cost_nothing_and_keep_the_graph() -> None:
    model, x, y = example("head")
    loss = StageLoss(focus=0.5, distill=0.5)(forward(model, x[:0]), cross_entropy(y[:0]))
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and bool((p.grad == 0).all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": ()}, "weights of stages are numbers >= 0, not all 0"),
        ({"weights": (0.0, 0.0)}, "not all 0"),
        ({"weights": (1.0, -1.0, 2.0)}, "numbers >= 0"),
        ({"focus": 1.5}, "focus is a fraction: expected 0 to 1, received 1.5"),
        ({"distill": -0.1}, "distill is a fraction"),
        ({"outputs": "scores"}, "outputs must be classes or values, received 'scores'"),
    ],
)
def test_a_loss_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StageLoss(**options)


def test_a_loss_that_does_not_fit_the_model_is_refused() -> None:
    model, x, y = example()
    with pytest.raises(ValueError, match="the model has 3 stages, and StageLoss has 2 weights: expected one each"):
        StageLoss(weights=(1.0, 1.0))(forward(model, x), cross_entropy(y))
    for reduced in (lambda out: F.cross_entropy(out, y), lambda out: F.cross_entropy(out, y).expand(3)):
        with pytest.raises(ValueError, match=r"the loss of each of the 17 rows.*pass reduction='none'"):
            StageLoss()(forward(model, x), reduced)
    plain = sequential()
    with pytest.raises(ValueError, match="no forward pass of a model with stages was recorded: call gate_"):
        StageLoss()(forward(plain, x.float()), cross_entropy(y))
    with dg.usage(staged()) as used:
        pass
    with pytest.raises(ValueError, match="no forward pass of a model with stages was recorded"):
        StageLoss()(used, cross_entropy(y))
