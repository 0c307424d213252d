"""Packs a decoder into two flat tensors. Its words are those of csrc/decoder_program.h: change both together."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dynamicgate.ops import native
from dynamicgate.ops.chain.layers import LAYOUTS, Layer
from dynamicgate.ops.chain.packing import HEADER_WORDS as HEADER_OF_CHAIN
from dynamicgate.ops.chain.packing import KINDS, LAYER_WORDS, LINEAR_WORDS, PANEL, Writer, lay_out, padded
from dynamicgate.ops.chain.unpacking import PackedLinear
from dynamicgate.ops.decoder.layers import Decoder, Norm

MAGIC = 0x44474C02
HEADER_WORDS, BLOCK_WORDS = 18, 18
HEAD, OUTPUTS, FLAGS = 14, 16, 17  # in the header: the place of the chain of the head (words, lines), its tokens, flags
BOTH_WAYS, NORMS_BEHIND = 1, 2  # flags
FFN = 16  # in a block: where the chain of the feed-forward layer starts


class PackedDecoder(NamedTuple):
    """A decoder that is ready for `run_decoder`: float32 weights and an int32 program."""

    weights: Tensor
    program: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Layers, features, heads of keys and features of a head."""
        layers, features, _, key_heads, head_features = self.program[3:8].tolist()
        return layers, features, key_heads, head_features

    @property
    def outputs(self) -> int:
        """Tokens that are scored; 0 where there is no head."""
        return int(self.program[OUTPUTS])

    @property
    def both_ways(self) -> bool:
        """Whether positions see later ones."""
        return bool(int(self.program[FLAGS]) & BOTH_WAYS)

    @property
    def head(self) -> tuple[int, int]:
        """Where the chain of the head starts in the program, and in the weights, in units of `PANEL` floats."""
        words, lines = self.program[HEAD : HEAD + 2].tolist()
        return words, lines

    @property
    def head_in_panels(self) -> bool:
        """Whether `head_rows` can be read."""
        return self.outputs > 0 and LAYOUTS[int(self.program[self.head[0] + HEADER_OF_CHAIN])] in KINDS

    def gated_floats(self) -> int:
        """The weights that gates read in part, in floats: all of a feed-forward layer with gated units, and of others
        the linear maps whose inputs have thresholds."""
        found = 0
        for layers, lines, _ in self._ffns():
            with_thresholds = sum(m.held for main, value, _ in layers for m in (main, value) if m.has_thresholds)
            found += lines * PANEL if any(blocks for _, _, blocks in layers) else with_thresholds
        return found

    def thresholds(self) -> list[Tensor]:
        """Those of all inputs and factors that have some, as views of the weights: of each layer those of its inputs,
        one projection after the other, then those of its factors."""
        return [
            self.weights[first * PANEL :][place]
            for layers, _, first in self._ffns()
            for main, value, _ in layers
            for place in _thresholds_of(main, value)
        ]

    def _ffns(self) -> Iterator[tuple[list[tuple[PackedLinear, PackedLinear, int]], int, int]]:
        """Of each feed-forward layer its chain, as two projections and a number of blocks for every layer, how many
        weights it has and where they start, in units of `PANEL` floats."""
        ends = self.program[HEADER_WORDS : HEADER_WORDS + BLOCK_WORDS * self.sizes[0]].view(-1, BLOCK_WORDS)
        for words, first in ends[:, FFN : FFN + 2].tolist():
            head = self.program[words : words + HEADER_OF_CHAIN].tolist()
            layers = self.program[words + HEADER_OF_CHAIN :][: head[1] * LAYER_WORDS].view(-1, LAYER_WORDS).tolist()
            yield [
                (PackedLinear(*layer[:LINEAR_WORDS]), PackedLinear(*layer[3 * LINEAR_WORDS :][:LINEAR_WORDS]),
                 layer[4 * LINEAR_WORDS + 1])
                for layer in layers
            ], head[4], first  # fmt: skip

    def head_rows(self) -> HeadRows:
        """The weights of the head as rows of tokens: the embedding that is tied to the head."""
        words, lines = self.head
        layout, inputs, _, width, weight, bias = self.program[words + HEADER_OF_CHAIN :][:6].tolist()
        held = self.weights[(lines + weight) * PANEL :].view(KINDS[LAYOUTS[layout]])
        scales = self.weights[(lines + bias) * PANEL + width :] if LAYOUTS[layout] == "byte panels" else None
        return HeadRows(held[: width * inputs].view(-1, inputs, PANEL), scales, self.outputs)


def _thresholds_of(main: PackedLinear, value: PackedLinear) -> list[slice]:
    found = [linear.thresholds for linear in (main, value) if linear.units and linear.has_thresholds]
    return [*found, value.factor_thresholds] if value.units and value.by_unit else found


class HeadRows(NamedTuple):
    """The weights of a head in panels, a scale for each token where these are whole numbers, and how many tokens."""

    panels: Tensor
    scales: Tensor | None
    tokens: int

    def of(self, ids: Tensor) -> Tensor:
        """The rows of some tokens, as floats of their own."""
        if ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"tokens are int32 or int64, received {ids.dtype}")
        rows = self._one(int(ids)) if ids.numel() == 1 else self._some(ids)
        return rows.view(*ids.shape, self.panels.shape[1])

    def _one(self, token: int) -> Tensor:
        """One more token is found by plain numbers: each op of torch takes longer than reading the row."""
        self._check(token, token)
        row = self.panels[token // PANEL, :, token % PANEL].to(torch.float32, copy=True)
        return row if self.scales is None else row.mul_(self.scales[token])

    def _some(self, ids: Tensor) -> Tensor:
        if ids.numel():
            self._check(*map(int, ids.aminmax()))
        rows = self.panels[ids // PANEL, :, ids % PANEL].float()
        return rows if self.scales is None else rows.mul_(self.scales[ids][..., None])

    def _check(self, least: int, most: int) -> None:
        if not 0 <= least <= most < self.tokens:
            raise IndexError(f"tokens are 0 to {self.tokens - 1}, received {least} to {most}")


class _Parts:
    """Chains and single tensors, each with its part of the weights and the program."""

    def __init__(self, words: int) -> None:
        self.words, self.lines = words, 0
        self.chains: list[tuple[int, Writer, Tensor]] = []
        self.tensors: list[tuple[int, Tensor]] = []

    def chain(self, layers: Sequence[Layer]) -> list[int]:
        writer, program = lay_out(layers)
        at = [self.words, self.lines]
        self.chains.append((self.lines, writer, program))
        self.words, self.lines = self.words + len(program), self.lines + writer.lines
        return at

    def tensor(self, values: Tensor) -> int:
        at, self.lines = self.lines, self.lines + padded(len(values)) // PANEL
        self.tensors.append((at, values.detach()))
        return at

    def norm(self, norm: Norm | None, features: int) -> list[int]:
        if norm is None:
            return [-1, -1, 0]
        if len(norm.weight) != features:
            raise ValueError(f"a norm of {features} features has {len(norm.weight)} weights")
        bias = -1 if norm.bias is None else self.tensor(norm.bias)
        return [self.tensor(norm.weight), bias, _bits(norm.epsilon)]

    def weights(self) -> Tensor:
        """Written at the end, into one tensor, piece by piece: there is never a second copy of all weights."""
        out = native.in_large_pages(self.lines * PANEL)
        for line, writer, _ in self.chains:
            writer.floats(out[line * PANEL : (line + writer.lines) * PANEL])
        for line, values in self.tensors:
            out[line * PANEL : line * PANEL + padded(len(values))] = 0.0
            out[line * PANEL : line * PANEL + len(values)] = values
        return out


def pack_decoder(decoder: Decoder) -> PackedDecoder:
    """Lay out a decoder for the kernels."""
    parts = _Parts(HEADER_WORDS + BLOCK_WORDS * len(decoder.blocks))
    words: list[int] = []
    for block in decoder.blocks:
        words += [
            word for norm in (block.attention_norm, block.ffn_norm) for word in parts.norm(norm, decoder.features)
        ]
        words += [
            word for norm in (block.of_queries, block.of_keys) for word in parts.norm(norm, decoder.head_features)
        ]
        words += parts.chain([block.qkv]) + parts.chain([block.mix]) + parts.chain(block.ffn)
    speed, norm = parts.tensor(decoder.speed), parts.norm(decoder.norm, decoder.features)
    head = [-1, -1] if decoder.head is None else parts.chain([decoder.head])
    sizes = [len(decoder.blocks), decoder.features, decoder.heads, decoder.key_heads, decoder.head_features]
    scales = [_bits(decoder.rotation_scale), _bits(decoder.score_scale)]
    end = [*norm, *head, 0 if decoder.head is None else len(decoder.head.weight)]
    flags = BOTH_WAYS * decoder.both_ways + NORMS_BEHIND * decoder.norms_behind
    header = [MAGIC, parts.words, parts.lines, *sizes, speed, *scales, *end, flags]
    program = torch.cat((torch.tensor(header + words, dtype=torch.int32), *(chain for _, _, chain in parts.chains)))
    packed = PackedDecoder(parts.weights(), program)
    check_decoder(packed)
    return packed


def check_decoder(packed: PackedDecoder) -> None:
    """Raise ValueError unless everything that the program names lies within it and its weights. Only the kernels can
    run a decoder, and they check it, in csrc/decoder.cpp."""
    if native.missing():
        raise ValueError(f"a packed decoder needs the compiled kernels: {native.missing()}")
    kinds = ((packed.weights, torch.float32), (packed.program, torch.int32))
    if any(t.dtype != kind or t.ndim != 1 or not t.is_contiguous() or not t.is_cpu for t, kind in kinds):
        raise ValueError("a packed decoder is one list of float32 weights and one of int32 words, on the CPU")
    problem = native.problem_of(packed.program, packed.weights.numel(), decoder=True)
    if problem:
        raise ValueError(f"this is not a packed decoder: {problem}")


def _bits(number: float) -> int:
    return int(struct.unpack("i", struct.pack("f", number))[0])
