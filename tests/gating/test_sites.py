"""Where a gate may sit, found by following the data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import Site, find_sites


def names(model: nn.Module, *, hidden_only: bool = True) -> list[tuple[str, tuple[str, ...], str, int]]:
    return [(s.consumer, s.producers, s.source, s.width) for s in find_sites(model) if not (hidden_only and s.is_input)]


def test_a_sequential_has_a_site_before_every_layer_and_the_input_one_comes_first() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    assert names(model, hidden_only=False) == [
        ("0", (), "0", 4),
        ("3", ("0",), "0", 8),
        ("5", ("3",), "3", 6),
    ]
    first, second, _ = find_sites(model)
    assert first.is_input
    assert not second.is_input
    assert second.name == "3"
    assert str(second) == "'3': 8 units from 0, read by 3"


def test_nested_modules_give_dotted_names() -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    model = nn.Sequential(inner, nn.Tanh(), nn.Sequential(nn.Linear(6, 2)))
    assert names(model) == [("0.2", ("0.0",), "0.0", 8), ("2.0", ("0.2",), "0.2", 6)]


class Two(nn.Module):
    """Two layers; subclasses say what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def between(self, h: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))


UNIT_WISE = [
    F.relu,
    torch.tanh,
    lambda h: F.dropout(F.gelu(h), 0.1),
    lambda h: h.sigmoid(),
    lambda h: h.relu().square(),
    lambda h: h * 0.5,
    lambda h: h * torch.sigmoid(h),
    lambda h: torch.sigmoid(h) * h,
    lambda h: h,
]
NOT_UNIT_WISE = [
    lambda h: F.softmax(h, dim=-1),
    lambda h: F.layer_norm(h, (8,)),
    lambda h: h + 1.0,  # a closed unit must be zero where the reader sees it
    lambda h: h.flip(-1),
    lambda h: torch.cat([h[:, :4], h[:, :4]], -1),
    lambda h: h.reshape(-1, 8),  # rows of h need not be rows of the decision any more
    lambda h: h * h.sum(-1, keepdim=True),
]


@pytest.mark.parametrize("index", range(len(UNIT_WISE)))
def test_functional_activations_are_seen_through(index: int) -> None:
    model = Two()
    model.between = UNIT_WISE[index]  # type: ignore[method-assign]
    assert names(model) == [("second", ("first",), "first", 8)]


@pytest.mark.parametrize("index", range(len(NOT_UNIT_WISE)))
def test_an_operation_that_mixes_or_moves_units_is_no_site(index: int) -> None:
    model = Two()
    model.between = NOT_UNIT_WISE[index]  # type: ignore[method-assign]
    assert names(model) == []


def test_a_layer_norm_in_between_is_no_site_and_a_batch_norm_is_one() -> None:
    assert names(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))) == []
    assert names(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))) != []


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate_proj(x)) * self.up(x))


def test_a_gated_linear_unit_is_one_site_with_two_producers() -> None:
    assert names(SwiGLU()) == [("down", ("gate_proj", "up"), "gate_proj", 8)]
    model = dg.gate_(SwiGLU(), dg.GateConfig(open=0.5))
    x = torch.randn(9, 4)
    net = dg.named_gates(model)["down"].net
    g = (torch.sigmoid(x @ net.weight.T + net.bias) > 0.5).float()
    assert 0 < g.mean() < 1
    h = F.silu(model.gate_proj(x)) * model.up(x)
    torch.testing.assert_close(model(x), F.linear(h * g, model.down.weight, model.down.bias))


def test_two_producers_that_read_different_things_are_no_site() -> None:
    class Mixed(SwiGLU):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.gate_proj(x) * self.up(x.flip(0)))

    assert names(Mixed()) == []


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.b(torch.relu(self.a(x)))
        return self.head(x)


def test_inside_a_residual_block_is_a_site_and_the_stream_itself_is_not() -> None:
    assert names(Residual(), hidden_only=False) == [("a", (), "a", 4), ("b", ("a",), "a", 8)]


def test_units_that_somebody_else_reads_too_are_no_site() -> None:
    class Peeking(Residual):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.b(h) + h.sum(-1, keepdim=True)

    class TwoReaders(Residual):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.a(x)
            return self.b(torch.relu(h)), h

    assert names(Peeking()) == []
    assert names(TwoReaders()) == []


def test_an_untraceable_model_still_offers_the_sites_inside_its_children() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
            self.heads = nn.ModuleList([nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))])

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            if x.sum() > 0:  # control flow on data: cannot be traced
                x = -x
            return self.heads[0](self.block(x))

    found = names(Branching(), hidden_only=False)
    assert found == [("block.2", ("block.0",), "block.0", 8), ("heads.0.2", ("heads.0.0",), "heads.0.0", 5)]
    model = dg.gate_(Branching())
    assert model(torch.randn(3, 4)).shape == (3, 2)


class Repeated(nn.Module):
    """The same two layers run twice, in turns or interleaved."""

    def __init__(self, *, interleaved: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)
        self.interleaved = interleaved

    def forward(self, x: Tensor) -> Tensor:
        if self.interleaved:
            u, v = torch.relu(self.a(x)), torch.relu(self.a(-x))
            return self.b(u) + self.b(v)
        return self.b(torch.relu(self.a(x))) + self.b(torch.relu(self.a(-x)))


def test_layers_that_run_several_times_are_one_site_if_they_take_turns() -> None:
    assert names(Repeated(interleaved=False)) == [("b", ("a",), "a", 8)]
    assert names(Repeated(interleaved=True)) == []  # one decision at a time: the gate could not tell whose it is
    model = dg.gate_(Repeated(interleaved=False), dg.GateConfig(open=0.5))
    x = torch.randn(5, 4)
    with dg.usage(model) as used:
        out = model(x)
    g = used["b"].open
    assert g.shape == (10, 8)
    u, v = torch.relu(F.linear(x, model.a.weight, model.a.bias)), torch.relu(F.linear(-x, model.a.weight, model.a.bias))
    expected = F.linear(u * g[:5], model.b.weight, model.b.bias) + F.linear(v * g[5:], model.b.weight, model.b.bias)
    torch.testing.assert_close(out, expected)


def test_a_layer_that_reads_its_own_output_is_no_site() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(torch.relu(self.a(x)))

    assert find_sites(Loop()) == []


def test_input_features_are_a_site_through_flattening_and_normalisation_and_may_be_shared() -> None:
    flat = nn.Sequential(nn.Flatten(), dg.nn.Normalize(0.5, 2.0), nn.Linear(4, 2))
    assert names(flat, hidden_only=False) == [("2", (), "2", 4)]
    assert ("gate_proj", (), "gate_proj", 4) in names(SwiGLU(), hidden_only=False)
    assert ("up", (), "up", 4) in names(SwiGLU(), hidden_only=False)


def test_a_single_linear_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="a single Linear layer has no hidden units to gate"):
        find_sites(nn.Linear(3, 3))


def test_a_model_without_linear_layers_has_no_sites() -> None:
    assert find_sites(nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU())) == []


def test_a_site_is_a_value() -> None:
    assert Site("2", ("0",), "0", 8) == Site("2", ("0",), "0", 8)
    assert len({Site("2", ("0",), "0", 8), Site("2", ("0",), "0", 8)}) == 1
