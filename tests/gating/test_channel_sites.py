"""Which channels of convolutions can be gated, and what is said about the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.gating.sites import why_not_sites
from tests.gating.conv_nets import LeNet, MobileNet, ResNet, plain_net


def site(consumer: str, producers: str, width: int) -> dg.Site:
    """A site of channels that is decided from what the first of its producers reads."""
    names = tuple(producers.split())
    return dg.Site(consumer, names, names[0], width, channels=True)


def test_a_plain_network_is_gated_between_convolutions_and_in_front_of_the_linear_layer() -> None:
    assert dg.find_sites(plain_net()) == [site("3", "0", 6), site("9", "3", 10)]
    assert str(site("3", "0", 6)) == "'3': 6 channels from 0, read by 3"


def test_functional_pooling_and_a_view_are_passed() -> None:
    assert dg.find_sites(LeNet()) == [
        site("conv2", "conv1", 6),
        site("fc1", "conv2", 16),
        dg.Site("fc2", ("fc1",), "fc1", 20),
    ]


def test_the_inner_channels_of_residual_blocks_are_sites() -> None:
    assert dg.find_sites(ResNet()) == [
        site("layer1.0.conv2", "layer1.0.conv1", 8),
        site("layer1.1.conv2", "layer1.1.conv1", 12),
    ]


def test_it_is_said_why_channels_on_a_shortcut_are_no_sites() -> None:
    said = why_not_sites(ResNet())
    assert said == [
        "'layer1.0.conv1' reads channels that `add` reads too: a channel closed for one is still computed for the "
        "other",
        "'layer1.1.downsample.0' reads through `add`: it adds another path, such as a shortcut, and every channel of "
        "the sum stays in use there",
        "'layer1.1.conv1' reads through `add`: it adds another path, such as a shortcut, and every channel of the sum "
        "stays in use there",
        "'fc' reads through `add_1`: it adds another path, such as a shortcut, and every channel of the sum stays in "
        "use there",
    ]
    with pytest.raises(ValueError, match=r"(?s)Candidates:\n  'layer1.0.conv2': 8 channels.*Not sites:\n  'layer1.0"):
        dg.gate_(ResNet(), where="layer1.0.conv1")


def test_a_depthwise_convolution_is_closed_with_the_channels_around_it() -> None:
    assert dg.find_sites(MobileNet()) == [
        site("blocks.0.6", "blocks.0.0 blocks.0.3", 12),
        site("blocks.1.6", "blocks.1.0 blocks.1.3", 12),
    ]


def test_a_depthwise_convolution_that_reads_a_shortcut_is_gated_by_itself() -> None:
    class Separable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.depth, self.point = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return x[..., 1:-1, 1:-1] + self.point(F.relu(self.depth(x)))

    assert dg.find_sites(Separable()) == [site("point", "depth", 8)]


class Between(nn.Module):
    """A convolution, something, and another one or a Linear."""

    def __init__(self, between: Callable[[Tensor], Tensor], reader: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), reader or nn.Conv2d(8, 4, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


@pytest.mark.parametrize(
    "between",
    [
        nn.BatchNorm2d(8), nn.InstanceNorm2d(8), nn.GroupNorm(8, 8), nn.Dropout2d(0.1), nn.PReLU(8), nn.AvgPool2d(2),
        nn.AdaptiveMaxPool2d(4), nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.SiLU(),
        lambda x: F.interpolate(x, scale_factor=2), lambda x: F.avg_pool2d(x.relu(), 2), torch.square,
    ],
)  # fmt: skip
def test_operations_on_each_channel_are_passed(between: Callable[[Tensor], Tensor]) -> None:
    assert dg.find_sites(Between(between)) == [site("b", "a", 8)]


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x.mean((2, 3)), lambda x: x.mean([-1, -2]), lambda x: torch.amax(x, (2, 3), keepdim=True).flatten(1),
        lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1),
        lambda x: x.mean(dim=(2, 3)).flatten(1), lambda x: x.mean((2, 3)).relu().reshape(x.shape[0], -1),
        lambda x: x.mean((2, 3), keepdim=True).view(x.size(0), -1),
    ],
)  # fmt: skip
def test_pooled_channels_are_passed_to_a_linear_layer(between: Callable[[Tensor], Tensor]) -> None:
    assert dg.find_sites(Between(between, nn.Linear(8, 5))) == [site("b", "a", 8)]


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (nn.GroupNorm(2, 8), "'b' reads through GroupNorm 'between': it mixes the channels"),
        (nn.BatchNorm2d(8, track_running_stats=False), "use track_running_stats=True"),
        (nn.PixelShuffle(1), "'b' reads through PixelShuffle 'between': it is not known to act on each channel"),
        (lambda x: torch.roll(x, 1, 1), "'b' reads through `roll`: it is not known to act on each channel by itself"),
        (lambda x: x + 1, "it adds another path"),
        (lambda x: torch.cat([x[:, :4], x[:, 4:]], 1), "it puts the channels of several layers side by side"),
        (lambda x: x.permute(0, 1, 3, 2), "'b' reads through `permute`"),
        (nn.MaxPool2d(2, return_indices=True), "'b' reads through MaxPool2d"),
    ],
)
def test_what_is_not_on_each_channel_is_named(between: Callable[[Tensor], Tensor], why: str) -> None:
    with pytest.raises(ValueError, match="no Linear layer or convolution in this model feeds another one") as said:
        dg.gate_(Between(between))
    assert why in str(said.value)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x, lambda x: x.flatten(2), lambda x: x.squeeze(), lambda x: x.flatten(), lambda x: x.mean((1, 2)),
        lambda x: x.mean((2, 3), keepdim=True).squeeze(-3),
    ],
)  # fmt: skip
def test_a_linear_layer_that_does_not_read_channels_is_no_site(cut: Callable[[Tensor], Tensor]) -> None:
    assert dg.find_sites(Between(cut, nn.Linear(8, 5))) == []


def test_channels_that_are_multiplied_by_others_of_themselves_are_no_site() -> None:
    class SqueezeAndExcite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.conv(x))
            return self.out(x * torch.sigmoid(self.fc(x.mean((2, 3), keepdim=True))))

    assert dg.find_sites(SqueezeAndExcite()) == []
    assert any("'out' reads" in said for said in why_not_sites(SqueezeAndExcite()))


def test_a_learned_scale_of_channels_is_passed() -> None:
    class Scaled(Between):
        def __init__(self) -> None:
            super().__init__(nn.Identity())
            self.gamma = nn.Parameter(torch.ones(8, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.gamma * self.a(x))

    assert dg.find_sites(Scaled()) == [site("b", "a", 8)]


def test_two_convolutions_of_one_input_are_producers_together() -> None:
    class Glu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.a(x) * torch.sigmoid(self.b(x)))

    assert dg.find_sites(Glu()) == [site("out", "a b", 8)]


def test_layers_that_run_twice_are_no_site() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.b(self.a(x))))

    assert dg.find_sites(Twice()) == []
    assert "'b' or what it reads runs more than once" in why_not_sites(Twice())[0]


def test_where_convolutions_cannot_be_traced_the_linear_layers_are_still_found() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.net = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Conv2d(4, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.net(x).flatten(1) if x.sum() > 0 else x.flatten(1)

    model = nn.Sequential(Branching(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    assert dg.find_sites(model) == [dg.Site("3", ("1",), "1", 8), site("0.net.2", "0.net.0", 6)]


def test_sites_are_the_same_once_they_have_gates() -> None:
    for model in (plain_net(), ResNet(), LeNet(), MobileNet()):
        before = dg.find_sites(model)
        dg.gate_(model, dg.GateConfig(block=2))
        assert dg.find_sites(model) == before
        assert [gate.site for gate in dg.named_gates(model).values()] == before


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (dg.Site("conv2", ("conv1",), "conv1", 6), r"'conv1' is a Conv2d, which writes channels: pass .*channels=True"),
        (dg.Site("fc2", ("fc1",), "fc1", 20, channels=True), "'fc1' is a Linear"),
        (dg.Site("conv1", (), "conv1", 1, channels=True), "nothing writes them"),
        (site("conv2", "conv1", 5), "the site says 5 channels, but 'conv2' reads 6 channels"),
        (site("fc1", "conv1", 6), "but 'fc1' reads 64 values, which is no multiple of them"),
        (site("fc1", "conv1", 16), "'conv1' writes 6 channels, and 'fc1' reads 16"),
        (dg.Site("conv2", ("conv1",), "fc1", 6, channels=True), "a gate on channels reads the input of a Conv2d"),
    ],
)
def test_sites_that_do_not_fit_are_refused(made: dg.Site, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        dg.gate_(LeNet(), where=[made])


def test_a_convolution_alone_has_no_site() -> None:
    with pytest.raises(ValueError, match="a single convolution has no hidden units"):
        dg.find_sites(nn.Conv2d(1, 2, 3))


def test_contexts_and_stages_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'3' reads channels of convolutions: leave it out of `where`"):
        dg.gate_(plain_net(), dg.GateConfig(kind="context"))
    for where in (dg.where.hidden, "3"):
        with pytest.raises(ValueError, match=r"stages divide stacks of Linear layers, and the site '3': 6 channels"):
            dg.gate_(plain_net(), dg.GateConfig(kind="stages"), where=where)


def test_stages_by_a_predicate_divide_the_linear_layers_behind_convolutions() -> None:
    model = LeNet()
    dg.gate_(model, dg.GateConfig(kind="stages"))
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="which have no stages"):
        dg.gate_(LeNet(), dg.GateConfig(kind="stages"), where="*")


def test_the_predicate_channels_leaves_linear_layers_out() -> None:
    model = LeNet()
    dg.gate_(model, where=dg.where.channels)
    assert [*dg.named_gates(model)] == ["conv2", "fc1"]
