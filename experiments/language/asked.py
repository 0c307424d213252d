"""Which jobs a command asks for with --only."""

from __future__ import annotations

from collections.abc import Sequence

from dynamicgate.lab.runner import Job


def only(jobs: Sequence[Job], models: Sequence[str] | None) -> list[Job]:
    """The jobs of these models, None: of all. A name that no table has would run nothing, and is a mistake."""
    if models is None:
        return list(jobs)
    known = list(dict.fromkeys(job.model for job in jobs))
    unknown = [name for name in models if name not in known]
    if unknown or not models:
        raise ValueError(f"--only names unknown models {'; '.join(unknown) or '(none)'}: there are {'; '.join(known)}")
    return [job for job in jobs if job.model in models]
