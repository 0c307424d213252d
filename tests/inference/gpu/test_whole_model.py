"""A whole model as one graph: which inputs stand for a number of tokens, and that nothing breaks the graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dynamicgate.inference.gpu import whole_model
from dynamicgate.inference.gpu.whole_model import (
    LAYERS,
    ONE_GRAPH,
    WholeModel,
    captures_of,
    choose_whole,
    compiled_for_one_shape,
    inputs_of_tokens,
)
from tests.inference.gpu.models import GATES, Compile, feed_forwards, model_with


@pytest.mark.parametrize(
    ("example", "tokens", "shape"),
    [
        (torch.zeros(8, 20), 3, (3, 20)),
        (torch.zeros(8, 20), 30, (30, 20)),
        (torch.zeros(4, 6, dtype=torch.long), 4, (4, 1)),
        (torch.zeros(4, 6, dtype=torch.long), 5, (1, 5)),
        (torch.zeros(4, 6, dtype=torch.long), 13, (3, 6)),
        (torch.zeros(4, 6, 20), 60, (10, 6, 20)),
        (torch.zeros(4, 1, dtype=torch.long), 9, (9, 1)),
    ],
)
def test_tokens_are_single_ones_first_and_then_whole_sequences(
    example: torch.Tensor, tokens: int, shape: tuple[int, ...]
) -> None:
    assert tuple(inputs_of_tokens(example, tokens).shape) == shape


@pytest.mark.parametrize("favourite", ["gated", "decode", "dense"])
def test_no_strategy_breaks_the_graph_of_the_whole_model(compile_as_on_gpu: Compile, favourite: str) -> None:
    x = torch.randn(64, 20)
    compiled = compile_as_on_gpu(model_with(GATES["linear"]), x, favourite)
    (layer,) = feed_forwards(compiled)
    assert layer.strategy_for(1).startswith(favourite)
    for rows in (1, 16, 64):
        one_graph = compiled_for_one_shape(compiled.body, backend="aot_eager")
        with torch.no_grad():
            torch.testing.assert_close(one_graph(x[:rows]), compiled(x[:rows]))


def test_many_shapes_do_not_use_up_what_torch_compiles_of_one_piece_of_code() -> None:
    body, compiled = nn.Linear(3, 2), 0

    def count(graph: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    for rows in range(2, 14):
        compiled_for_one_shape(body, backend=count)(torch.randn(rows, 3))
    assert compiled == 12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_the_fastest_way_runs_the_shapes_it_was_chosen_for(
    compile_as_on_gpu: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(64, 20)
    whole = compile_as_on_gpu(model_with(GATES["linear"]), x).body
    assert isinstance(whole, WholeModel)

    def invented(calls: Any, xs: Any, seconds: float, **_: Any) -> dict[str, float]:
        return {name: 1.0 if name == (ONE_GRAPH if len(xs[0]) == 16 else LAYERS) else 3.0 for name in calls}

    monkeypatch.setattr(whole_model, "time_calls", invented)
    with torch.no_grad():
        regimes, notes = choose_whole(whole, x, (1, 16), seconds=1.0, tolerance=1e-4)
        assert notes == []
        assert [(r.tokens, r.shape, r.chosen) for r in regimes] == [(1, (1, 20), LAYERS), (16, (16, 20), ONE_GRAPH)]
        assert notes == []
        assert list(whole.calls) == [(16, 20)]
        for rows in (1, 16, 33):
            torch.testing.assert_close(whole(x[:rows]), whole.body(x[:rows]))
        assert copy.deepcopy(whole).calls == {}
        assert whole.double().calls == {}


def test_a_model_that_cannot_be_one_graph_says_so_and_runs_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if float(x.sum()) > 0 else x

    monkeypatch.setattr(whole_model, "time_calls", lambda calls, *_, **__: dict.fromkeys(calls, 1.0))
    whole = WholeModel(Asks())
    regimes, notes = choose_whole(whole, torch.randn(4, 3), (2,), seconds=1.0, tolerance=1e-4)
    assert [r.chosen for r in regimes] == [LAYERS]
    assert len(notes) == 1
    assert notes[0].startswith("the model does not run as one graph: ")
    assert whole.calls == {}


def test_a_way_that_finds_no_memory_for_its_graph_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(call: Any, x: torch.Tensor) -> Any:
        if call == "small":
            return "captured"
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 9 GiB\nand so on")

    monkeypatch.setattr(whole_model, "CapturedCall", capture)
    ways: dict[str, Any] = {LAYERS: "large", ONE_GRAPH: "small"}
    found, notes = captures_of(ways, torch.zeros(1, 3), 4096)
    assert found == {"one graph, captured": "captured"}
    assert notes == [
        "layer by layer is not captured for 4,096 tokens: OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB"
    ]
