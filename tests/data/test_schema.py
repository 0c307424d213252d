"""What a model knows of its data: written as JSON, read back from files that may come from anyone."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.data.schema import Column, Schema, put_schema_, read_schema, schema_of
from dynamicgate.io.model_file import schema_in
from dynamicgate.io.tensor_file import read_tensors, write_tensors

SCHEMA = Schema(
    "table",
    6,
    2,
    columns=(
        Column("age"),
        Column("dose", fill=0.5, indicator=True),
        Column("site", ("Kyoto", "Lima", "Oslo"), fill="Lima", alias="place"),
    ),
    classes=("no", "yes"),
    target="outcome",
    budget=0.3,
    rows=100,
)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_schema_is_the_same_after_json() -> None:
    assert SCHEMA.feature_names == ("age", "dose", "dose=missing", "site=Kyoto", "site=Lima", "site=Oslo")
    written = json.loads(json.dumps(SCHEMA.to_json()))
    assert written["columns"][0] == "age"
    assert "task" not in written, "defaults are left out"
    assert read_schema(written) == SCHEMA
    arrays = Schema("arrays", 4, 3, task="regression", least=-1.5)
    assert read_schema(arrays.to_json()) == arrays


def test_a_model_carries_its_schema_through_files_and_copies(tmp_path: Path) -> None:
    plain = model()
    dg.save(plain, tmp_path / "plain.safetensors")
    assert schema_in(tmp_path / "plain.safetensors") is None
    dg.save(plain, tmp_path / "m.safetensors", schema=SCHEMA)
    assert schema_of(plain) is None, "saving changes nothing"
    loaded = dg.load(tmp_path / "m.safetensors")
    assert schema_of(loaded) == schema_of(copy.deepcopy(loaded)) == schema_in(tmp_path / "m.safetensors") == SCHEMA
    dg.save(dg.gate_(loaded), tmp_path / "again.safetensors")
    assert schema_in(tmp_path / "again.safetensors") == SCHEMA
    into = model()
    put_schema_(into, replace(SCHEMA, target="other"))
    assert schema_of(dg.load(tmp_path / "m.safetensors", into=into)) == SCHEMA
    assert schema_of(dg.load(tmp_path / "plain.safetensors", into=into)) is None
    assert loaded.state_dict().keys() == dg.gate_(plain).state_dict().keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (5, "expected a schema as fields by name, received 5"),
        ({"kind": "pictures"}, "kind must be one of table, cells, arrays, received 'pictures'"),
        ({"task": "guessing"}, "task must be one of classification, regression, multilabel"),
        ({"features": 7}, "its columns become 6 features, expected the 7 of a row"),
        ({"features": -1}, "features must be a whole number of 0 or more, received -1"),
        ({"features": 1e400}, "features must be a whole number"),
        ({"outputs": 3}, "2 classes are named, expected 3"),
        ({"classes": ["a", "a"]}, "the class 'a' is named twice"),
        ({"classes": "ab"}, "classes must be a list of texts"),
        ({"columns": [["a"]]}, "expected a column as fields by name"),
        ({"columns": {"a": 1}}, "columns must be a list of columns"),
        ({"columns": [{"name": "a", "run": "me"}]}, "a column has no field 'run'"),
        ({"columns": [{"fill": 1}]}, "a column lacks name"),
        ({"columns": ["a", "a", "b", "c", "d", "e"]}, "the column 'a' is named twice"),
        ({"columns": [{"name": "a", "categories": []}]}, "column 'a' has no categories"),
        ({"columns": [{"name": "a", "categories": ["x"], "fill": "y"}]}, "must be filled with one of its categories"),
        ({"columns": [{"name": "a", "fill": "y"}]}, "holds numbers, and would be filled with the text 'y'"),
        ({"columns": [{"name": "a", "fill": float("inf")}]}, "fill must be a text or a finite number"),
        ({"columns": [{"name": "a", "indicator": True}]}, "says where values are missing, and not what stands there"),
        ({"more": 1}, "a schema has no field 'more': upgrade"),
        ({"budget": float("nan")}, "budget must be a finite number"),
        ({"kind": None}, "kind must be a text"),
    ],
)
def test_a_forged_schema_is_refused_with_a_sentence(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    dg.save(model(), path, schema=SCHEMA)
    tensors, header = read_tensors(path, kind="model")
    header["schema"] = {**header["schema"], **change} if isinstance(change, dict) else change
    write_tensors(path, tensors, header)
    for read in (dg.load, schema_in):
        with pytest.raises(
            ValueError, match=r"m\.safetensors is damaged: what it says about its data does not fit:"
        ) as e:
            read(path)
        assert message in str(e.value)


def test_what_is_no_path_is_said_to_be_none() -> None:
    with pytest.raises(TypeError, match="expected the path of a model file, received Tensor"):
        dg.load(torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected the path of a model file, received dict"):
        dg.save(model(), {})  # type: ignore[arg-type]
