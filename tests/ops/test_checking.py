"""A program that does not fit its weights is refused before anything runs it, with kernels and without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dynamicgate.inference.cpu.layers import PackedLayers
from dynamicgate.ops import GateNet, chain, native
from dynamicgate.ops.chain import checking
from dynamicgate.ops.chain.packing import HEADER_WORDS, LAYER_WORDS, LINEAR_WORDS

LAST = HEADER_WORDS + LAYER_WORDS  # the words of the second layer
GATE = HEADER_WORDS + LINEAR_WORDS
VALUE = HEADER_WORDS + 3 * LINEAR_WORDS
TAIL = HEADER_WORDS + 4 * LINEAR_WORDS
Change = Callable[[torch.Tensor, int], None]


def set_word(at: int, value: int) -> Change:
    def change(program: torch.Tensor, _lines: int) -> None:
        program[at] = value

    return change


def behind_the_weights(at: int) -> Change:
    def change(program: torch.Tensor, lines: int) -> None:
        program[at] = lines + 4

    return change


CHANGES: dict[str, Change] = {
    "more outputs in the last layer than the result has": set_word(LAST + 2, 400),
    "a bias behind the end of the weights": behind_the_weights(LAST + 5),
    "weights behind the end of the weights": behind_the_weights(HEADER_WORDS + 4),
    "weights before their start": set_word(HEADER_WORDS + 4, -1),
    "more layers than words": set_word(1, 1 << 30),
    "no layer": set_word(1, 0),
    "more inputs than the layer": set_word(2, 4000),
    "an unknown layout": set_word(HEADER_WORDS, 10),
    "thresholds and a gate": set_word(HEADER_WORDS, 7),
    "an unknown activation": set_word(HEADER_WORDS + 7, 99),
    "a third map of the gate": set_word(TAIL, 3),
    "more blocks than logits": set_word(TAIL + 1, 5),
    "blocks of no unit": set_word(TAIL + 2, 0),
    "blocks that overlap": set_word(TAIL + 3, 0),
    "thresholds behind the weights": behind_the_weights(TAIL + 4),
    "more open blocks than there are": set_word(TAIL + 5, 99),
    "a scale that is not a number": set_word(TAIL + 6, 0x7FC00000),
    "a value of other inputs": set_word(VALUE + 1, 41),
    "a value without units": set_word(VALUE + 2, 0),
    "a value with more units": set_word(VALUE + 2, 80),
    "a value in another layout": set_word(VALUE, 1),
    "a value behind the weights": behind_the_weights(VALUE + 4),
    "a value with an activation": set_word(VALUE + 7, 1),
    "a gate of other inputs": set_word(GATE + 1, 41),
    "another number of words": set_word(5, 7),
}


def gated() -> chain.Packed:
    torch.manual_seed(0)
    gate = GateNet((torch.randn(4, 40),), (torch.randn(4),))
    value = (torch.randn(64, 40), torch.randn(64))
    first = chain.Layer(torch.randn(64, 40), torch.randn(64), "relu", 16, gate, "panels", False, *value)
    return chain.pack([first, chain.Layer(torch.randn(10, 64), torch.randn(10))])


def sparse(layout: str) -> chain.Packed:
    torch.manual_seed(0)
    mask = (torch.rand(4, 40) < 0.4).repeat_interleave(16, 0)
    return chain.pack([chain.Layer(torch.randn(64, 40) * mask, layout=layout)])


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_word_is_refused_with_a_sentence(name: str) -> None:
    packed = gated()
    chain.check_packed(packed)
    program = packed.program.clone()
    CHANGES[name](program, packed.weights.numel() // 16)
    with pytest.raises(ValueError, match=r"not a packed chain: \w+|a packed chain has"):
        chain.check_packed(packed._replace(program=program))
    with pytest.raises((ValueError, RuntimeError), match=r"same call of pack|features in each row"):
        chain.run(torch.randn(3, 40), packed._replace(program=program))


@pytest.mark.parametrize("layout", ["csr", "vectors", "columns"])
@pytest.mark.parametrize("what", ["an index", "a start", "the last start"])
def test_index_lists_that_point_outside_are_refused(layout: str, what: str) -> None:
    packed = sparse(layout)
    lists = int(packed.program[HEADER_WORDS + 6])
    groups = 64 if layout == "csr" else 4
    at = {"an index": lists + groups + 1, "a start": lists + 2, "the last start": lists + groups}[what]
    program = packed.program.clone()
    program[at] = 1 << 20 if what != "an index" else 0x0FFF0FFF
    with pytest.raises(ValueError, match="not a packed chain"):
        chain.check_packed(packed._replace(program=program))
    with pytest.raises((ValueError, RuntimeError), match="same call of pack"):
        torch.ops.dynamicgate.run_chain(torch.randn(3, 40), packed.weights, program, None, packed.outputs)


def test_tensors_of_another_kind_are_refused() -> None:
    packed = gated()
    for other in (packed._replace(weights=packed.weights.double()), packed._replace(program=packed.program.long())):
        with pytest.raises(ValueError, match="one list of float32 weights"):
            chain.check_packed(other)


def test_a_state_dict_with_another_program_is_refused() -> None:
    layers = PackedLayers(gated())
    state = layers.state_dict()
    state["program"] = state["program"].clone()
    state["program"][LAST + 2] = 400
    with pytest.raises(ValueError, match="not a packed chain"):
        layers.load_state_dict(state)


@pytest.mark.parametrize("name", list(CHANGES)[:8])
def test_without_kernels_a_changed_word_is_refused_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking.native, "missing", lambda: "not built")
    packed = gated()
    chain.check_packed(packed)
    program = packed.program.clone()
    CHANGES[name](program, packed.weights.numel() // 16)
    with pytest.raises(ValueError, match="not a packed chain"):
        chain.check_packed(packed._replace(program=program))


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_FUNCTIONS", (*native._FUNCTIONS, "dynamicgate_not_there_yet"))
    with pytest.raises(OSError, match="lacks dynamicgate_not_there_yet; install the package again"):
        native.library.__wrapped__()
