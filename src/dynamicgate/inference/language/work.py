"""What a native decoder executes: multiply-accumulates of one call, from the parts of the model and what is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from dynamicgate.gating.gate import Gate
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts
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


def work_of(parts: DecoderParts, rates: Mapping[Gate, float]) -> Work:
    """The work of a decoder whose gates open these fractions of their blocks."""
    token = float(_macs(parts.head))
    left_out = 0.0
    for block in parts.blocks:
        linears = _linears(block)
        gate = getattr(block.down, "gate", None)
        ffn = float(sum(map(_macs, linears)))
        if _opens_by_size(block):
            executed = [rate * _macs(linear) for rate, linear in zip(_of_inputs(block, rates), linears, strict=True)]
            if block.value is not None:
                executed[1] *= rates.get(block.of_factors, 1.0) if block.of_factors is not None else 1.0
            left_out += ffn - sum(executed)
        elif isinstance(gate, Gate):
            ffn = rates.get(gate, 1.0) * ffn + gate.macs
        token += sum(map(_macs, block.qkv)) + _macs(block.mix) + ffn
    return Work(token, 2.0 * len(parts.blocks) * parts.heads * 2 * len(parts.speed), token - left_out)


def read_rates(parts: DecoderParts, rates: Mapping[Gate, float]) -> list[float]:
    """What fraction of their weights one token reads of the layers and maps that gates read in part, if the gates open
    these fractions of their blocks."""
    found = []
    for block in parts.blocks:
        gate = getattr(block.down, "gate", None)
        if _opens_by_size(block):
            *first, down = _of_inputs(block, rates)
            if block.of_factors is not None:  # then it is read unit by unit, with all inputs
                first[1] = rates.get(block.of_factors, 1.0)
            of_first = (
                any(hasattr(linear, "gate") for linear in (block.up, block.value)) or block.of_factors is not None
            )
            found += [*(first if of_first else []), *([] if gate is None else [down])]
        elif isinstance(gate, Gate):
            found.append(rates.get(gate, 1.0))
    return found


def _linears(block: BlockParts) -> list[nn.Linear]:
    return [linear for linear in (block.up, block.value, block.down) if linear is not None]


def _opens_by_size(block: BlockParts) -> bool:
    gates = (getattr(linear, "gate", None) for linear in _linears(block))
    return block.of_factors is not None or any(map(opens_by_size, gates))


def _of_inputs(block: BlockParts, rates: Mapping[Gate, float]) -> list[float]:
    """Which fraction of its inputs each layer reads."""
    gates = [getattr(linear, "gate", None) for linear in _linears(block)]
    return [1.0 if gate is None else rates.get(gate, 1.0) for gate in gates]


def _macs(linear: nn.Linear) -> int:
    return linear.in_features * linear.out_features
