"""A gated feed-forward layer for 1 to 16 tokens with its gate network: `decode_ffn` and its op. See few.md.

Shapes in names: T tokens, D inputs, N hidden units in G blocks (the last may be ragged), O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.activations import IN_TRITON, check_activation
from dynamicgate.ops.chain.layers import Layer, check_layers
from dynamicgate.ops.ffn.reference import reference
from dynamicgate.ops.ffn.registration import register_for_inference, serves
from dynamicgate.ops.gate_net import GateNet, decide, logits

MOST_TOKENS = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of the kernels; the reference takes any

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "decode_ffn(Tensor x, Tensor[] gate_weights, Tensor?[] gate_biases, str hidden, float cut, Tensor? cuts, int top_k, "
    "float? tau, float? soft_width, Tensor up, Tensor down, int block, str activation, Tensor? up_bias, Tensor? down_bias, "
    "Tensor? value, Tensor? value_bias) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def decode_ffn(
    x_TD: Tensor,
    gate: GateNet,
    up_ND: Tensor,
    down_ON: Tensor,
    *,
    block: int,
    activation: str = "relu",
    up_bias_N: Tensor | None = None,
    down_bias_O: Tensor | None = None,
    value_ND: Tensor | None = None,
    value_bias_N: Tensor | None = None,
) -> Tensor:
    """`gated_ffn` for 1 to 16 tokens, its gate in front, for inference: a block is read once, if any token opens it.

    x_TD: any leading dimensions; weights as in `nn.Linear`. bfloat16, float16 or float32, the same for all but the cut.
    gate: decides from x; closed blocks are neither read nor computed; with `tau`, open units are multiplied by p,
        with `soft_width` by how far their logit is above the cut.
    activation: relu, gelu (exact), silu or identity; SwiGLU is silu with `value_ND`.
    """
    rows = x_TD.reshape(-1, x_TD.shape[-1])
    tensors = (up_bias_N, down_bias_O, value_ND, value_bias_N)
    _check(rows, gate, up_ND, down_ON, block, activation, *tensors)
    cut, cuts = (0.0, gate.cut) if isinstance(gate.cut, Tensor) else (gate.cut, None)
    y: Tensor = torch.ops.dynamicgate.decode_ffn(
        rows, gate.weights, gate.biases, gate.hidden, cut, cuts, gate.top_k, gate.tau, gate.soft_width, up_ND, down_ON, block,
        activation, *tensors,
    )  # fmt: skip
    return y.reshape(*x_TD.shape[:-1], down_ON.shape[0])


def _check(
    x_TD: Tensor,
    gate: GateNet,
    up_ND: Tensor,
    down_ON: Tensor,
    block: int,
    activation: str,
    up_bias_N: Tensor | None,
    down_bias_O: Tensor | None,
    value_ND: Tensor | None,
    value_bias_N: Tensor | None,
) -> None:
    """Raise ValueError for what does not fit together."""
    if not 1 <= x_TD.shape[0] <= MOST_TOKENS:
        raise ValueError(f"expected 1 to {MOST_TOKENS} tokens, received {x_TD.shape[0]}: gated_ffn takes more")
    check_activation(activation, IN_TRITON)
    if x_TD.shape[1] != up_ND.shape[1]:
        raise ValueError(f"expected x with {up_ND.shape[1]} features, received {x_TD.shape[1]}")
    if value_bias_N is not None and value_ND is None:
        raise ValueError("value_bias_N needs value_ND, received None")
    check_layers([Layer(up_ND, up_bias_N, activation, block, gate), Layer(down_ON, down_bias_O)])
    if value_ND is not None:
        if value_ND.shape != up_ND.shape:
            raise ValueError(f"expected value_ND of shape {tuple(up_ND.shape)}, received {tuple(value_ND.shape)}")
        check_layers([Layer(value_ND, value_bias_N)])
    used = (up_ND, down_ON, up_bias_N, down_bias_O, value_ND, value_bias_N, *gate.weights, *gate.biases)
    strange = {str(t.dtype) for t in used if t is not None} - {str(x_TD.dtype)}
    if strange:
        raise ValueError(f"expected all weights in {x_TD.dtype} like x, received {', '.join(sorted(strange))}")


def _decode(
    x: Tensor,
    gate_weights: list[Tensor],
    gate_biases: list[Tensor | None],
    hidden: str,
    cut: float,
    cuts: Tensor | None,
    top_k: int,
    tau: float | None,
    soft_width: float | None,
    up: Tensor,
    down: Tensor,
    block: int,
    activation: str,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
) -> Tensor:
    gate = GateNet(
        tuple(gate_weights), tuple(gate_biases), hidden, cut if cuts is None else cuts, top_k, tau, soft_width
    )
    if x.dtype in DTYPES and serves(x):
        from dynamicgate.ops.ffn.decode_launch import launch

        with torch.cuda.device_of(x):
            return launch(x, gate, up, down, block, activation, up_bias, down_bias, value, value_bias)
    return reference(
        x, up, down, decide(logits(x, gate), gate), block=block, activation=activation, up_bias_N=up_bias,
        down_bias_O=down_bias, value_ND=value, value_bias_N=value_bias,
    )  # fmt: skip


def _shape(x: Tensor, weights: Any, biases: Any, hidden: Any, cut: Any, cuts: Any, top_k: Any, tau: Any, soft_width: Any,
           up: Tensor, down: Tensor, *rest: Any) -> Tensor:  # fmt: skip
    return x.new_empty(x.shape[0], down.shape[0])


register_for_inference(_library, "decode_ffn", _decode, _shape)
