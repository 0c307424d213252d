"""Texts that go on from one prompt share its cache until one of them writes behind it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from dynamicgate.inference.language.plan import WHOLE
from dynamicgate.inference.language.saving import native_decoder
from dynamicgate.ops import native
from tests.inference.language.models import gpt, quickly

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


@pytest.fixture(autouse=True)
def _native(take: Callable[[str], None]) -> None:
    take(WHOLE)


def test_the_room_behind_a_cache_is_given_away_once() -> None:
    fast = quickly(gpt(), torch.randint(50, (1, 12)))
    assert fast.plan.chosen == WHOLE
    _, decoder = native_decoder(fast.body)
    cache: list[tuple[Tensor, Tensor]] = []
    fast(torch.randint(50, (1, 12)), cache=cache)
    first = decoder._found(cache, 1, 13)
    assert first is not None
    assert first.data_ptr() == cache[0][0].data_ptr()
    assert decoder._found(cache, 1, 13) is None, "another has taken it, so this one copies"


def test_threads_that_go_on_from_one_prompt_do_not_mix_their_texts() -> None:
    fast = quickly(gpt(), torch.randint(50, (1, 12)))
    prompt, texts = torch.randint(50, (1, 12)), torch.randint(50, (4, 6))

    def scores(text: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        own = list(cache)
        return torch.cat([fast(token.view(1, 1), cache=own) for token in text], dim=1)

    for _ in range(5):
        cache: list[tuple[Tensor, Tensor]] = []
        fast(prompt, cache=cache)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda text, cache=cache: scores(text, cache), texts))
        for text, got in zip(texts, found, strict=True):
            alone: list[tuple[Tensor, Tensor]] = []
            fast(prompt, cache=alone)
            assert torch.equal(got, scores(text, alone))
