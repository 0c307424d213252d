"""`compile` with tokens: whole decoders and single layers, against float64, with caches, gates of all kinds, files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.language.calls import Inputs, inputs_of_call
from dynamicgate.inference.language.packed import decoder_of, stored_in
from dynamicgate.inference.language.pipeline import native_body
from dynamicgate.inference.language.plan import BY_LAYER, HALVES, TORCH, WHOLE, LanguagePlan
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.lab.language.gpt import ffn_sites
from dynamicgate.ops import native
from tests.inference.language.models import close, gpt, quickly

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


@pytest.mark.parametrize("bias", [0.0, 50.0, -50.0], ids=["half open", "all open", "all closed"])
@pytest.mark.parametrize("sizes", [{}, {"width": 77}, {"features": 24, "heads": 2, "vocabulary": 33}], ids=str)
def test_a_gpt_runs_as_a_whole_and_like_its_model(bias: float, sizes: dict[str, int]) -> None:
    model = gpt(bias=bias, **sizes)
    ids = torch.randint(33, (2, 19))
    fast = quickly(model, ids)
    assert isinstance(fast.plan, LanguagePlan)
    assert WHOLE in fast.plan.regimes[0].times
    assert fast.plan.notes == []
    with torch.no_grad():
        wide = copy_in_float64(model)
        assert close(fast(ids), wide(ids))
        mine: list[Any] = []
        theirs: list[Any] = []
        for first, last in ((0, 5), (5, 6), (6, 7), (7, 19)):
            assert close(fast(ids[:, first:last], cache=mine), wide(ids[:, first:last], theirs))
        assert mine[0][0].shape == theirs[0][0].shape
        assert close(mine[1][1], theirs[1][1])


@pytest.mark.parametrize("net", ["linear", "low-rank", "two-layer"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_gates_and_activations_of_all_kinds(net: str, activation: str) -> None:
    model = gpt(net=net, activation=activation, width=96)
    ids = torch.randint(50, (1, 12))
    with torch.no_grad():
        assert close(quickly(model, ids)(ids), copy_in_float64(model)(ids))


COMPETING = {
    "softmax": {"scale": "softmax"},
    "relu": {"scale": "relu"},
    "softmax, always one": {"scale": "softmax", "always_open": 1},
    "router": {"kind": "router", "top_k": 2},
}


@pytest.mark.parametrize("name", COMPETING)
def test_blocks_that_compete_run_as_a_whole(name: str) -> None:
    model = gpt(gates=False, width=96)
    dg.gate_(model, dg.GateConfig(block=16, net="linear", **COMPETING[name]), where=ffn_sites(model))  # type: ignore[arg-type]
    ids = torch.randint(50, (2, 12))
    fast = quickly(model, ids)
    assert fast.plan.notes == []
    assert WHOLE in fast.plan.regimes[0].times
    with torch.no_grad():
        assert close(native_body(parts_of(model))(ids), copy_in_float64(model)(ids))


def test_one_open_expert_runs_layer_by_layer() -> None:
    model = gpt(gates=False, width=96)
    dg.gate_(model, dg.GateConfig(block=16, net="linear", kind="router", top_k=1), where=ffn_sites(model))
    ids = torch.randint(50, (2, 12))
    fast = quickly(model, ids)
    assert "its probability among all experts" in fast.plan.notes[0]
    with torch.no_grad():
        assert close(fast(ids), copy_in_float64(model)(ids))


def test_a_static_gate_is_sliced_away() -> None:
    model = gpt(gates=False)
    sites = [site for site in dg.find_sites(model) if site.name.endswith("ffn.down")]
    dg.gate_(model, dg.GateConfig(kind="static", block=16), where=sites)
    for gate in dg.named_gates(model).values():
        gate.net.bias.data[::2] = -9.0
    ids = torch.randint(50, (1, 12))
    fast = quickly(model, ids)
    with torch.no_grad():
        assert close(fast(ids), model(ids))
    assert fast.plan.memory < 0.95


def test_a_model_without_gates_has_a_dense_plan() -> None:
    model = gpt(gates=False)
    ids = torch.randint(50, (1, 12))
    fast = quickly(model, ids)
    assert WHOLE in fast.plan.regimes[1].times
    with torch.no_grad():
        assert close(fast(ids), model(ids))


def rounded(model: nn.Module) -> nn.Module:
    """The model with weights that bfloat16 holds, as a checkpoint in bfloat16 has them."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.bfloat16().float()
    return model


@pytest.mark.parametrize("sizes", [{}, {"width": 77}, {"features": 24, "heads": 2, "vocabulary": 33}], ids=str)
def test_weights_that_bfloat16_holds_are_stored_in_half_of_the_bytes_and_give_the_same_bits(
    sizes: dict[str, int],
) -> None:
    model = rounded(gpt(**sizes))
    parts, ids = parts_of(model), torch.randint(33, (2, 19))
    halves = stored_in(decoder_of(parts), "half panels")
    assert halves is not None
    whole, half = native_body(parts), native_body(parts, halves)
    assert half.decoder.weights.numel() < 0.6 * whole.decoder.weights.numel()  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert torch.equal(half(ids), whole(ids))
        assert torch.equal(half(ids[:1, :1]), whole(ids[:1, :1]))
        assert close(half(ids), copy_in_float64(model)(ids))


def test_half_weights_give_the_same_bits_where_many_rows_run_in_parts() -> None:
    model = rounded(
        gpt(features=512, heads=4, layers=1, width=96)
    )  # a map of 512 x 512: 1 MB in floats, half in halves
    parts, ids = parts_of(model), torch.randint(33, (1, 257))
    with torch.no_grad():
        halves = native_body(parts, stored_in(decoder_of(parts), "half panels"))
        assert torch.equal(halves(ids), native_body(parts)(ids))


def test_a_plan_describes_the_way_that_was_chosen(take: Callable[[str], None]) -> None:
    model, ids = rounded(gpt()), torch.randint(50, (1, 12))
    read = {}
    for way in (WHOLE, HALVES):
        take(way)
        read[way] = quickly(model, ids).plan.regimes[1].megabytes
    assert 0.4 * read[WHOLE] < read[HALVES] < 0.8 * read[WHOLE]


def test_a_plan_with_half_weights_is_timed_described_and_saved(tmp_path: Path, take: Callable[[str], None]) -> None:
    take(HALVES)
    ids = torch.randint(50, (1, 12))
    model = rounded(gpt())
    fast = quickly(model, ids)
    assert [*fast.plan.regimes[1].times] == [TORCH, WHOLE, HALVES]
    assert fast.plan.verification is not None
    assert fast.plan.memory < 0.7, "the embedding is not halved"
    assert "half of the bytes" in str(fast.plan)
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors")
    assert torch.equal(again(ids), fast(ids))
    assert again.plan == fast.plan


def test_a_layer_whose_weights_need_more_bits_keeps_them() -> None:
    model = gpt()
    assert stored_in(decoder_of(parts_of(model)), "half panels") is None
    assert HALVES not in quickly(model, torch.randint(50, (1, 12))).plan.regimes[0].times
    some = rounded(gpt())
    with torch.no_grad():
        some.blocks[0].ffn.up.weight[3, 4] = 1.0 + 2.0**-12  # type: ignore[union-attr, index]
    halves = stored_in(decoder_of(parts_of(some)), "half panels")
    assert halves is not None
    assert [layer.layout for layer in halves.blocks[0].ffn] == ["panels", "half panels"]
    ids = torch.randint(50, (2, 12))
    with torch.no_grad():
        assert close(native_body(parts_of(some), halves)(ids), copy_in_float64(some)(ids))


def test_greedy_tokens_are_those_of_float64() -> None:
    model = gpt(seed=3)
    reference = LanguageReference(model, Inputs((torch.randint(50, (1, 8)),)), "list", generated=64)
    fast = quickly(model, torch.randint(50, (1, 8)))
    assert reference.tokens is not None
    cache: list[Any] = []
    new, tokens = reference.tokens[:, :8], [reference.tokens[:, :8]]
    for step in reference.steps:
        scores = fast(new, cache=cache)[:, -1]
        best = step.scores[:, -1].topk(2).values
        new = scores.argmax(-1, keepdim=True)
        if float(best[0, 0] - best[0, 1]) < 1e-4 * float(step.scores.abs().max()):
            new = step.scores[:, -1].argmax(-1, keepdim=True)  # too close to call
        tokens.append(new)
    assert torch.equal(torch.cat(tokens, 1), reference.tokens)


def test_two_continuations_of_one_cache_do_not_disturb_each_other() -> None:
    model = gpt()
    ids = torch.randint(50, (1, 20))
    fast = quickly(model, ids)
    with torch.no_grad():
        shared: list[Any] = []
        fast(ids, cache=shared)
        one, two = list(shared), list(shared)
        a, b = torch.tensor([[3, 4, 5]]), torch.tensor([[7, 8, 9]])
        for t in range(3):
            got_a, got_b = fast(a[:, t : t + 1], cache=one), fast(b[:, t : t + 1], cache=two)
        assert close(got_a[:, -1], model(torch.cat((ids, a), 1))[:, -1])
        assert close(got_b[:, -1], model(torch.cat((ids, b), 1))[:, -1])
        cut = [(k[:, :, :10], v[:, :, :10]) for k, v in shared]
        assert close(fast(ids[:, 10:11], cache=cut)[:, -1], model(ids[:, :11])[:, -1])


def test_a_cache_that_is_full_grows() -> None:
    model = gpt()
    ids = torch.randint(50, (1, 300))
    fast = quickly(model, ids[:, :8])
    cache: list[Any] = []
    with torch.no_grad():
        fast(ids[:, :5], cache=cache)
        for t in range(5, 300, 5):
            got = fast(ids[:, t : t + 5], cache=cache)
        assert close(got[:, -1], model(ids)[:, -1])


def test_the_plan_says_where_time_goes_and_what_is_gated(tmp_path: Path) -> None:
    fast = quickly(gpt(), torch.randint(50, (1, 12)))
    text = str(fast.plan)
    for word in ("a prompt of 12 tokens", "one more token after 12", "attention", "ffn", "GB/s", "gated: 2 layers"):
        assert word in text, word
    assert LanguagePlan.from_dict(fast.plan.to_dict()) == fast.plan


def test_a_plan_is_saved_and_loaded_bit_for_bit_without_its_model(tmp_path: Path) -> None:
    ids = torch.randint(50, (1, 12))
    fast = quickly(gpt(), ids)
    if fast.plan.chosen != WHOLE:
        pytest.skip("torch was faster on this machine")
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors")
    assert torch.equal(again(ids), fast(ids))
    assert again.plan == fast.plan


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    from dynamicgate.io.tensor_file import read_tensors, write_tensors

    fast = quickly(gpt(), torch.randint(50, (1, 12)))
    if fast.plan.chosen != WHOLE:
        pytest.skip("torch was faster on this machine")
    path = tmp_path / "plan.safetensors"
    fast.save(path)
    tensors, header = read_tensors(path, kind="compiled model")
    for name, change in {
        "program": lambda t: t.index_fill(0, torch.tensor([4]), 64),
        "weights": lambda t: t[:-16],
        "embedding": lambda t: t[:-1],
    }.items():
        write_tensors(path, {**tensors, name: change(tensors[name])}, header)
        with pytest.raises(ValueError, match=r"not a packed decoder|expected an embedding"):
            CompiledModel.load(path)


class Untraceable(nn.Module):
    """A loop that no tracer can follow, with a SwiGLU layer inside."""

    def __init__(self, *, value: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.ffn = dg.nn.FFN(24, 90, activation="silu", value=value)
        self.head = nn.Linear(24, 7)

    def forward(self, ids: Tensor, *, scale: float = 1.0) -> Tensor:
        x = self.embed(ids)
        for _ in range(int(ids.max() > 3) + 1):
            x = x + scale * torch.tanh(self.ffn(x))
        return self.head(x)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("kind", ["dynamic", "router", "softmax"])
def test_layers_of_a_model_that_cannot_be_traced_become_native(value: bool, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Untraceable(value=value)
    config = {
        "dynamic": dg.GateConfig(block=16),
        "router": dg.GateConfig(kind="router", block=16, top_k=2),
        "softmax": dg.GateConfig(block=16, scale="softmax"),
    }[kind]
    dg.gate_(model, config)
    for gate in dg.named_gates(model).values():
        nn.init.normal_(list(gate.net.parameters())[-1])
    ids = torch.randint(30, (5, 6))
    fast = quickly(model, ((ids,), {"scale": 0.5}), batches=(1, 5))
    assert [regime.name for regime in fast.plan.regimes] == ["batch 1", "batch 5"]
    assert BY_LAYER in fast.plan.regimes[0].times
    with torch.no_grad():
        assert close(fast(ids, scale=0.25), model(ids, scale=0.25))
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors", into=model)
    assert torch.equal(again(ids, scale=0.25), fast(ids, scale=0.25))
    if fast.plan.chosen != TORCH:
        assert "FFN" in str(fast.body)
    with pytest.raises(ValueError, match="into=model"):
        CompiledModel.load(tmp_path / "plan.safetensors")


def test_swiglu_over_rows_of_features_is_native() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 24), dg.nn.FFN(24, 128, activation="silu", value=True), nn.Linear(24, 5))
    dg.gate_(model, dg.GateConfig(block=16), where=[site for site in dg.find_sites(model) if site.name == "1.down"])
    x = torch.randn(40, 20)
    fast = quickly(model, x, batches=(1, 16))
    assert BY_LAYER in fast.plan.regimes[0].times
    with torch.no_grad():
        assert close(fast(x), model(x))


def test_options_that_mean_nothing_with_tokens_are_refused() -> None:
    ids = torch.randint(50, (1, 12))
    for option in ({"memory": 1.5}, {"same_bits": True}, {"batches": (1, 2)}, {"calibration": ids}):
        with pytest.raises(ValueError, match=next(iter(option))):
            dg.compile(gpt(), ids, **option)  # type: ignore[arg-type]


def test_examples_of_one_call_are_told_from_data() -> None:
    ids, x = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3)
    assert inputs_of_call(x) is None
    assert inputs_of_call((x, ids[:, 0])) is None
    assert inputs_of_call([x, x]) is None
    for example in (ids, {"input_ids": ids}, ((ids,), {}), ((), {"input_ids": ids})):
        found = inputs_of_call(example)
        assert found is not None
        assert found.ids is ids or torch.equal(found.ids, ids)  # type: ignore[arg-type]


def test_a_hook_keeps_the_model_in_torch_or_sees_its_module_run() -> None:
    model = gpt()
    seen = []
    model.norm.register_forward_hook(lambda *_: seen.append(1))
    ids = torch.randint(50, (1, 12))
    fast = quickly(model, ids)
    assert fast.plan.chosen != WHOLE
    assert "has a hook" in " ".join(fast.plan.notes)
    seen.clear()
    fast(ids)
    assert seen == [1]


def test_a_body_that_differs_is_refused() -> None:
    model, other = gpt(), gpt(seed=1)
    reference = LanguageReference(model, Inputs((torch.randint(50, (1, 12)),)), "list")
    assert reference.verify(model) is not None
    with pytest.raises(ValueError, match="the plan is refused"):
        reference.verify(other)


def test_norms_keep_their_epsilon_in_the_float64_reference() -> None:
    norm = nn.RMSNorm(8)
    x = torch.full((1, 8), 1e-4)
    assert close(copy_in_float64(norm)(x.double()), norm(x).detach())
