"""The whole model as one graph, for calls of known shapes.

Layer by layer a model runs at the speed of its kernels only where those are large. Around them lie norms, residual
sums, attention and a head, which torch.compile fuses; and a call of few tokens is some forty small kernels, which a
CUDA graph launches at once. Shapes that nobody named run layer by layer.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.inference.gpu.cuda_graph import CapturedCall
from dynamicgate.inference.gpu.decoding import MOST_SEQUENCES, CachedDecoder, Pairs
from dynamicgate.inference.gpu.timing import time_calls
from dynamicgate.inference.plan import WholeRegime
from dynamicgate.inference.verify import refuse_above

LAYERS = "layer by layer"
ONE_GRAPH = "one graph"
CAPTURED = ", captured"
MOST_CAPTURED = 4096  # tokens: beyond, launches take hardly any of the time, and captured graphs hold memory
NOTICEABLE = 0.98
Call = Callable[[Tensor], Tensor]


class WholeModel(nn.Module):
    """`body`, and for some shapes of inputs a faster call that gives the same outputs."""

    def __init__(self, body: nn.Module) -> None:
        """Runs layer by layer until `use_` is called."""
        super().__init__()
        self.body = body
        self.calls: dict[tuple[int, ...], Any] = {}
        self.decoders: dict[int, CachedDecoder | None] = {}

    def use_(self, calls: Mapping[tuple[int, ...], Call]) -> None:
        """Let these run inputs of exactly these shapes."""
        self.calls = dict(calls)

    def decode_by_(self, decoders: Mapping[int, CachedDecoder | None]) -> None:
        """Let these take one more token of as many sequences; None stands for layer by layer. Numbers in between use
        the choice of the nearer one on a log scale, as in layers."""
        self.decoders = dict(decoders)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model. With a cache one token of each sequence may be a captured step; with anything else
        besides one tensor (a mask) it runs layer by layer."""
        if self.decoders and (step := _step_of(args, kwargs)) is not None and _may_replay():
            decoder = self._decoder_for(len(step[0]))
            if decoder is not None:
                return decoder.step(*step)
        alone = not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        call = self.calls.get(tuple(args[0].shape)) if alone else None
        if call is None or not _may_replay():
            return self.body(*args, **kwargs)
        with torch.no_grad():
            return call(args[0])

    def _decoder_for(self, sequences: int) -> CachedDecoder | None:
        return self.decoders[min(self.decoders, key=lambda measured: abs(log(sequences / measured)))]

    def _apply(self, fn: Any, recurse: bool = True) -> WholeModel:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.calls, self.decoders = {}, {}  # they hold the addresses of the old weights
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WholeModel:
        """A copy has weights of its own, which compiled and captured calls do not read."""
        return WholeModel(copy.deepcopy(self.body, memo))

    def extra_repr(self) -> str:
        """Shown by print."""
        return f"shapes {', '.join('x'.join(map(str, shape)) for shape in self.calls)}"


def _step_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Pairs] | None:
    """Tokens and cache of a call ``model(ids, cache)`` that asks for one more token of each sequence."""
    if len(args) + len(kwargs) != 2 or not args or (kwargs and "cache" not in kwargs):
        return None
    ids, cache = args[0], kwargs.get("cache", args[-1])
    fits = isinstance(ids, Tensor) and ids.ndim == 2 and ids.shape[1] == 1 and 0 < len(ids) <= MOST_SEQUENCES
    return (ids, cache) if fits and isinstance(cache, list) and cache else None


def choose_whole(
    whole: WholeModel, example: Tensor, batches: Sequence[int], *, seconds: float, tolerance: float
) -> tuple[list[WholeRegime], list[str]]:
    """Let the fastest way run each number of tokens; what was timed, and notes about what does not run here."""
    regimes, notes, calls = [], [], {}
    for tokens in batches:
        x = inputs_of_tokens(example, tokens)
        ways, said = _ways(whole.body, x, tokens)
        notes += said
        expected = whole.body(x)
        for name, call in ways.items():
            refuse_above(tolerance, typical_error(call(x), expected), f"{name} at {tokens} tokens")
        times = time_calls(ways, [x], seconds / len(batches), launched_by_host=True)
        best = simplest(times)
        if best != LAYERS:
            calls[tuple(x.shape)] = ways[best]
        regimes.append(WholeRegime(tokens, tuple(x.shape), best, times))
    whole.use_(calls)
    return regimes, notes


def simplest(times: Mapping[str, float]) -> str:
    """The first way that is about as fast as the fastest: graphs hold memory, and compiled ones take time to make."""
    return next(name for name in times if times[name] * NOTICEABLE <= min(times.values()))


def inputs_of_tokens(example: Tensor, tokens: int) -> Tensor:
    """So many tokens of the example. Of sequences [B, T, ...] first one token of each, as in decoding; where that is
    not enough, whole sequences, repeated if there are too few. Of rows [B, features] so many rows."""
    sequences = not example.is_floating_point() or example.ndim > 2
    length = example.shape[1] if sequences else 1
    if not sequences or tokens <= len(example) or length == 1:
        x = example[:, :1] if sequences else example
        return x[torch.arange(tokens, device=x.device) % len(x)].contiguous()
    if tokens <= length:
        return example[:1, :tokens].contiguous()
    rows = -(-tokens // length)
    return example[torch.arange(rows, device=example.device) % len(example)].contiguous()


def _ways(body: nn.Module, x: Tensor, tokens: int) -> tuple[dict[str, Call], list[str]]:
    """The ways to run the model on inputs like `x`, which has so many tokens; each of them has run."""
    found: dict[str, Call] = {LAYERS: body}
    notes = []
    try:
        one_graph = compiled_for_one_shape(body)
        for _ in range(2):
            one_graph(x)
    except Exception as error:  # a compiler that is missing, or a model that cannot be one graph
        notes.append(f"the model does not run as one graph: {reason_of(error)}")
    else:
        found[ONE_GRAPH] = one_graph
    if x.is_cuda and tokens <= MOST_CAPTURED:
        captures, said = captures_of(found, x, tokens)
        found, notes = found | captures, notes + said
    return found, notes


def captures_of(ways: Mapping[str, Call], x: Tensor, tokens: int) -> tuple[dict[str, Call], list[str]]:
    """The ways that can be captured, and notes about those that cannot: for want of memory, which captured graphs hold
    beside the model, or because a model waits for the GPU."""
    found: dict[str, Call] = {}
    notes = []
    for name, call in ways.items():
        try:
            found[f"{name}{CAPTURED}"] = CapturedCall(call, x)
        except Exception as error:
            notes.append(f"{name} is not captured for {tokens:,} tokens: {reason_of(error)}")
    return found, notes


def reason_of(error: Exception) -> str:
    """The kind of an error and its first two lines: those of compilers are long."""
    lines = str(error).split("\n", 2)[:2]
    return f"{type(error).__name__}: {' '.join(lines).strip()}"


def compiled_for_one_shape(body: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """`body` under torch.compile, for arguments of one shape.

    torch counts how often a piece of code was compiled, for all models and shapes together, and after a few times runs
    it eagerly. So each shape gets code of its own, which is equal but not the same.
    """

    def run(*args: Any) -> Tensor:
        return body(*args)

    own = types.FunctionType(run.__code__.replace(), run.__globals__, closure=run.__closure__)
    found: Callable[..., Tensor] = torch.compile(own, fullgraph=True, dynamic=False, **options)
    return found


def _may_replay() -> bool:
    """Not while someone compiles or captures the model: they need to see the work itself."""
    return not torch.compiler.is_compiling() and not (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )


def typical_error(mine: Tensor, theirs: Tensor) -> float:
    """The median over rows of the error, relative to the row. Not the largest: in 16 bits a logit at its threshold may
    fall on either side, and another sum order moves what the next layer's gate reads."""
    mine, theirs = (t.reshape(-1, t.shape[-1]).double() for t in (mine, theirs))
    return float(((mine - theirs).norm(dim=1) / theirs.norm(dim=1).clamp(min=1e-6)).median())
