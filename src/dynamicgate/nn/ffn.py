"""The feed-forward layer of a Transformer, whose closed blocks are not computed where there are kernels for that.

Shapes in names: B rows (any leading dimensions), D features, N hidden units, G blocks of units, O outputs.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, fx, nn

from dynamicgate.activations import ACTIVATIONS, IN_LAYERS, check_activation
from dynamicgate.gating.gate import Gate
from dynamicgate.ops.ffn import gated_ffn

SKIPPING = ("cuda",) if find_spec("triton") is not None else ()  # where closed blocks are left out, not multiplied by 0
LEAST_BLOCK = 32  # units: with smaller blocks, finding out who needs which costs more than dense products
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KERNELS = ("auto", "always", "never")
LEAST_WORK = 2**37  # rows x features x units: with less, the host takes longer to launch the kernels than they take


class FFN(nn.Module):
    """Up to `width` hidden units, activation, down again; with `value` a second projection up multiplies them::

        h = act(up(x)) [* value(x)]          SwiGLU: activation="silu", value=True
        y = down(h)

    A gate goes on the hidden units as on those of any two Linear layers, ``gate_(model, GateConfig(block=64))``, and
    with it ``y = down(g * h)``. On a CUDA GPU with Triton, as long as the gate's decisions are hard, only open blocks
    are computed then; everywhere else all are, and closed ones are multiplied by zero. Outputs agree up to rounding.
    """

    def __init__(
        self,
        features: int,
        width: int,
        outputs: int | None = None,
        *,
        activation: str = "relu",
        value: bool = False,
        bias: bool = True,
        gradient: Literal["exact", "sparse"] = "exact",
        kernels: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        """`outputs` are as many as `features` by default.

        gradient: what closed blocks tell their gate. "exact": what opening them would change, as in dense training,
            which straight-through gates learn from; it costs the projections up in full. "sparse": nothing, so that a
            gate learns from its open blocks and its budget alone. What does not flow through the gate is the same in
            both. Routers have no gradient there, and always go the cheaper way.
        kernels: "auto" computes everything where there is so little to do that a GPU would wait for the launches of the
            kernels; "always" does not, for CUDA graphs, which launch faster; "never" computes everything, on a GPU too.
        """
        super().__init__()
        outputs = features if outputs is None else outputs
        if min(features, width, outputs) < 1:
            raise ValueError(
                f"features, width and outputs must be 1 or more, received {features}, {width} and {outputs}"
            )
        check_activation(activation, IN_LAYERS)
        if gradient not in ("exact", "sparse"):
            raise ValueError(f"gradient must be exact or sparse, received {gradient!r}")
        if kernels not in KERNELS:
            raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, received {kernels!r}")
        self.activation, self.gradient, self.kernels = activation, gradient, kernels
        self.up = nn.Linear(features, width, bias=bias)
        self.act = ACTIVATIONS[activation].build()
        self.value = nn.Linear(features, width, bias=bias) if value else None
        self.down = nn.Linear(width, outputs, bias=bias)

    def forward(self, x_BD: Tensor) -> Tensor:
        """The outputs for each row."""
        return self._read(x_BD, self._write(x_BD))

    def _write(self, x_BD: Tensor) -> Tensor | None:
        """The hidden units, all of them; None where the gate has decided first and only open ones will be computed."""
        gate = self._skipping_gate(x_BD)
        if gate is not None:
            gate.decide_before(self.up, (x_BD,))  # a watcher sees it, as in the hook
            return None
        h_BN = self.act(self.up(x_BD))
        return h_BN if self.value is None else h_BN * self.value(x_BD)

    def _read(self, x_BD: Tensor, h_BN: Tensor | None) -> Tensor:
        if h_BN is not None:
            return self.down(h_BN)
        gate: Gate = self.down.gate  # type: ignore[assignment]
        return gated_ffn(
            x_BD,
            self.up.weight,
            self.down.weight,
            gate.take(),
            block=gate.config.block,
            activation=self.activation,
            up_bias_N=self.up.bias,
            down_bias_O=self.down.bias,
            value_ND=None if self.value is None else self.value.weight,
            value_bias_N=None if self.value is None else self.value.bias,
            gradient="sparse" if gate.config.kind == "router" else self.gradient,
        )

    def _skipping_gate(self, x_BD: Tensor) -> Gate | None:
        """The gate on the hidden units, if all that it closes can be left out; else None."""
        gate = getattr(self.down, "gate", None)
        if self.kernels == "never" or gate is None or isinstance(x_BD, fx.Proxy):  # tracing looks at the layers
            return None
        dtype = torch.get_autocast_dtype(x_BD.device.type) if _autocast(x_BD) else x_BD.dtype
        served = x_BD.device.type in SKIPPING and dtype in DTYPES and ACTIVATIONS[self.activation].in_triton
        served = served and (_autocast(x_BD) or dtype == self.up.weight.dtype)
        served = served and (self.kernels == "always" or x_BD.numel() * self.up.out_features >= LEAST_WORK)
        hard = gate.policy in ("hard", "bernoulli", "gumbel") and gate.config.block >= LEAST_BLOCK
        writers = (self.up,) if self.value is None else (self.up, self.value)
        decides = any(layer._forward_pre_hooks for layer in writers)  # not a gate that was told to read elsewhere
        return gate if served and hard and decides and all(unwatched(m, gate) for m in (*writers, self.down)) else None

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"gradient={self.gradient}, kernels={self.kernels}"


def _autocast(x_BD: Tensor) -> bool:
    return torch.is_autocast_enabled(x_BD.device.type)


def unwatched(linear: nn.Linear, gate: Gate) -> bool:
    """A Linear as torch made it, with no hook but those of this gate: whoever hangs on one wants to see it run."""
    after = (linear._forward_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    own = all(getattr(hook, "__self__", None) is gate for hook in linear._forward_pre_hooks.values())
    return type(linear) is nn.Linear and own and not any(after)
