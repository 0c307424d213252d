"""Statistics of single samples: their cost, how certain the model was, and how they are displayed."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import Arrays, Column, Schema
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings, run_one
from dynamicgate.lab.methods.samples import SampleStats, cost_levels, histogram, picture, show, unpack_rows


def splits_of(x: torch.Tensor, name: str = "mine", classes: int = 3, **options: object) -> Splits:
    part = Arrays(x, torch.arange(len(x)) % classes)
    return Splits(name, part, part, part, classes, 0.0, 1.0, **options)  # type: ignore[arg-type]


def gathered(model: torch.nn.Module, splits: Splits) -> dict:
    stats = SampleStats()
    dg.measure(model, splits.test, batch=7, watch=stats.add)
    return stats.to_dict(splits)


@pytest.fixture
def gated() -> tuple[torch.nn.Module, Splits]:
    model = dg.nn.GatedMLP((6, 16, 3), dg.GateConfig(net="linear"))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias.zero_()
    return model, splits_of(torch.randn(40, 6))


def test_the_cost_of_samples_is_what_a_measurement_of_each_alone_says(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    found = gathered(model, splits)
    alone = [dg.measure(model, splits.test.x[row : row + 1]).macs["executed"] for row in range(40)]
    assert (found["macs"]["low"], found["macs"]["high"]) == (min(alone), max(alone))
    assert found["count"] == sum(found["macs"]["counts"]) == 40
    for kind in ("easiest", "hardest", "cheapest", "most_expensive"):
        assert [sample["macs"] for sample in found[kind]] == [alone[sample["row"]] for sample in found[kind]]
    assert [sample["macs"] for sample in found["cheapest"]] == sorted(alone)[:3]
    assert [sample["macs"] for sample in found["most_expensive"]] == sorted(alone)[:-4:-1]


def test_the_rows_that_are_right_can_be_read_again(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    with torch.no_grad():
        right = model.eval()(splits.test.x).argmax(1) == splits.test.y
    assert 0 < int(right.sum()) < 40
    assert unpack_rows(gathered(model, splits)["right"], 40).equal(right)


def test_the_easiest_are_the_most_certain_and_the_hardest_the_least(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    found = gathered(model, splits)
    with torch.no_grad():
        sure, predicted = model.eval()(splits.test.x).softmax(1).max(1)
    assert [sample["row"] for sample in found["easiest"]] == (-sure).argsort(stable=True)[:3].tolist()
    assert [sample["row"] for sample in found["hardest"]] == sure.argsort(stable=True)[:3].tolist()
    for sample in found["hardest"]:
        assert sample["predicted"] == int(predicted[sample["row"]])
        assert sample["hardness"] == pytest.approx(1 - float(sure[sample["row"]]), abs=1e-4)
        assert sample["label"] == sample["row"] % 3


def test_means_by_class_and_by_answer_fit_the_mean_of_all(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    found, mean = gathered(model, splits), dg.measure(model, splits.test).macs["executed"]
    counts = torch.bincount(splits.test.y).tolist()
    total = sum(n * macs for n, macs in zip(counts, found["macs_by_class"], strict=True))
    assert total / 40 == pytest.approx(mean, abs=0.01)
    right = dg.measure(model, splits.test).quality["accuracy"]
    assert right * found["macs_if_right"] + (1 - right) * found["macs_if_wrong"] == pytest.approx(mean, abs=0.01)


def test_samples_of_the_same_cost_are_counted_together() -> None:
    macs = torch.tensor([4.0, 2.0, 4.0, 2.0, 2.0, 9.0], dtype=torch.float64)
    wrong = torch.tensor([True, False, False, False, True, True])
    hardness = torch.tensor([0.5, 0.1, 0.3, 0.2, 0.6, 0.7], dtype=torch.float64)
    assert cost_levels(macs, wrong, hardness) == [
        {"macs": 2.0, "count": 3, "wrong": 1, "hardness": 0.3},
        {"macs": 4.0, "count": 2, "wrong": 1, "hardness": 0.4},
        {"macs": 9.0, "count": 1, "wrong": 1, "hardness": 0.7},
    ]
    assert cost_levels(macs[[0, 2]], wrong[[0, 2]], hardness[[0, 2]]) == [], "all cost the same"
    many = torch.arange(9.0, dtype=torch.float64)
    assert cost_levels(many, many > 3, many) == []


def test_a_dense_model_has_no_cheapest_sample_and_no_correlation() -> None:
    found = gathered(dg.nn.GatedMLP((6, 8, 3)), splits_of(torch.randn(20, 6)))
    assert found["macs"]["counts"] == [20]
    assert found["correlation"] is found["cost_error"] is None
    assert found["levels"] == []
    assert "cheapest" not in found
    assert len(found["easiest"]) == 3


def test_statistics_do_not_depend_on_the_batch_size_and_are_plain_json(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    found = gathered(model, splits)
    whole = SampleStats()
    dg.measure(model, splits.test, watch=whole.add)
    again = whole.to_dict(splits)
    assert json.loads(json.dumps(found)) == found
    assert {**again, "easiest": 0, "hardest": 0} == {**found, "easiest": 0, "hardest": 0}
    hardest = [[sample["hardness"] for sample in one["hardest"]] for one in (again, found)]
    assert hardest[0] == pytest.approx(hardest[1], abs=1e-6)


def test_statistics_of_other_rows_than_the_test_part_are_refused(gated: tuple[torch.nn.Module, Splits]) -> None:
    model, splits = gated
    stats = SampleStats()
    with pytest.raises(ValueError, match="no sample was recorded"):
        stats.to_dict(splits)
    dg.measure(model, splits.test.x[:10], watch=stats.add)
    with pytest.raises(ValueError, match="received 10 recorded samples, expected the 40 of the test part"):
        stats.to_dict(splits)


def test_there_are_no_more_bins_than_values() -> None:
    assert histogram(torch.tensor([2.0, 4.0, 4.0, 6.0, 8.0])) == [1, 2, 1, 1]
    assert histogram(torch.full((5,), 3.0)) == [5]
    assert len(histogram(torch.randn(1000, dtype=torch.float64))) == 40
    assert sum(histogram(torch.randn(1000, dtype=torch.float64))) == 1000


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_a_png_that_others_can_read(channels: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (channels, 12, 20), dtype=torch.uint8)
    read = image.open(io.BytesIO(base64.b64decode(picture(pixels / 255))))
    assert read.size == (20, 12)
    decoded = torch.tensor(list(read.tobytes()), dtype=torch.uint8).view(12, 20, channels).permute(2, 0, 1)
    assert torch.equal(decoded, pixels)


def test_a_large_picture_is_shrunk_and_its_range_of_values_is_scaled() -> None:
    image = pytest.importorskip("PIL.Image")
    read = image.open(io.BytesIO(base64.b64decode(picture(torch.linspace(-40.0, 20.0, 64 * 98).view(1, 64, 98)))))
    assert read.size == (32, 32)
    assert read.getextrema() == (0, 255)


def test_digits_are_displayed_as_pictures_and_tables_by_the_features_that_deviate_most() -> None:
    pytest.importorskip("sklearn")
    assert show(load_dataset("digits"), 5).keys() == {"picture"}
    x = torch.zeros(4, 10)
    x[2, 7], x[2, 1] = -9.0, 4.0
    features = show(replace(splits_of(x), std=2.0), 2)["features"]
    assert features[:2] == [[7, -9.0, -4.5], [1, 4.0, 2.0]]
    assert len(features) == 6


def test_images_that_are_read_as_vectors_are_displayed_as_pictures() -> None:
    pixels, y = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    stored = Arrays(pixels, y, prepare=lambda batch: batch.float() / 255)
    splits = Splits("mine", stored, stored, stored, 2, 0.0, 1.0).flat()
    assert show(splits, 1).keys() == {"picture"}


def test_the_statistics_of_a_run_are_small() -> None:
    stored = Arrays(torch.rand(30, 3, 32, 32), torch.arange(30) % 10, prepare=torch.nn.Identity())
    splits = Splits("photos", stored, stored, stored, 10, 0.0, 1.0).flat()
    model = dg.nn.GatedMLP((3072, 16, 10), dg.GateConfig(net="linear"))
    assert len(json.dumps(gathered(model, splits))) < 64_000, "noise is the worst case"


def test_a_run_writes_its_sample_statistics_beside_its_model(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    splits = load_dataset("digits").flat()
    run = run_one(Settings(model="gate", epochs=1, hidden=(16,), budget=0.6).resolved(splits), splits, tmp_path)
    found = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))
    assert found["count"] == len(splits.test)
    assert found["macs"]["low"] <= run["macs"]["executed"] <= found["macs"]["high"]
    assert found["easiest"][0].keys() == {"row", "macs", "hardness", "label", "predicted", "picture"}


def test_features_are_shown_by_name_where_the_data_keep_names() -> None:
    splits = splits_of(torch.randn(6, 2))
    assert {type(row[0]) for row in show(splits, 0)["features"]} == {int}

    def shown(*columns: Column) -> list[str]:
        schema = Schema("cells", len(columns), splits.classes, columns=columns)
        return sorted(row[0] for row in show(replace(splits, schema=schema), 0)["features"])

    assert shown(Column("CD3E"), Column("MS4A1")) == ["CD3E", "MS4A1"]
    assert shown(Column("ENSG00000198851", alias="CD3E"), Column("MS4A1")) == ["CD3E", "MS4A1"], "by its symbol"
    assert {type(name) for name in shown(Column("only one"))} == {int}
