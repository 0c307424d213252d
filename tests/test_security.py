"""Each promise of SECURITY.md names tests that exist, and the bill of materials and the lock file are what they say."""

from __future__ import annotations

import re

from tools.sbom import bill

from tests.places import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def promises() -> dict[str, list[str]]:
    """The tests that each promise names."""
    part = TEXT.partition("## What is promised")[2].partition("\n## ")[0]
    found = re.split(r"^\d+\. ", part, flags=re.MULTILINE)[1:]
    return {text.splitlines()[0]: re.findall(r"`(tests/[\w/]+\.py::\w+)`", text) for text in found}


def test_each_promise_names_a_test_that_exists() -> None:
    found = promises()
    assert len(found) == 10
    assert [promise for promise, tests in found.items() if not tests] == []
    for name in (name for tests in found.values() for name in tests):
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_the_bill_of_materials_names_every_package_once_with_version_and_licence() -> None:
    found = bill()
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    names = [one["name"] for one in found["components"]]
    assert len(names) == len(set(names))
    assert {"torch", "numpy", "safetensors"} <= set(names)
    for one in found["components"]:
        assert one["version"]
        assert one["licenses"][0]["license"]["name"]
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
    known = {"dynamicgate", *names}
    assert all({one["ref"], *one["dependsOn"]} <= known for one in found["dependencies"])


def test_every_package_of_the_lock_file_has_a_version_and_checksums_and_the_pins_are_kept() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    one = re.compile(r'[\w.-]+==[\w.+!]+( ; platform_machine == "(x86_64|aarch64)")?( +--hash=sha256:[0-9a-f]{64})+')
    assert [line for line in lines if not one.fullmatch(line)] == []
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [pin for pin in pins if not any(line.startswith(f"{pin} ") for line in lines)] == []
