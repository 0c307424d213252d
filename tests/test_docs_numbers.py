"""Every number in hand-written pages that states a result rests on a committed one: tests/docs_numbers.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import docs_numbers as numbers
from tests.places import ROOT


def listed(page: str) -> set[str]:
    follows = {statement.text for statement in numbers.FOLLOWS if statement.page == page}
    return follows | numbers.NO_RESULT.get(page, {}).keys()


@pytest.mark.parametrize("path", numbers.pages(), ids=lambda path: path.stem)
def test_every_stated_result_is_in_the_results(path: Path) -> None:
    page, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    unbacked = [
        found.text
        for found in numbers.statements(text, page)
        if found.text not in listed(page) and not numbers.is_found(found, text)
    ]
    assert unbacked == [], (
        f"{page} states numbers that no result backs: take them from a result file and name that file on the page, or "
        "list them in tests/docs_numbers.py with the calculation or the reason"
    )


@pytest.mark.parametrize("statement", numbers.FOLLOWS, ids=lambda statement: f"{statement.page} {statement.text}")
def test_what_follows_from_results_still_follows(statement: numbers.Statement) -> None:
    values = numbers.FOLLOWS[statement]()
    assert len(values) == len(statement.numbers)
    for number, value in zip(statement.numbers, values, strict=True):
        assert f"{value:.{len(number.partition('.')[2])}f}" == number


def test_nothing_is_listed_that_no_page_says() -> None:
    said = {
        (found.page, found.text)
        for path in numbers.pages()
        for found in numbers.statements(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    }
    known = {(statement.page, statement.text) for statement in numbers.FOLLOWS}
    known |= {(page, text) for page, texts in numbers.NO_RESULT.items() for text in texts}
    assert known - said == set()


def test_statements_are_found_in_prose_and_nowhere_else() -> None:
    text = (
        "It is 1.37 times as fast, 12\nto 14 % smaller, at 97.31 ± 0.12, and has 0.412 of the\ndense MACs; see 3.2.1.\n"
        "```\n99 %\n```\n`5 %` <!-- results:a -->\n8.31 times\n<!-- /results:a --> in 2026, 40 x 3, v2.13.0"
    )
    assert [found.text for found in numbers.statements(text, "x")] == [
        "1.37 times", "12 to 14 %", "97.31 ± 0.12", "0.412 of the dense MACs", "40 x",
    ]  # fmt: skip
    assert list(numbers.statements(f"<!-- {numbers.GENERATED} --> 8 %", "x")) == []


def test_an_invented_number_is_not_found_and_a_stored_one_is() -> None:
    text = "see `experiments/results/controller-digits.json`"
    assert numbers.is_found(numbers.Statement("x", "73.8 %"), text)
    assert not numbers.is_found(numbers.Statement("x", "73.8 %"), "no file is named")
    assert not numbers.is_found(numbers.Statement("x", "73.71 %"), text)
    assert not numbers.is_found(numbers.Statement("x", "7 %"), text), "too short to be looked up"


def test_a_number_of_another_page_backs_nothing() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    accuracy = numbers.Statement("x", next(iter(re.findall(r"\d\d\.\d\d ± \d\.\d\d", page))))
    assert numbers.is_found(accuracy, page)
    assert not numbers.is_found(accuracy, "a page without results")
