"""What an export wrote, and what it could not skip."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dynamicgate.choices import Form as Form
from dynamicgate.files import write_atomically
from dynamicgate.inference.plan import Verification

FORMS = ("auto", "skip", "masks")


@dataclass(frozen=True)
class Exported:
    """One file that was written and verified."""

    path: Path
    forms: list[str]
    """For each run of linear layers how it was written, in words."""
    notes: list[str] = field(default_factory=list)
    """What stays at the cost of the dense model, and why."""
    verification: Verification | None = None
    """How the file compares with the model; None for inputs or outputs that are more than one tensor, which are
    compared too, but not with rows near a threshold left out."""

    def __str__(self) -> str:
        lines = [f"wrote {self.path}", *(f"  {form}" for form in self.forms), *(f"  note: {n}" for n in self.notes)]
        if self.verification is not None:
            v = self.verification
            lines.append(
                f"  verified on {v.rows} rows: off by at most {v.error:.1e} of the largest output"
                + (f"; {v.near_threshold} rows near a threshold left out" if v.near_threshold else "")
            )
        else:
            lines.append("  verified on the example, no row left out")
        return "\n".join(lines)


def check_form(form: str) -> None:
    """Raise ValueError for a form that is not known."""
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, received {form!r}")


def copy_atomically(draft: Path, path: Path) -> None:
    """Put a file that was verified in its place in one move."""
    write_atomically(path, lambda temporary: _copy(draft, temporary))


def _copy(draft: Path, path: Path) -> None:
    shutil.copyfile(draft, path)
