"""A user's own table: formats, encodings, split columns and refusals."""

from __future__ import annotations

import datetime
import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.data.columns import encode_column, fit_column
from dynamicgate.lab.datasets.normalisation import mean_and_std
from dynamicgate.lab.datasets.table_file import load_table, read_table

from .small_arrays import rows_of

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

ROWS = 100


def frame(**more: Any) -> Any:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "height": rng.normal(170, 10, ROWS),
        "age": np.arange(ROWS),
        "smokes": np.arange(ROWS) % 2 == 0,
        "colour": np.array(["red", "blue", "green"])[np.arange(ROWS) % 3],
        "kind": np.array(["cat", "dog", "ant", "dog"])[np.arange(ROWS) % 4],
    }
    return pd.DataFrame(columns | more)


def written(path: Path, table: Any = None) -> Path:
    table = frame() if table is None else table
    if path.suffix in (".parquet", ".pq"):
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.tsv.gz", "a.parquet", "a.pq", "A.CSV"])
def test_every_format_gives_the_same_numbers(tmp_path: Path, name: str) -> None:
    table = read_table(written(tmp_path / name), "kind")
    original = frame()
    assert table.schema.feature_names == ("height", "age", "smokes", "colour=blue", "colour=green", "colour=red")
    assert table.schema.classes == ("ant", "cat", "dog")
    assert table.x.dtype == np.float32
    np.testing.assert_array_equal(table.x[:, :3], original[["height", "age", "smokes"]].to_numpy(np.float32))
    one_hot = np.stack([original["colour"] == colour for colour in ("blue", "green", "red")], axis=1)
    np.testing.assert_array_equal(table.x[:, 3:], one_hot.astype(np.float32))
    assert [table.schema.classes[number] for number in table.y] == list(original["kind"])


def test_a_table_is_split_in_three_with_mean_and_std_of_the_training_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.csv.gz")
    data = load_table(path, 0, "kind")
    assert (data.name, data.classes, data.class_names) == ("mine", 3, ("ant", "cat", "dog"))
    assert data.info()["class_counts"] == {"train": [17, 17, 34], "valid": [3, 3, 6], "test": [5, 5, 10]}
    parts = [rows_of(part.values) for part in (data.train, data.valid, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == ROWS
    mean, std = mean_and_std(data.train.values)
    assert torch.equal(torch.as_tensor(data.mean), mean)
    assert torch.equal(torch.as_tensor(data.std), std)
    other = load_table(path, 1, "kind")
    assert other.test.values.equal(data.test.values)
    assert not other.valid.values.equal(data.valid.values)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (np.array([10, 9, 200, 9]), ("9", "10", "200")),
        (np.array([1.0, 0.0, 2.0, 2.0]), ("0", "1", "2")),
        (np.array([True, False, True, True]), ("False", "True")),
        (np.array(["b", "a", "C", "a"]), ("C", "a", "b")),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_classes_are_numbered_in_sorted_order(tmp_path: Path, target: Any, names: tuple[str, ...], suffix: str) -> None:
    values = target[np.arange(ROWS) % 4]
    table = read_table(written(tmp_path / f"a.{suffix}", frame(kind=values)), "kind")
    assert table.schema.classes == names
    position = {str(int(v)) if target.dtype.kind == "f" else str(v): v for v in target}
    assert [position[table.schema.classes[number]] for number in table.y] == list(values)


def test_categories_nullable_types_and_decimals_of_parquet_are_read(tmp_path: Path) -> None:
    from decimal import Decimal

    table = frame(
        age=pd.array(range(ROWS), dtype="Int64"),
        smokes=pd.array([True, False] * 50, dtype="boolean"),
        colour=pd.Categorical([["x", "z"][i % 2] for i in range(ROWS)], categories=["z", "y", "x"]),
        height=[Decimal(i) / 4 for i in range(ROWS)],
    )
    read = read_table(written(tmp_path / "a.parquet", table), "kind")
    assert read.schema.feature_names == ("height", "age", "smokes", "colour=x", "colour=z")
    assert read.x[3].tolist() == [0.75, 3, 0, 0, 1]


def test_categories_that_are_numbers_are_ordered_as_numbers() -> None:
    column = pd.Series(pd.Categorical([10, 9, 10]), name="size")
    read = fit_column(column, "mine")
    assert read.features == ("size=9", "size=10")
    assert encode_column(column, read, "mine").tolist() == [[0, 1], [1, 0], [0, 1]]


def test_columns_can_be_dropped_and_constant_ones_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", frame(one=7))
    data = load_table(path, 0, "kind", drop=["colour", "age"])
    assert data.train.features == 3
    assert data.train.values[:, 2].unique().tolist() == [7]
    assert (torch.as_tensor(data.mean)[2].item(), torch.as_tensor(data.std)[2].item()) == (7, 1)
    assert read_table(path, "kind", drop="height").schema.feature_names[:2] == ("age", "smokes")
    assert read_table(path, "kind", drop=("colour", "age", "age")).schema.feature_names == ("height", "smokes", "one")


def test_a_split_column_is_used_when_asked(tmp_path: Path) -> None:
    parts = np.array(["train", "train", "train", "train", "valid", "valid", "test"])[np.arange(ROWS) % 7]
    path = written(tmp_path / "a.csv", frame(split=parts))
    data = load_table(path, 0, "kind", split_column="split")
    assert data.train.features == 6
    for name in ("train", "valid", "test"):
        assert getattr(data, name).values[:, 1].tolist() == np.flatnonzero(parts == name).tolist()
    mean, _ = mean_and_std(data.train.values)
    assert torch.equal(torch.as_tensor(data.mean), mean)
    with pytest.raises(ValueError, match=r"column 'split' says which part .* split_column='split', or leave"):
        load_table(path, 0, "kind")
    assert load_table(path, 0, "kind", drop=["split"]).train.features == 6


def test_a_part_the_split_column_lacks_is_drawn_from_the_training_rows(tmp_path: Path) -> None:
    parts = np.where(np.arange(ROWS) < 80, "train", "test")
    path = written(tmp_path / "a.csv", frame(split=parts))
    data = load_table(path, 0, "kind", split_column="split")
    assert [len(part) for part in (data.train, data.valid, data.test)] == [68, 12, 20]
    assert data.test.values[:, 1].tolist() == list(range(80, 100))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["train", "dev"] * 50, r"split column 'split' must contain train.*found \['dev', 'train'\]"),
        (["test", "valid"] * 50, r"must contain train"),
        (["test", "train"] * 50, r"training rows of its split column lack the classes 'ant', 'cat'"),
        (["train"] * 99 + [None], r"must contain train.*'nan'"),
    ],
)
def test_an_unusable_split_column_is_refused(tmp_path: Path, parts: list[Any], message: str) -> None:
    path = written(tmp_path / "a.csv", frame(split=parts))
    with pytest.raises(ValueError, match=message):
        load_table(path, 0, "kind", split_column="split")


def with_value(name: str, row: int, value: Any) -> Any:
    table = frame()
    table[name] = table[name].astype(object)
    table.loc[row, name] = value
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (with_value("height", 7, None), r"column 'height' has no value in 1 of 100 rows, the first at row 7 .*drop="),
        (with_value("colour", 3, None), r"column 'colour' has no value in 1 of 100 rows, the first at row 3"),
        (with_value("smokes", 2, None), r"column 'smokes' has no value"),
        (with_value("kind", 5, None), r"column 'kind' has no value .* row 5 .*without a class"),
        (with_value("height", 4, np.inf), r"column 'height' must be finite in float32, found inf at row 4"),
        (with_value("height", 4, 1e39), r"column 'height' must be finite in float32, found 1e\+39 at row 4"),
        (with_value("age", 9, "?"), r"column 'age' is text although most .* '\?', at row 9"),
        (frame(note=[f"n{i}" for i in range(ROWS)]), r"'note' is text with 100 different values.*max_categories=99"),
        (frame(kind="dog"), r"column 'kind' must name at least 2 classes, found only 'dog' in all 100 rows"),
        (frame(kind=np.arange(ROWS) / 3), r"column 'kind' holds 0.333333 at row 1, which is a measurement"),
        (frame()[["kind"]], r"no columns left as features, found only \['kind'\]"),
        (frame()[:0], r"is empty: it has the columns \['height', .* but no rows"),
        (frame(kind=np.arange(ROWS)), r"100 different numbers in 100 rows.*--task regression"),
        (frame(kind=[f"k{row}" for row in range(ROWS)]), r"cannot split 100 rows of 100 classes"),
        (frame().rename(columns={"age": ""}), r"column without a name \('Unnamed: 1'\).*index=False"),
    ],
)
def test_unusable_data_is_refused_with_the_column_and_the_row(tmp_path: Path, table: Any, message: str) -> None:
    path = written(tmp_path / "a.csv", table)
    with pytest.raises(ValueError, match=rf"a\.csv.*{message}"):
        load_table(path, 0, "kind", max_categories=99)


def test_columns_of_unsupported_types_are_named(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 1, 1)
    for column, kind in ((pd.Series([day] * ROWS), "datetime64"), (pd.Series([[1, 2]] * ROWS), "mixed")):
        path = written(tmp_path / "a.parquet", frame(odd=column))
        with pytest.raises(ValueError, match=rf"column 'odd' holds {kind} values, .*drop=\['odd'\]"):
            read_table(path, "kind")


@pytest.mark.parametrize("asked", [{"target": "species"}, {"target": "kind", "drop": ["species"]}])
def test_a_missing_column_is_reported_with_the_existing_ones(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"has no column 'species', found \['height', 'age', .*'kind'\]"):
        load_table(written(tmp_path / "a.csv"), 0, **asked)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"\n\n", "could not be read as .csv"),
        ("a.csv", b"x,kind\n1,a,3\n2,b,4\n", "could not be read as .csv"),
        ("a.csv", b'x,kind\n"1,a\n', "could not be read as .csv"),
        ("a.csv", b"x,kind\n\xff\xfe,a\n", "could not be read as .csv"),
        ("a.csv.gz", b"x,kind\n1,a\n", "could not be read as .csv.gz"),
        ("a.csv.gz", gzip.compress(b"x,kind\n1,a\n" * 99, mtime=0)[:-9], "could not be read as .csv.gz"),
        ("a.parquet", b"x,kind\n1,a\n", "could not be read as .parquet"),
        ("a.xlsx", b"x", "its name must end with .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .pq"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_table(tmp_path / name, 0, "kind")


def test_a_missing_file_or_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.csv"):
        load_table(tmp_path / "none.csv", 0, "kind")
    path = written(tmp_path / "a.csv")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[data\]'"):
        load_table(path, 0, "kind")


def test_missing_values_are_filled_in_from_training_rows_where_asked_for(tmp_path: Path) -> None:
    height = frame()["height"].where(np.arange(ROWS) % 5 != 0)
    colour = frame()["colour"].where(np.arange(ROWS) % 10 != 0)
    path = written(tmp_path / "a.csv", frame(height=height, colour=colour))
    said = (
        r"column 'height' has no value in 20 of 100 rows.*missing='median' \(--data-option missing=median\) or 'fill'"
    )
    with pytest.raises(ValueError, match=said):
        load_table(path, 0, "kind")
    names = read_table(path, "kind", missing="fill").schema.feature_names
    assert names == (
        "height", "height=missing", "age", "smokes", "colour=blue", "colour=green", "colour=missing", "colour=red"
    )  # fmt: skip
    splits = load_table(path, 0, "kind", missing="fill")
    known = splits.train.values[splits.train.values[:, 1] == 0, 0]
    for part in (splits.train, splits.valid, splits.test):
        age = part.values[:, 2].numpy().astype(int)
        absent = age % 5 == 0
        np.testing.assert_array_equal(part.values[:, 1].numpy(), absent)
        np.testing.assert_allclose(part.values[:, 0].numpy()[absent], known.double().mean().item(), rtol=1e-6)
        np.testing.assert_array_equal(part.values[:, 0].numpy()[~absent], height[age[~absent]].to_numpy(np.float32))
        np.testing.assert_array_equal(part.values[:, 6].numpy(), age % 10 == 0)


def test_a_column_without_any_value_cannot_be_filled_in(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", frame(height=np.full(ROWS, np.nan)))
    with pytest.raises(ValueError, match="column 'height' has no value in any row; leave the column out"):
        load_table(path, 0, "kind", missing="fill")
    with pytest.raises(ValueError, match=r"missing must be refuse, mean, median, .* received 'some'"):
        load_table(path, 0, "kind", missing="some")


@pytest.mark.parametrize("values", [("1e300", "2e300", "3.0"), ("9007199254740994.0", "9007199254740996.0", "1.5e16")])
def test_classes_that_rounding_would_merge_are_refused(values: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    path.write_text("a,y\n" + "".join(f"{row},{values[row % 3]}\n" for row in range(60)))
    with pytest.raises(ValueError, match="numbers above 2\\*\\*53 are rounded"):
        read_table(path, "y")


def test_classes_beyond_the_range_of_signed_numbers_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    path.write_text("a,y\n" + "".join(f"{row},{18446744073709551615 - row % 3}\n" for row in range(60)))
    assert read_table(path, "y").schema.classes == tuple(str(18446744073709551613 + n) for n in range(3))


@pytest.mark.parametrize("statistic", ["mean", "median", "most_frequent"])
def test_a_statistic_of_the_training_rows_stands_where_a_number_is_missing(statistic: str, tmp_path: Path) -> None:
    age = pd.Series(np.arange(ROWS) // 3).where(np.arange(ROWS) % 5 != 0)
    path = written(tmp_path / "a.csv", frame(age=age))
    splits = load_table(path, 0, "kind", missing=statistic)
    assert splits.train.features == 6, "no indicator was asked for"
    assert splits.schema is not None
    fill = next(column.fill for column in splits.schema.columns if column.name == "age")
    table = frame(age=age)
    trained = np.isin(table["height"].to_numpy(np.float32), splits.train.values[:, 0].numpy())
    known = age[trained].dropna()
    expected = {"mean": known.mean(), "median": known.median(), "most_frequent": known.mode()[0]}[statistic]
    assert fill == pytest.approx(expected, rel=1e-6)
    filled = splits.test.values[:, 1]
    assert int((filled == np.float32(fill)).sum()) >= 1
