"""What a native decoder executes: multiply-accumulates of one call, from the parts of the model and what is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from dynamicgate.gating.gate import Gate
from dynamicgate.inference.decoder_parts import DecoderParts
from dynamicgate.inference.language.thresholds import opens_by_size


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates of a decoder."""

    token: float
    """Of a token, without attention."""
    pair: float
    """Of a token and a position that it attends to."""
    alone: float
    """Of a token that runs alone: what is below a threshold is left out for single rows only."""

    def macs(self, sequences: int, past: int, tokens: int) -> float:
        """Of `tokens` new positions in each sequence after `past`, all of them scored."""
        pairs = tokens * past + tokens * (tokens + 1) / 2
        token = self.alone if sequences * tokens == 1 else self.token
        return sequences * (tokens * token + pairs * self.pair)


def work_of(parts: DecoderParts, open_rates: Mapping[str, float]) -> Work:
    """The work of a decoder whose gates open these fractions of their blocks, in the order of its layers."""
    rates = list(open_rates.values())
    token = float(_macs(parts.head))
    left_out = 0.0
    for block in parts.blocks:
        hidden = [linear for linear in (block.up, block.value, block.down) if linear is not None]
        gates = [getattr(linear, "gate", None) for linear in hidden]
        ffn = float(sum(map(_macs, hidden)))
        if any(map(opens_by_size, gates)):
            rate = [rates.pop(0) if gate is not None and rates else 1.0 for gate in gates]
            left_out += ffn - sum(open * _macs(linear) for open, linear in zip(rate, hidden, strict=True))
        elif isinstance(gates[-1], Gate) and rates:
            ffn = rates.pop(0) * ffn + gates[-1].macs
        token += sum(map(_macs, block.qkv)) + _macs(block.mix) + ffn
    return Work(token, 2.0 * len(parts.blocks) * parts.heads * 2 * len(parts.speed), token - left_out)


def _macs(linear: nn.Linear) -> int:
    return linear.in_features * linear.out_features
