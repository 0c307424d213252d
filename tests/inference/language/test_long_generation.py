"""Long generation against float64, for one sequence and several, and weights that are mapped from their file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dynamicgate.inference import CompiledModel
from dynamicgate.inference.language.calls import Generation, Inputs
from dynamicgate.inference.language.plan import WHOLE
from dynamicgate.inference.language.saving import native_decoder
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.verify import TOLERANCE
from dynamicgate.ops import native
from tests.inference.language.models import gpt, quickly

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")

PROMPT, GENERATED = 8, 256


@pytest.fixture(autouse=True)
def _native(take: Callable[[str], None]) -> None:
    take(WHOLE)


@pytest.mark.parametrize("sequences", [1, 4])
def test_256_tokens_are_those_of_float64(sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamicgate.inference.language.verify.MOST_SEQUENCES", sequences)
    model = gpt(seed=3)
    ids = torch.randint(50, (sequences, PROMPT), generator=torch.Generator().manual_seed(5))
    reference = LanguageReference(model, Inputs((ids,)), "list", generated=GENERATED)
    fast = quickly(model, ids)
    verified = reference.verify(fast.body)
    assert verified is not None, "most positions can be compared"
    assert verified.rows + verified.near_threshold == sequences * (2 * PROMPT + GENERATED - 1)
    assert verified.error <= TOLERANCE
    assert reference.tokens is not None
    assert reference.tokens.shape == (sequences, PROMPT + GENERATED)
    generation, past = Generation(fast.body, "list"), 0
    excused = torch.zeros(sequences, dtype=torch.bool)
    too_close = 0
    for step in reference.steps:
        until = past + step.scores.shape[1]
        got = generation.step(reference.tokens[:, past:until])[:, -1]
        assert step.near is not None
        excused |= step.near.any(1)
        want, past = step.scores[:, -1], until
        best = want.topk(2).values
        close_call = best[:, 0] - best[:, 1] < TOLERANCE * want.abs().max()
        too_close += int(close_call.sum())
        assert bool(((got.argmax(-1) == want.argmax(-1)) | close_call | excused).all())
    assert too_close < 0.01 * sequences * GENERATED
    assert int(excused.sum()) <= sequences // 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_mapped_from_their_file_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    ids = torch.randint(50, (1, 12))
    fast = quickly(gpt(width=256), ids)
    fast.save(path)
    again = CompiledModel.load(path)
    _, decoder = native_decoder(again.body)
    assert torch.equal(again(ids), fast(ids))
    mapped = addresses_of(path)
    assert mapped
    for tensor in (decoder.weights, decoder.program, decoder.embedding, decoder.packed.weights):
        assert tensor is not None
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        assert any(start <= first and last <= end for start, end in mapped)
    own = native_decoder(fast.body)[1].weights.data_ptr()
    assert not any(start <= own < end for start, end in mapped)


def addresses_of(path: Path) -> list[tuple[int, int]]:
    """Where this process has mapped a file."""
    found: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith(str(path.resolve())):
            start, _, end = line.split()[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
