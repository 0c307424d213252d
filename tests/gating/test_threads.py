"""A gated model can be called from several threads, and layer by layer, without mixing up decisions."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dynamicgate as dg
from tests.fuzz.threads import gated_model, wrong_calls


@pytest.mark.parametrize("recorded", [False, True])
def test_eight_threads_get_the_answers_of_one(recorded: bool) -> None:
    model = gated_model()
    assert wrong_calls(model, 40, recorded=recorded) == []
    assert all(gate.watcher is None for gate in dg.named_gates(model).values())


def test_producers_that_ran_twice_are_refused_unless_their_decisions_agree() -> None:
    model, x = gated_model(), torch.randn(2, 32)
    first, _ = model[1](model[0](x[:1])), model[1](model[0](x[1:]))
    with pytest.raises(RuntimeError, match="ran more than once"):
        model[2](first)
    assert torch.equal(model(x), model(x))  # and the model is as before
    for _ in range(2):
        hidden = model[1](model[0](x[:1]))
    assert model[2](hidden).shape == (1, 128)


def test_a_producer_that_ran_alone_or_a_failed_pass_changes_nothing() -> None:
    model, x = gated_model(), torch.randn(5, 32)
    expected = model(x)
    for other in torch.randn(3, 5, 32):
        model[0](other)
        assert torch.equal(model(x), expected)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model[:2](torch.randn(5, 32)) @ torch.ones(3)
        assert torch.equal(model(x), expected)


def test_a_copy_made_while_decisions_are_recorded_is_not_watched() -> None:
    model, x = gated_model(), torch.randn(5, 32)
    model[0](x)  # a decision waits for its consumer
    with dg.usage(model) as used:
        model(x)
        copied, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for other in (copied, again):
            assert torch.equal(other(x), model(x))
            assert all(gate.watcher is None for gate in dg.named_gates(other).values())
    assert len(used["2"].open) == 15


def test_counting_inside_a_recording_adds_no_rows() -> None:
    model, x = gated_model(), torch.randn(6, 32)
    budget = dg.Budget(target=0.5)
    budget.apply_(model.train(), 0.0)
    with dg.usage(model) as used:
        model(x)
        budget.step(used, 0.0)
        assert len(used["2"].open) == 6


def test_checkpointed_passes_are_counted_once_and_reentrant_ones_are_refused() -> None:
    model, x, y = gated_model().train(), torch.randn(6, 32), torch.arange(6)
    budget = dg.Budget(target=0.5)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        (loss + budget.step(used, 0.0)).backward()
    assert len(used["2"].open) == 6
    budget.apply_(model, 0.1)
    with dg.usage(model) as used:
        checkpoint(model, x.requires_grad_(), use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        budget.step(used, 0.1)


def test_a_compiled_graph_records_and_decides_as_before() -> None:
    model, x = gated_model(), torch.randn(6, 32)
    expected = model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), expected)
        with dg.usage(compiled) as used:
            compiled(x[:4])
    assert len(used["2"].open) == 4
    assert torch.equal(model(x), expected)


def test_threads_do_not_see_each_others_stages_or_recordings() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 7)).eval()
    dg.gate_(model, dg.GateConfig(kind="stages", stages=(0.5, 0.5)))
    assert wrong_calls(model, 20, recorded=True) == []
