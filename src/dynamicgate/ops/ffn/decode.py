"""`decode_ffn` and its op: a gated feed-forward layer with its gate network for 1 to 16 tokens. See decode.md.

Shapes in names: T tokens, D inputs, N hidden units in G blocks (the last may be shorter), O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.reference import reference_ffn
from dynamicgate.ops.ffn.registration import kernels_run_on, register_for_inference
from dynamicgate.ops.ffn.weights import FFNWeights, check_dtypes, check_weights
from dynamicgate.ops.gate_net import NEAREST, GateNet, check_gate_net, decide, logits

MOST_TOKENS = 16
MOST_COMPETING = 4096  # blocks that one program can look at together

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "decode_ffn(Tensor x, Tensor[] gate_weights, Tensor?[] gate_biases, str hidden, float cut, Tensor? cuts, "
    "int top_k, float? tau, float? soft_width, bool competes, bool unbounded, Tensor up, Tensor down, Tensor? value, "
    "Tensor? up_bias, Tensor? down_bias, Tensor? value_bias, int block, str activation) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def decode_ffn(x_TD: Tensor, gate: GateNet, weights: FFNWeights, *, block: int, activation: str = "relu") -> Tensor:
    """`gated_ffn` with its gate in front, for inference on 1 to 16 tokens: a block is read once, if any token opens it.

    x_TD: with any leading dimensions. It, the weights and the gate (but not its cut) are bfloat16, float16 or float32,
        all in the same dtype.
    gate: decides from x. Closed blocks are neither read nor computed. With `tau`, open units are multiplied by p, with
        `soft_width` by how far their logit is above the cut, and where they compete by their share of one weight.
    activation: relu, relu2, gelu (exact), gelu_tanh, quick_gelu, silu or identity. SwiGLU is silu with `weights.value`.
    """
    rows = x_TD.reshape(-1, x_TD.shape[-1])
    if not 1 <= rows.shape[0] <= MOST_TOKENS:
        raise ValueError(f"expected 1 to {MOST_TOKENS} tokens, received {rows.shape[0]}: gated_ffn takes more")
    check_weights(rows, weights, block, activation)
    check_gate_net("decode_ffn", gate, rows.shape[1], -(-weights.up.shape[0] // block))
    if gate.hidden == NEAREST:
        raise ValueError("decode_ffn knows no nearest prototypes: compute their factors first, and call gated_ffn")
    check_dtypes(rows, {f"weight {i} of the gate": t for i, t in enumerate(gate.weights)})
    check_dtypes(rows, {f"bias {i} of the gate": t for i, t in enumerate(gate.biases)})
    cut, cuts = (0.0, gate.cut) if isinstance(gate.cut, Tensor) else (gate.cut, None)
    rule = (gate.hidden, cut, cuts, gate.top_k, gate.tau, gate.soft_width, gate.competes, gate.unbounded)
    y: Tensor = torch.ops.dynamicgate.decode_ffn(rows, gate.weights, gate.biases, *rule, *weights, block, activation)
    return y.reshape(*x_TD.shape[:-1], weights.down.shape[0])


def _decode(x: Tensor, gate_weights: list[Tensor], gate_biases: list[Tensor | None], *rest: Any) -> Tensor:
    weights = FFNWeights(*rest[8:14])
    (hidden, cut, cuts, top_k, tau, soft_width, competes, unbounded), (block, activation) = rest[:8], rest[14:]
    rule = (hidden, cut if cuts is None else cuts, top_k, tau, soft_width, competes, unbounded)
    gate = GateNet(tuple(gate_weights), tuple(gate_biases), *rule)
    if x.dtype in tune.DTYPES and kernels_run_on(x) and not (competes and gate.blocks > MOST_COMPETING):
        from dynamicgate.ops.ffn.decode_launch import launch  # here, because it imports Triton

        with torch.cuda.device_of(x):
            return launch(x, gate, weights, block, activation)
    return reference_ffn(x, weights, decide(logits(x, gate), gate), block=block, activation=activation)


def _shape(x: Tensor, gate_weights: Any, gate_biases: Any, *rest: Any) -> Tensor:
    return x.new_empty(x.shape[0], FFNWeights(*rest[8:14]).down.shape[0])


register_for_inference(_library, "decode_ffn", _decode, _shape)
