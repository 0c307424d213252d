"""The tensors of a feed-forward layer as one tuple, and the check that they fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dynamicgate.activations import IN_TRITON, check_activation


class FFNWeights(NamedTuple):
    """Laid out as in `nn.Linear`: `up` and `value` are [N, D], `down` is [O, N]. None: the layer has no such tensor."""

    up: Tensor
    down: Tensor
    value: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    value_bias: Tensor | None = None


def map_weights(weights: FFNWeights, change: Callable[[Tensor], Tensor]) -> FFNWeights:
    """The weights with every tensor changed."""
    return FFNWeights(*(t if t is None else change(t) for t in weights))  # type: ignore[arg-type]


def check_weights(x_TD: Tensor, weights: FFNWeights, block: int, activation: str) -> None:
    """Raise ValueError for tensors that do not fit together, or that the kernels have no activation for."""
    up, down, value, up_bias, down_bias, value_bias = weights
    N, O = up.shape[0], down.shape[0]
    if block < 1:
        raise ValueError(f"block must be 1 or more, received {block}")
    check_activation(activation, IN_TRITON)
    if value_bias is not None and value is None:
        raise ValueError("value_bias needs value, received None")
    if x_TD.shape[1] != up.shape[1]:
        raise ValueError(f"expected x with {up.shape[1]} features, received {x_TD.shape[1]}")
    expected = {
        "down": (down, (O, N)),
        "value": (value, tuple(up.shape)),
        "up_bias": (up_bias, (N,)),
        "down_bias": (down_bias, (O,)),
        "value_bias": (value_bias, (N,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"expected {name} of shape {shape}, received {tuple(tensor.shape)}")
    check_dtypes(x_TD, weights._asdict())


def check_dtypes(x_TD: Tensor, tensors: dict[str, Tensor | None]) -> None:
    """Raise ValueError for tensors that are not in the dtype of x."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != x_TD.dtype:
            raise ValueError(f"expected {name} in {x_TD.dtype} like x, received {tensor.dtype}")
