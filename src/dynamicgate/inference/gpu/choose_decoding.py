"""How a decoder on a GPU takes one more token of each sequence: layer by layer, or as one captured step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts, cache_kind, parts_of
from dynamicgate.inference.gpu.cuda_graph import captured
from dynamicgate.inference.gpu.decoding import MOST_SEQUENCES, CachedDecoder, Memory, OneToken, Pairs, Step
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.timing import time_calls
from dynamicgate.inference.gpu.whole_model import (
    CAPTURED,
    LAYERS,
    ONE_GRAPH,
    WholeModel,
    compiled_for_one_shape,
    reason_of,
    simplest,
    typical_error,
)
from dynamicgate.inference.plan import WholeRegime
from dynamicgate.inference.verify import refuse_above

COMPARED = 4  # tokens that are generated in both ways
AGAIN = 64  # tokens after which a timed generation begins again


class PlainFFN(nn.Module):
    """The feed-forward layer of a block that has no gate."""

    def __init__(self, block: BlockParts) -> None:
        """On the layers of `block`."""
        super().__init__()
        self.up, self.value, self.down = block.up, block.value, block.down
        self.activation = ACTIVATIONS[block.activation].function

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for each row."""
        h = self.activation(self.up(x))
        return self.down(h if self.value is None else h * self.value(x))


def parts_for_cache(model: nn.Module) -> DecoderParts | None:
    """The parts of a decoder that is called with a list as its cache; None for any other model."""
    if cache_kind(model) != "list":
        return None
    try:
        return parts_of(model)
    except ValueError:
        return None


def choose_decoding(
    whole: WholeModel,
    parts: DecoderParts,
    layers: Mapping[nn.Linear, FeedForward],
    example: Tensor,
    batches: Sequence[int],
    *,
    seconds: float,
    tolerance: float,
) -> tuple[list[WholeRegime], list[str]]:
    """Let the fastest way run one more token of each sequence, after as many as the example has; what was timed, and
    notes about what does not run. `layers`: the compiled feed-forward layers, by their projection down."""
    found = [layers.get(block.down) or PlainFFN(block) for block in parts.blocks]
    of_factors = any(block.of_factors is not None for block in parts.blocks)
    if of_factors or any(isinstance(ffn, PlainFFN) and hasattr(ffn.down, "gate") for ffn in found):
        return [], ["the model decodes layer by layer: a gate of its feed-forward layers stays in torch"]
    model = OneToken(parts, found)
    regimes, notes, chosen = [], [], dict[int, CachedDecoder | None]()
    sizes = [size for size in batches if size <= MOST_SEQUENCES] or [1]
    decoders = captured_decoders(model)
    for sequences in sizes:
        index = torch.arange(sequences, device=example.device) % len(example)
        pairs: Pairs = []
        whole.body(example[index, :-1] if example.shape[1] > 1 else example[index], cache=pairs)
        ids_B1 = example[index, -1:].contiguous()
        calls = {LAYERS: continuing(lambda ids, cache: whole.body(ids, cache=cache), pairs)}
        for name, decoder in decoders.items():
            try:
                error = _error(decoder, whole.body, ids_B1, pairs)
            except Exception as failed:  # memory that is used up, a compiler that is missing
                notes.append(f"{name} does not run at {sequences} sequences with a cache: {reason_of(failed)}")
                continue
            refuse_above(tolerance, error, f"{name} at {sequences} sequences with a cache")
            calls[name] = continuing(decoder.step, pairs)
        times = time_calls(calls, [ids_B1], seconds / len(sizes), launched_by_host=True)
        best = simplest(times)
        chosen[sequences] = decoders.get(best)
        regimes.append(WholeRegime(sequences, tuple(ids_B1.shape), best, times, pairs[0][0].shape[2]))
    whole.decode_by_(chosen)
    return regimes, notes


class CompiledStep:
    """A step under torch.compile, once for each number of sequences and room of their cache: torch refuses to compile
    the same code more than a few times, and a generation needs new room every so many positions."""

    def __init__(self, model: Step, **options: Any) -> None:
        """`options` of torch.compile."""
        self._model, self._options = model, options
        self._compiled: dict[tuple[torch.Size, torch.Size], Step] = {}

    def __call__(self, ids_B1: Tensor, position: Tensor, cache: Memory) -> Tensor:
        """Scores [B, 1, V], as of the model."""
        shapes = ids_B1.shape, cache[0].shape
        if shapes not in self._compiled:
            self._compiled[shapes] = compiled_for_one_shape(self._model, **self._options)
        return self._compiled[shapes](ids_B1, position, cache)


def captured_decoders(model: OneToken) -> dict[str, CachedDecoder]:
    """The captured ways to run a step."""
    steps: dict[str, Step] = {LAYERS: model, ONE_GRAPH: CompiledStep(model)}
    return {f"{name}{CAPTURED}": CachedDecoder(step, model.cache, captured) for name, step in steps.items()}


def continuing(step: Callable[[Tensor, Pairs], Any], pairs: Pairs) -> Callable[[Tensor], Any]:
    """A call that takes one token more each time, and begins after `pairs` again now and then."""
    cache = list(pairs)

    def call(ids_B1: Tensor) -> Any:
        if cache[0][0].shape[2] >= pairs[0][0].shape[2] + AGAIN:
            cache[:] = pairs
        return step(ids_B1, cache)

    return call


@torch.no_grad()
def _error(decoder: CachedDecoder, body: nn.Module, ids_B1: Tensor, pairs: Pairs) -> float:
    """How far the scores of a few tokens are apart; both read the tokens that the model finds most likely."""
    mine, theirs, worst = list(pairs), list(pairs), 0.0
    for _ in range(COMPARED):
        expected = body(ids_B1, cache=theirs)
        worst = max(worst, typical_error(decoder.step(ids_B1, mine), expected))
        ids_B1 = expected.argmax(-1)
    return worst
