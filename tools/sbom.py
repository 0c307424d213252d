"""`python -m tools.sbom FILE`: a software bill of materials (CycloneDX 1.5, JSON) of the installed packages.

Made from the metadata that pip installed: names, versions, licences, checksums of their records, and who needs whom.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from datetime import datetime, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from dynamicgate._version import __version__


def bill() -> dict[str, Any]:
    """The bill as a JSON object."""
    found = {_name(one.metadata["Name"]): one for one in distributions() if one.metadata["Name"]}
    own = found.pop("dynamicgate", None)
    needs = {name: _needs(one, found) for name, one in found.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "component": {
                "type": "library",
                "bom-ref": "dynamicgate",
                "name": "dynamicgate",
                "version": __version__,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [_component(name, one) for name, one in sorted(found.items())],
        "dependencies": [
            {"ref": "dynamicgate", "dependsOn": sorted(found) if own is None else _needs(own, found)},
            *({"ref": name, "dependsOn": needs[name]} for name in sorted(needs)),
        ],
    }


def _component(name: str, one: Distribution) -> dict[str, Any]:
    about = one.metadata
    licence = about.get("License-Expression") or about.get("License") or ""
    if not licence or len(licence) > 100:  # some put the whole text there
        classes = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
        licence = classes[0].rsplit(" :: ", 1)[-1] if classes else "unknown"
    record = one.read_text("RECORD") or ""
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": one.version,
        "purl": f"pkg:pypi/{name}@{one.version}",
        "licenses": [{"license": {"name": licence}}],
        # of the list of all its files and their checksums
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(record.encode()).hexdigest()}],
    }


def _needs(one: Distribution, found: dict[str, Distribution]) -> list[str]:
    names = {_name(match[0]) for text in one.requires or [] if (match := re.match(r"[\w.-]+", text))}
    return sorted(names & found.keys())


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
