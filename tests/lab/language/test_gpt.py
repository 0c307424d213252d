"""The GPT: positions see only what is before them, and a cache changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dynamicgate as dg
from dynamicgate.lab.language.gpt import GPT, Cache, GPTConfig, ffn_sites
from tests.lab.language.conftest import SIZES


def model(**changed: object) -> GPT:
    torch.manual_seed(0)
    return GPT(replace(SIZES, width=48, **changed)).double().eval()


def test_a_position_does_not_see_what_comes_later() -> None:
    ids = torch.randint(256, (2, 11))
    gpt = model()
    changed = ids.clone()
    changed[:, 7] += 1
    changed %= 256
    before, after = gpt(ids), gpt(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("pieces", [(11,), (5, 6), (1,) * 11, (7, 1, 1, 2)])
def test_a_cache_gives_the_same_scores(pieces: tuple[int, ...]) -> None:
    gpt = dg.gate_(model(), dg.GateConfig(block=16, net="linear", open=0.6), where=ffn_sites(model()))
    ids = torch.randint(256, (3, 11))
    cache: Cache = []
    parts = [gpt(part, cache) for part in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), gpt(ids), rtol=1e-9, atol=1e-9)


def test_positions_matter() -> None:
    ids = torch.tensor([[5, 9, 5, 9, 9]])
    scores = model()(ids)[0]
    assert not torch.allclose(scores[3], scores[4])


def test_sites_are_those_of_all_feed_forward_layers() -> None:
    gpt = model()
    dg.gate_(gpt, dg.GateConfig(block=16), where=ffn_sites(gpt))
    assert list(dg.named_gates(gpt)) == ["blocks.0.ffn.down", "blocks.1.ffn.down"]


def test_a_saved_model_gives_the_same_scores(tmp_path) -> None:
    gpt = model()
    dg.gate_(gpt, dg.GateConfig(block=16), where=ffn_sites(gpt))
    dg.save(gpt, tmp_path / "gpt.safetensors", notes={"gpt": gpt.config.to_dict()})
    loaded = dg.load(tmp_path / "gpt.safetensors", into=GPT(gpt.config).double())
    ids = torch.randint(256, (2, 9))
    assert torch.equal(loaded(ids), gpt(ids))


def test_odd_heads_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="multiple of 20, received 48"):
        GPTConfig(vocabulary=9, features=48, layers=1, heads=10, width=4, context=4)
