"""Small convolutional networks of the kinds that people write."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def plain_net() -> nn.Sequential:
    """Reads 3 x 11 x 7. Positions of the convolutions: 11 x 7 = 77, then 6 x 2 = 12; weights at each: 27 x 6 and
    36 x 10; then 10 channels of 3 x 1 positions each are 30 values for the Linear."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 10, (3, 2), stride=(2, 3), padding=(1, 0)),
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.MaxPool2d((2, 2)),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(30, 5),
    )


class Block(nn.Module):
    """The block of a residual network."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Two blocks between a first convolution and a Linear."""

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 12, stride=2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.pool(x), 1))


class LeNet(nn.Module):
    """Reads 1 x 16 x 16, and flattens as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2 = nn.Linear(16 * 2 * 2, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


class MobileNet(nn.Module):
    """Two inverted residuals: 1 x 1, depthwise 3 x 3, 1 x 1."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(4, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6(),
                nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU6(),
                nn.Conv2d(12, 4, 1, bias=False), nn.BatchNorm2d(4),
            )
            for _ in range(2)
        )  # fmt: skip
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.mean((2, 3)))


def set_logits_(model: nn.Module, closed: dict[str, list[int]]) -> None:
    """Close these blocks of static gates, by site, and open the others."""
    import dynamicgate as dg

    with torch.no_grad():
        for name, gate in dg.named_gates(model).items():
            gate.bias.fill_(9.0)
            gate.bias[closed.get(name, [])] = -9.0
