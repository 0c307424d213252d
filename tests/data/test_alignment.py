"""Tables in memory, brought into the form that a model's schema describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamicgate.data.alignment import encode_table, number_classes
from dynamicgate.data.columns import Missing, encode_column, fit_column, missing_option
from dynamicgate.data.schema import ABSENT, Schema

pd = pytest.importorskip("pandas")

TABLE = pd.DataFrame({"age": [1.0, 2.0, 3.0, 10.0], "site": ["b", "a", "b", "c"], "on": [True, False, True, True]})


def fitted(table: Any = TABLE, missing: Missing | None = None) -> Schema:
    columns = tuple(fit_column(table[name], "t", missing=missing) for name in table)
    return Schema("table", sum(len(c.features) for c in columns), 2, columns=columns, classes=("no", "yes"))


def test_the_order_of_columns_does_not_matter_and_others_are_ignored_and_named() -> None:
    schema = fitted()
    expected = encode_table(TABLE, schema)
    assert expected.notes == []
    assert expected.x.tolist()[3] == [10, 0, 0, 1, 1]
    other = encode_table(TABLE[["on", "site", "age"]].assign(more=7), schema)
    np.testing.assert_array_equal(other.x, expected.x)
    assert other.notes == ["not read by the model: 'more'"]


@pytest.mark.parametrize(
    ("text", "number", "category"),
    [("mean", 4.0, "b"), ("median", 2.5, "b"), ("most_frequent", 1.0, "b"), ("median+indicator", 2.5, "b")],
)
def test_missing_values_are_filled_in_with_what_the_training_rows_had(text: str, number: float, category: str) -> None:
    schema = fitted(missing=missing_option(text))
    new = pd.DataFrame({"age": [None, 5.0], "site": ["c", None], "on": [None, True]})
    found = encode_table(new, schema, "new")
    assert found.x[0, 0] == number
    assert found.x[1, 1:4].tolist() == [0, 1, 0]
    assert len(found.notes) == 3
    assert found.notes[0] == f"column 'age': 1 missing values filled in with {number}"
    with pytest.raises(ValueError, match=r"new: column 'age' has no value in 1 of 2 rows.*nothing to fill in"):
        encode_table(new, fitted(), "new")


def test_an_indicator_says_where_a_value_is_missing() -> None:
    table = TABLE.assign(age=[1.0, None, 3.0, 11.0], site=["b", None, "b", "c"])
    schema = fitted(table, missing_option("median+indicator"))
    assert schema.feature_names == ("age", f"age={ABSENT}", "site=b", "site=c", f"site={ABSENT}", "on")
    assert encode_table(table, schema).x[1].tolist() == [3, 1, 0, 0, 1, 0]


def test_only_training_rows_say_what_is_filled_in() -> None:
    column = pd.Series([1.0, 3.0, 900.0, None], name="a")
    read = fit_column(column, "t", missing=Missing("mean"), train=np.array([0, 1, 3]))
    assert read.fill == 2.0
    text = pd.Series(["x", "y", "y", "y", None], name="a")
    assert fit_column(text, "t", missing=Missing("mean"), train=np.array([0])).fill == "x"


def test_a_missing_column_is_refused_or_filled_in_where_allowed() -> None:
    with pytest.raises(ValueError, match=r"lacks 1 of the 3 columns .*: 'site'; the model has nothing to fill in"):
        encode_table(TABLE.drop(columns="site"), fitted(), allow=["missing-columns"])
    schema = fitted(missing=Missing("median"))
    with pytest.raises(ValueError, match=r"lacks 1 of the 3 columns .*--allow missing-columns"):
        encode_table(TABLE.drop(columns="site"), schema)
    found = encode_table(TABLE.drop(columns="site"), schema, allow=["missing-columns"])
    assert found.x[0].tolist() == [1, 0, 1, 0, 1]
    assert found.notes == ["filled in 1 of the 3 columns that the model reads: 'site'"]
    with pytest.raises(ValueError, match="has none of the columns"):
        encode_table(pd.DataFrame({"x": [1]}), schema, allow=["missing-columns"])


def test_whole_numbers_are_one_category_however_a_file_stores_them() -> None:
    read = fit_column(pd.Series(["7", "9", "x", "y"], name="code"), "t")
    stored = encode_column(pd.Series([7.0, 9.0], name="code"), read, "new")
    assert stored.tolist() == encode_column(pd.Series([7, 9], name="code"), read, "new").tolist()
    assert stored.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pd.concat([TABLE, TABLE[["age"]]], axis=1)
    with pytest.raises(ValueError, match="two columns named 'age'"):
        encode_table(twice, fitted())


def test_classes_are_numbered_as_the_model_does() -> None:
    schema = fitted()
    assert number_classes(["yes", "yes"], schema, "y").y.tolist() == [1, 1]
    assert number_classes(["yes", "yes"], schema, "y").notes == ["classes of the model without a row here: 'no'"]
    with pytest.raises(ValueError, match="2 of 3 rows are of 'maybe', 'never', which the model cannot answer"):
        number_classes(["yes", "maybe", "never"], schema, "y")
    assert number_classes(["yes", "maybe"], schema, "y", allow=["new-classes"]).y.tolist() == [1, -1]
    with pytest.raises(ValueError, match="2 of 2 rows are of 'a', 'b'"):
        number_classes(["a", "b"], schema, "y", allow=["new-classes"])
