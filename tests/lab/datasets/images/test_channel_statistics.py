"""Published and measured channel statistics, spread over features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.images.channel_statistics import measured_statistics, published_statistics


def test_published_statistics_have_the_order_of_the_features() -> None:
    table = {"a": ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))}
    mean, std = published_statistics(table, "a", 2)
    assert mean.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert std.tolist() == [1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="normalisation must be one of a, received 'b'"):
        published_statistics(table, "b", 2)


def test_measured_statistics_equal_those_of_numpy() -> None:
    images = torch.randint(1, 256, (700, 3, 5, 7), dtype=torch.uint8)
    images[:, 2] = 9
    mean, std = measured_statistics(Arrays(images, torch.zeros(700, dtype=torch.int64)))
    values = images.numpy().astype(np.float64) / 255
    assert mean.view(3, -1)[:, 0].tolist() == pytest.approx(values.mean(axis=(0, 2, 3)).tolist(), rel=1e-6)
    expected = [*values.std(axis=(0, 2, 3))[:2], 1.0]
    assert std.view(3, -1)[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    assert len(mean) == len(std) == 3 * 5 * 7
