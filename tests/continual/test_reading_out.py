"""`read_out`: ridge regression on all rows, whatever the order of tasks, and the same after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dynamicgate.continual import Readout, Retention, Stream, permuted, read_out, reading_out, readout_model, split
from dynamicgate.continual.reading_out import UNSEEN, put_readout_
from dynamicgate.files import read_json
from dynamicgate.lab.datasets import load_dataset


def stream() -> Stream:
    return split(load_dataset("digits").flat(), 2)


def model_for(given: Stream, units: int = 60) -> nn.Sequential:
    return readout_model(given.features, units, given.classes, seed=3)


def test_it_ends_as_a_readout_on_all_rows_at_once() -> None:
    given = stream()
    model = model_for(given)
    retention = read_out(model, given, Readout(60), device="cpu", show=False)
    together = Readout(60)
    x, y = (torch.cat([getattr(task.train, part) for task in given]) for part in ("values", "y"))
    together.add(model[:2](x), y)
    weight, bias = together.solve()
    torch.testing.assert_close(model[2].weight, weight, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(model[2].bias, bias, rtol=1e-3, atol=1e-4)
    for number, task in enumerate(given):
        right = (model(task.test.values).argmax(1) == task.test.y).double().mean()
        assert float(retention.matrix[-1, number]) == pytest.approx(float(right))
    assert retention.acc > 0.8
    assert bool(retention.matrix.triu(1).isnan().sum() == 10), "tasks that were not seen are not tested"


def test_classes_that_were_not_seen_are_not_answered() -> None:
    given = stream()
    model, readout = model_for(given), Readout(60)
    assert model[2].bias.tolist() == [UNSEEN] * 10
    first = given[0].train
    readout.add(model[:2](first.values), first.y)
    put_readout_(model, readout)
    answered = model(torch.cat([task.test.values for task in given])).argmax(1)
    assert set(answered.tolist()) <= {0, 1}


def test_in_the_scenario_task_only_the_classes_of_the_task_are_asked() -> None:
    data = load_dataset("digits").flat()
    given, asked = (split(data, 2, scenario=scenario) for scenario in ("class", "task"))
    found = [read_out(model_for(s, 12), s, Readout(12), device="cpu", show=False).acc for s in (given, asked)]
    assert found[1] > found[0]


class _StopError(RuntimeError):
    pass


def test_a_killed_stream_goes_on_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = stream()
    model = model_for(given)
    whole = read_out(model, given, Readout(60), device="cpu", show=False)
    learn, calls = reading_out._learn, []

    def dying(*arguments: object) -> None:
        calls.append(1)
        if len(calls) in (3, 5):
            raise _StopError
        learn(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reading_out, "_learn", dying)
    for _ in range(2):
        with pytest.raises(_StopError):
            read_out(model_for(given), given, Readout(60), device="cpu", out=tmp_path, show=False)
    again, readout = model_for(given), Readout(60)
    found = read_out(again, given, readout, device="cpu", out=tmp_path, show=False)
    assert len(calls) == 5 + 2, "two tasks were learned, then one more, then the last two"
    assert torch.equal(found.matrix.nan_to_num(-1.0), whole.matrix.nan_to_num(-1.0))
    assert torch.equal(again[2].weight, model[2].weight)
    stored = Retention.from_dict(read_json(tmp_path / "stream.json"))
    assert torch.equal(stored.matrix.nan_to_num(-1.0), whole.matrix.nan_to_num(-1.0))


def _other_features(given: Stream) -> tuple[nn.Sequential, Stream, Readout]:
    return readout_model(given.features, 60, given.classes, seed=4), given, Readout(60)


def _other_stream(given: Stream) -> tuple[nn.Sequential, Stream, Readout]:
    other = permuted(load_dataset("digits").flat(), 2)
    return model_for(given), other, Readout(60)


def _balanced(given: Stream) -> tuple[nn.Sequential, Stream, Readout]:
    return model_for(given), given, Readout(60, balanced=True)


@pytest.mark.parametrize("change", [_other_features, _other_stream, _balanced])
def test_a_folder_of_another_run_is_refused(change: object, tmp_path: Path) -> None:
    given = stream()
    read_out(model_for(given), given, Readout(60), device="cpu", out=tmp_path, show=False)
    model, other, readout = change(given)  # type: ignore[operator]
    with pytest.raises(ValueError, match="choose another output folder"):
        read_out(model, other, readout, device="cpu", out=tmp_path, show=False)


def test_what_cannot_be_read_out_is_refused() -> None:
    given = stream()
    with pytest.raises(ValueError, match=r"ends with an nn\.Linear"):
        read_out(nn.Sequential(nn.Linear(64, 10), nn.ReLU()), given, Readout(64), show=False)
    with pytest.raises(ValueError, match=r"make it with Readout\(60\)"):
        read_out(model_for(given), given, Readout(61), show=False)
    used = Readout(60)
    used.add(torch.randn(4, 60), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="has learned already"):
        read_out(model_for(given), given, used, device="cpu", show=False)
    small: Tensor = torch.tensor([0, 11])
    used = Readout(60)
    used.add(torch.randn(2, 60), small)
    with pytest.raises(ValueError, match="has seen 12 classes, the model answers 10"):
        put_readout_(model_for(given), used)
