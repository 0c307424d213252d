"""Gates alone against a narrow network, and the oracle beside them."""

from __future__ import annotations

import torch
from experiments.frontier import gate_alone
from experiments.frontier.comparisons import Entries
from experiments.frontier.oracle import KeepsLargest

import dynamicgate as dg
from tests.experiments.test_frontier import entry


def test_the_oracle_lets_the_units_go_on_that_add_most_to_the_next_layer() -> None:
    dense = dg.nn.GatedMLP((4, 6, 3))
    x = torch.randn(50, 4)
    assert torch.equal(KeepsLargest(dense, (6,))(x), dense(x)), "all of them are the dense network"
    first, last = dense.layers
    hidden = first(x).relu()
    best = (hidden.abs() * last.weight.norm(dim=0)).topk(2, dim=1).indices  # type: ignore[operator, union-attr]
    kept = torch.zeros_like(hidden).scatter(1, best, hidden.gather(1, best))
    torch.testing.assert_close(KeepsLargest(dense, (2,))(x), last(kept))


def test_the_page_shows_the_oracle_beside_the_gate() -> None:
    found: dict[str, Entries] = {"digits": {("gate", 0.1): entry(0.8, 0.9), ("small", 0.1): entry(0.7, 0.9)}}
    shown = gate_alone.gate_against_small(found, {"digits": {("oracle", 0.1): entry(0.9, 0.9)}})
    assert "| digits | 0.1 | +5.00 ± 63.53 | 0 of 0 | +5.00 ± 63.53 | +10.00 ± 127.06 |" in shown
    assert "| +5.00 ± 63.53 | – |" in gate_alone.gate_against_small(found, {}), "there is no oracle"
    assert "no more than chance" not in shown, "the gate is not lower"


def test_where_the_gate_is_lower_the_page_says_whether_the_oracle_finds_anything() -> None:
    found: dict[str, Entries] = {"digits": {("gate", 0.1): entry(0.6, 0.8), ("small", 0.1): entry(0.7, 0.9)}}
    for oracle, said in ((entry(0.71, 0.89), True), (entry(0.8, 1.0), False)):
        shown = gate_alone.gate_against_small(found, {"digits": {("oracle", 0.1): oracle}})
        assert "Lower: digits at 0.1; beyond the 95 % interval: 1." in shown
        assert ("At digits 0.1 the oracle gains +0.00 ± 12.71: no more than chance." in shown) is said


def test_the_page_shows_what_is_left_of_the_gate_with_one_mask_for_all_inputs() -> None:
    gates = [{"kind": "dynamic"}, {"kind": "static"}]
    entries: Entries = {
        ("gate", 0.1): entry(0.9, 0.9, gates=gates, accuracy_of_mean_mask=0.7), ("small", 0.1): entry(0.8, 0.8),
    }  # fmt: skip
    shown = gate_alone.gate_against_small({"digits": entries}, {})
    assert "| digits | 0.1 | +10.00 ± 0.00 | 2 of 4 | -10.00 ± 0.00 | – |" in shown


def test_gates_alone_are_compared_with_a_narrow_network() -> None:
    entries: Entries = {
        ("gate", 0.1): entry(0.9, 0.9), ("small", 0.1): entry(0.8, 0.8), ("gate", 0.2): entry(0.7, 0.7),
        ("small", 0.2): entry(0.8, 0.8),
    }  # fmt: skip
    text = gate_alone.gate_against_small({"clouds": entries}, {})
    assert "in 1 of 2 cells at 0.1 and 0.2. Lower: clouds at 0.2; beyond the 95 % interval: 1." in text
