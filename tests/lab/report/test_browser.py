"""The page in a real browser: it renders, sorts, shows tooltips, fits a phone, has a dark mode, and logs no errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamicgate.lab.report import write_report
from tests.lab.report.browser import Browser, chromium, find_chromium
from tests.lab.report.sample_results import (
    ALL_MODELS,
    IN_STAGES,
    make_results,
    with_savings,
    write_sample,
    write_timings,
)

pytestmark = pytest.mark.skipif(
    find_chromium() is None,
    reason="no Chromium: install the distribution's package (apt-get install chromium) to test the page in a browser",
)

PAGE_MODELS = (*ALL_MODELS, *IN_STAGES)
ROWS = "[...document.querySelector('table').tBodies[0].rows]"
HEADINGS = "[...document.querySelectorAll('table')[0].tHead.rows[0].cells]"
SHOWN_PLOTS = "[...document.querySelectorAll('svg.plot')].filter((plot) => plot.checkVisibility())"
PARAMETERS = f"{HEADINGS}.find((heading) => heading.innerText === 'parameters')"  # 9610 < 10138, but not as words


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    assert path is not None
    with chromium(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = make_results(PAGE_MODELS, 2)
    results["runs"] = [with_savings(run, 0.2) for run in results["runs"]]
    return write_report(write_timings(write_sample(tmp_path_factory.mktemp("report"), results), results))


def centre_of(browser: Browser, selector: str) -> tuple[float, float]:
    """The centre of an element, once it is scrolled into view."""
    browser.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    x, y = browser.run(
        f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    return x, y


def tip(browser: Browser) -> str | None:
    return browser.run("document.querySelector('.tip').hidden ? null : document.querySelector('.tip').innerText")


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_renders_without_console_messages_and_fetches_nothing(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.console_messages() == []
    requested = browser.requests()
    assert requested[0].startswith("file:")
    assert all(url.startswith("data:") for url in requested[1:])
    plots = browser.run(f"{SHOWN_PLOTS}.map((plot) => plot.getBoundingClientRect().height)")
    assert len(plots) > 10
    assert min(plots) > 40, "no figure is empty"
    broken = "[...document.images].filter((image) => !image.naturalWidth).length"
    assert browser.run("document.images.length") > 0
    assert browser.run(broken) == 0
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 23, 26)" if dark else "rgb(253, 253, 251)")


@pytest.mark.parametrize("width", [320, 360, 768])
def test_a_narrow_page_does_not_scroll_sideways_but_its_tables_do(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    assert browser.run("document.documentElement.scrollWidth") == width
    wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    assert browser.run(wide) > 0


@pytest.mark.parametrize("width", [360, 390, 1280])
def test_every_chart_fits_and_is_shown_once(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    cut = f"{SHOWN_PLOTS}.filter((plot) => plot.getBoundingClientRect().right > {width}).length"
    assert browser.run(cut) == 0
    labels = browser.run(f"{SHOWN_PLOTS}.map((plot) => plot.getAttribute('aria-label'))")
    assert [label for label in labels if label.startswith("Accuracy against executed MACs on")] == [
        "Accuracy against executed MACs on digits, one point per run"
    ]
    letters = (
        f"Math.min(...{SHOWN_PLOTS}.map((plot) => plot.getBoundingClientRect().width / plot.viewBox.baseVal.width))"
    )
    assert browser.run(letters) > 0.6, "text of 13 pixels stays readable"


def test_the_headline_number_is_on_a_phone_without_scrolling(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=800)
    right = f"{HEADINGS}.find((heading) => heading.innerText === 'relative').getBoundingClientRect().right"
    assert browser.run(right) < 390


def test_the_contents_lead_to_every_section(browser: Browser, page: Path) -> None:
    browser.open(page)
    titles = browser.run("[...document.querySelectorAll('main > section > h2')].map((title) => title.innerText)")
    links = browser.run("[...document.querySelectorAll('nav a')].map((link) => link.innerText)")
    assert links == titles
    found = "[...document.querySelectorAll('nav a')].every((link) => document.querySelector(link.getAttribute('href')))"
    assert browser.run(found)


def test_a_click_sorts_by_number_and_a_second_click_reverses_the_order(browser: Browser, page: Path) -> None:
    browser.open(page)
    column = f"{ROWS}.map((row) => Number(row.cells[{PARAMETERS}.cellIndex].dataset.value))"
    before = browser.run(column)
    for direction in ("descending", "ascending"):
        browser.run(f"{PARAMETERS}.querySelector('button').click()")
        assert browser.run(column) == sorted(before, reverse=direction == "descending") != before
        assert browser.run(f"{HEADINGS}.map((heading) => heading.ariaSort).filter(Boolean)") == [direction]
    assert browser.console_messages() == []


def test_the_keyboard_sorts_too_and_text_is_sorted_alphabetically(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('table th button').focus()")
    browser.press("Enter")
    names = browser.run(f"{ROWS}.map((row) => row.cells[0].dataset.value)")
    assert names == sorted(PAGE_MODELS)


def test_a_mark_under_the_pointer_has_a_tooltip(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert tip(browser) is None
    browser.hover(*centre_of(browser, "svg.plot .mark.mean"))
    name, values = str(tip(browser)).split("\n")
    assert name.split()[0] in PAGE_MODELS
    assert "of the dense MACs" in values
    assert browser.run("document.querySelectorAll('svg.plot title').length") == 0, (
        "or the browser would show its own tooltip too"
    )
    browser.hover(2, 2)
    assert tip(browser) is None
    assert browser.console_messages() == []


def test_tooltips_stay_inside_a_narrow_window(browser: Browser, page: Path) -> None:
    browser.open(page, width=360, height=800)
    browser.run("document.querySelectorAll('svg.plot.narrow .heat')[9].focus()")
    box = "document.querySelector('.tip').getBoundingClientRect()"
    left, right = browser.run(f"[{box}.left, {box}.right]")
    assert 0 <= left < right <= 360


def test_a_figure_is_one_stop_of_the_tab_key_and_arrows_go_from_mark_to_mark(browser: Browser, page: Path) -> None:
    browser.open(page)
    stops = "[...document.querySelectorAll('svg.plot')].map((plot) => plot.querySelectorAll('[tabindex=\"0\"]').length)"
    assert set(browser.run(stops)) == {1}
    browser.run("document.querySelector('svg.plot [tabindex=\"0\"]').focus()")
    first = tip(browser)
    browser.press("ArrowRight")
    second = tip(browser)
    assert None is not first != second is not None
    assert browser.run("document.activeElement.getAttribute('aria-label')").replace(": ", "\n", 1) == second
    browser.press("ArrowLeft")
    assert tip(browser) == first
    browser.press("Escape")
    assert tip(browser) is None
    assert set(browser.run(stops)) == {1}


def test_arrow_down_in_a_heat_map_goes_to_the_next_class(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('svg.plot .heat').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.getAttribute('aria-label')").startswith("class 1, block ")


def test_a_printed_page_has_open_details_and_no_dark_colours(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page, dark=True)
    assert browser.pdf(tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert browser.run("[...document.querySelectorAll('details')].every((details) => details.open)")
    browser.open(page, dark=True, media="print")
    assert browser.run("getComputedStyle(document.documentElement).getPropertyValue('--ink')").strip() == "#1d2024"
