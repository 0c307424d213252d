"""Results in a prompt and in a notebook: one short line, and the table that `print` shows."""

from __future__ import annotations

import torch

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.inference.plan import Plan
from dynamicgate.lab.datasets.splits import Splits


def shown(result: object) -> tuple[str, str]:
    return repr(result), result._repr_html_()  # type: ignore[attr-defined]


def test_results_have_a_short_repr_and_their_text_in_a_notebook() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    model = dg.nn.GatedMLP((8, 16, 3), dg.GateConfig(net="linear"))
    history = dg.fit(model, (x, y), valid=(x, y), epochs=2, batch=16, budget=dg.Budget(target=0.9), show=False)
    measured = dg.measure(model, (x, y))
    plan = dg.compile(model, x, batches=(1, 4), seconds=0.02).plan
    part = Arrays(x, y)
    splits = Splits("mine", part, part, part, 3, 0.0, 1.0, ("a", "b", "<c>"))
    for result in (history, measured, plan, splits):
        brief, html = shown(result)
        assert brief.startswith(f"<{type(result).__name__}: ")
        assert len(brief) < 200, brief
        assert "\n" not in brief
        assert html.startswith("<pre")
        assert str(result).splitlines()[0].split()[0] in html
    assert "8 steps in" in repr(history)
    assert "final: loss" in str(history)
    assert repr(measured).endswith(f"relative {measured.relative:.4f}, 64 samples>")
    assert "x dense at batch 4" in repr(plan)
    assert repr(splits) == "<Splits: mine, 64 train, 64 valid, 64 test, 8 features, 3 classes>"
    assert "&lt;c&gt;" in shown(splits)[1]


def test_an_empty_plan_says_that_nothing_changed() -> None:
    assert repr(Plan([])) == "<Plan: everything stays in torch>"
