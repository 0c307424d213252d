"""Rules of this repository, as tests."""

from __future__ import annotations

from tests.places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_no_source_file_is_a_room_for_everything() -> None:
    assert {path.name: lines for path in SOURCES if (lines := path.read_text("utf-8").count("\n")) > 320} == {}


def test_everything_public_is_exported_and_documented() -> None:
    import dynamicgate

    for name in dynamicgate.__all__:
        assert getattr(dynamicgate, name) is not None
        if name != "__version__":
            assert getattr(dynamicgate, name).__doc__, name
