"""What was asked of gated language models, and what the stored runs say to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from dynamicgate.gating.networks import count_of
from dynamicgate.lab.language.corpora import PLAIN
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.language.leads import Lead, bits_on_plain, leads
from experiments.language.opened import POINT, misses
from experiments.language.rows import Rows, last_part
from experiments.language.tables import EIGHT_EXPERTS, FOUR_EXPERTS, GATE

CERTAIN = 0.05  # a corrected p below it tells two models apart
BARELY = 1e-3  # above what is always open: up to this, all tokens open about equally many blocks of a layer
DENSE = ("dense 4d", "dense 8d")
TITLES = {"python": "Python source", "books": "books", "books-large": "books, d = 1024"}


Found = Mapping[str, Rows]
"""By table its finished runs."""


def shown_table(found: Found) -> str:
    """A row for each question, a column for each text."""
    models = {
        **{f"at least as good as {name}": (name,) for name in DENSE},
        "better than top-k": ("top-k 16d",),
        "better than the router of 1d": ("router 16d",),
        "better than the router of a block more": (FOUR_EXPERTS, EIGHT_EXPERTS),
        "better than the ReLU router": ("relu router 16d",),
    }
    texts = list(found.values())
    own = [leads(rows) for rows in texts]
    body = [[question, *(said_lead(lead, names) for lead in own)] for question, names in models.items()]
    plain = [leads(rows, bits_on_plain) if any(map(has_plain, rows.values())) else {} for rows in texts]
    body += [
        *(
            [f"at least as good as {name} on WikiText-2", *(said_lead(lead, (name,)) for lead in plain)]
            for name in DENSE
        ),
        ["no more training MACs than dense 4d", *map(said_training, texts)],
        ["budget met within a point", *map(said_budget, texts)],
        ["layers that only open what is always open", *map(said_floor, texts)],
    ]
    return markdown([f"asked of {GATE}", *(TITLES[name] for name in found)], body)


def has_plain(runs: list[Run]) -> bool:
    """Whether runs were measured on text that no model was trained on."""
    return any(PLAIN in run["quality"] for run in runs)


def said_lead(found: Mapping[str, Lead], names: tuple[str, ...]) -> str:
    """Better, worse, or not told apart, by bits per byte and corrected p."""
    lead = next((found[name] for name in names if name in found), None)
    if lead is None:
        return ABSENT
    if lead.p is None:
        return f"one seed: {lead.difference:+.4f} bits"
    numbers = f"{lead.difference:+.4f} bits, p {lead.p:.2g}"
    if lead.p >= CERTAIN:
        return f"not told apart: {numbers}"
    return f"{'better' if lead.difference > 0.0 else 'worse'}: {numbers}"


def said_training(rows: Rows) -> str:
    """Relative to the dense model with 4 d, by a count of MACs."""
    if GATE not in rows or "dense 4d" not in rows:
        return ABSENT
    ours, theirs = (fmean(run["macs"]["training"] for run in rows[name]) for name in (GATE, "dense 4d"))
    return f"{'yes' if ours <= theirs else 'no'}: {ours / theirs:.2f} of them"


def said_budget(rows: Rows) -> str:
    """The run that missed it most."""
    missed = misses(rows.get(GATE, []))
    if not missed:
        return ABSENT
    worst = max(missed, key=abs)
    return f"{'yes' if abs(worst) <= POINT else 'no'}: worst run {100 * worst:+.2f} points"


def said_floor(rows: Rows) -> str:
    """In how many of the layers of each run all tokens open equally many blocks."""
    runs = rows.get(GATE, [])
    if not runs:
        return ABSENT
    counts = [layers_at_floor(run) for run in runs]
    said = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{said} of {runs[0]['settings']['layers']}"


def layers_at_floor(run: Run) -> int:
    """How many layers open hardly more than the blocks that are always open."""
    always = always_open(run)
    return sum(rate <= always + BARELY for rate in run["quality"][last_part(run)]["open"])


def always_open(run: Run) -> float:
    """The blocks that are open for every token, as a fraction of all."""
    ffn = run["settings"]["ffn"]
    blocks = math.ceil(ffn["width"] * run["settings"]["features"] / ffn["block"])
    return count_of(ffn.get("always_open", 0), blocks) / blocks
