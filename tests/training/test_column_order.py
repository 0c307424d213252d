"""A model that knows its columns is not trained or calibrated on others by position."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data.schema import Column, Schema, put_schema_

pd = pytest.importorskip("pandas")


def trained() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
    dg.gate_(model, dg.GateConfig(block=4, open=0.5))
    columns = tuple(Column(name) for name in ("a", "b", "c"))
    put_schema_(model, Schema(kind="table", features=3, outputs=2, columns=columns, classes=("no", "yes")))
    return model


def frame() -> pd.DataFrame:
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(64, 3, generator=draw) * torch.tensor([1.0, 10.0, 0.1])
    return pd.DataFrame(values.numpy(), columns=["a", "b", "c"])


def test_calibration_finds_columns_by_name() -> None:
    rows = frame()
    one, other = trained(), trained()
    met = dg.calibrate_(one, rows, macs=0.8)
    again = dg.calibrate_(other, rows[["c", "a", "b"]], macs=0.8)
    assert met == again
    for mine, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_training_refuses_columns_in_another_order() -> None:
    rows, y = frame(), torch.arange(64) % 2
    with pytest.raises(ValueError, match=r"another order than the model knows them: pass frame\[\['a', 'b', 'c'\]\]"):
        dg.fit(trained(), (rows[["c", "a", "b"]], y), epochs=1, show=False)
    dg.fit(trained(), (rows, y), epochs=1, batch=16, show=False)
