"""What a native decoder executes: multiply-accumulates of one call, from the parts of the model and what is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from dynamicgate.gating.gate import Gate
from dynamicgate.inference.decoder_parts import DecoderParts


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates of a decoder."""

    token: float
    """Of a token, without attention."""
    pair: float
    """Of a token and a position that it attends to."""

    def macs(self, sequences: int, past: int, tokens: int) -> float:
        """Of `tokens` new positions in each sequence after `past`, all of them scored."""
        pairs = tokens * past + tokens * (tokens + 1) / 2
        return sequences * (tokens * self.token + pairs * self.pair)


def work_of(parts: DecoderParts, open_rates: Mapping[str, float]) -> Work:
    """The work of a decoder whose gates open these fractions of their blocks, in the order of its layers."""
    rates = list(open_rates.values())
    token = float(_macs(parts.head))
    for block in parts.blocks:
        gate = getattr(block.down, "gate", None)
        hidden = _macs(block.up) + _macs(block.down) + (0 if block.value is None else _macs(block.value))
        ffn = rates.pop(0) * hidden + gate.macs if isinstance(gate, Gate) and rates else float(hidden)
        token += sum(map(_macs, block.qkv)) + _macs(block.mix) + ffn
    return Work(token, 2.0 * len(parts.blocks) * parts.heads * 2 * len(parts.speed))


def _macs(linear: nn.Linear) -> int:
    return linear.in_features * linear.out_features
