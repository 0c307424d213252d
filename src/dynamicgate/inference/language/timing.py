"""Time whole models: prompts, and one more token after them, or batches of rows where there is no cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.inference.decoder_parts import CacheKind
from dynamicgate.inference.language.calls import Generation, Inputs
from dynamicgate.inference.language.native import NativeDecoder
from dynamicgate.inference.language.plan import BYTES, TORCH, ModelRegime
from dynamicgate.inference.language.work import Work
from dynamicgate.inference.timing import RoundRobin

MARGIN = 0.97  # a margin of less than 3 % over torch is noise
MIN_ROUNDS, MAX_ROUNDS = 3, 50


@dataclass(frozen=True)
class Timed:
    """One way to call the model: the times of all candidates, and for native ones where the time goes and how much is
    read."""

    name: str
    tokens: int
    times: dict[str, float]
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    macs: float = 0.0

    def regime(self, chosen: str) -> ModelRegime:
        """What a plan keeps of it: the parts of the candidate that was chosen."""
        macs = self.macs if chosen in self.megabytes else 0.0
        return ModelRegime(
            self.name, self.tokens, self.times, self.parts.get(chosen, {}), self.megabytes.get(chosen, 0.0), macs
        )


def time_models(
    bodies: Mapping[str, nn.Module], inputs: Inputs, kind: CacheKind | None, batches: Sequence[int], seconds: float,
    read_rates: Sequence[float], work: Work | None = None, most: int | None = None,
) -> list[Timed]:  # fmt: skip
    """One for each way to call the model. read_rates: which fractions one row reads of what gates read in part. work:
    what native decoders execute. most: positions that it was made for; where the example leaves too few of them, one
    more token is not timed."""
    ids = inputs.ids
    with torch.inference_mode():
        if ids is None or kind is None:
            return _time_rows(bodies, inputs, batches, seconds)
        sequences, tokens = ids.shape
        calls = {name: (lambda body=body: Generation(body, kind).step(ids)) for name, body in bodies.items()}
        first = median_times(calls, seconds=seconds / 2)
        name = f"a prompt of {tokens} tokens" + _of(sequences)
        read = {
            key: _megabytes(decoder, read_rates, sequences * tokens, 0) for key, decoder in _decoders(bodies).items()
        }
        executed = work.macs(sequences, 0, tokens) if work else 0.0
        prompt = Timed(name, sequences * tokens, first, _parts(bodies, calls), read, executed)
        rounds = MAX_ROUNDS if most is None else min(MAX_ROUNDS, most - tokens - 2)  # every call takes one more
        if rounds < MIN_ROUNDS:
            return [prompt]
        started = {name: Generation(body, kind) for name, body in bodies.items()}
        for generation in started.values():
            generation.step(ids)
        new = ids[:, -1:]
        calls = {name: (lambda g=generation: g.step(new)) for name, generation in started.items()}
        times = median_times(calls, seconds=seconds / 2, at_most=rounds)
        name = f"one more token after {tokens}" + _of(sequences)
        read = {name: _megabytes(decoder, read_rates, sequences, tokens) for name, decoder in _decoders(bodies).items()}
        executed = work.macs(sequences, tokens, 1) if work else 0.0
        return [prompt, Timed(name, sequences, times, _parts(bodies, calls), read, executed)]


def choose(regimes: Sequence[Timed]) -> str:
    """The candidate that is fastest over all regimes: torch unless another is clearly faster, and rounded weights,
    which change the outputs, only if they are clearly faster than all others."""

    def cost(name: str) -> float:
        return sum(log(regime.times[name]) for regime in regimes)

    clearly = len(regimes) * log(MARGIN)
    names = regimes[0].times
    best = min((name for name in names if name != BYTES), key=cost)
    best = TORCH if cost(best) > cost(TORCH) + clearly else best
    return BYTES if BYTES in names and cost(BYTES) < cost(best) + clearly else best


def _time_rows(bodies: Mapping[str, nn.Module], inputs: Inputs, batches: Sequence[int], seconds: float) -> list[Timed]:
    found = []
    for batch in batches:
        some = inputs.rows(torch.arange(batch) % inputs.batch)
        calls = {name: (lambda body=body, some=some: some.call(body)) for name, body in bodies.items()}
        times = median_times(calls, seconds=seconds / len(batches))
        found.append(Timed(f"batch {batch}", batch, times, _parts(bodies, calls)))
    return found


def median_times(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 0.0, rounds: int = MIN_ROUNDS,
    at_most: int = MAX_ROUNDS, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Median microseconds of each call; they take turns, for `seconds` and at least for so many rounds.
    clock: `time.process_time` leaves out the time of other processes, and is for one thread only."""
    for call in calls.values():
        call()

    def measure(name: str) -> float:
        start = clock()
        calls[name]()
        return 1e6 * (clock() - start)

    robin, started = RoundRobin(calls), time.perf_counter()
    for number in range(max(rounds, at_most)):
        if number >= rounds and time.perf_counter() - started > seconds:
            break
        robin.run(measure)
    return {name: statistics.median(times) for name, times in robin.times.items()}


def _decoders(bodies: Mapping[str, nn.Module]) -> dict[str, NativeDecoder]:
    """The native decoders, by candidate."""
    return {name: part for name, body in bodies.items() for part in body.modules() if isinstance(part, NativeDecoder)}


def _parts(bodies: Mapping[str, nn.Module], calls: Mapping[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Where the time of one native call goes, by candidate."""
    found = {}
    for name, decoder in _decoders(bodies).items():
        seconds: Tensor = torch.zeros(len(ops.decoder.PARTS), dtype=torch.float64)
        decoder.seconds = seconds
        calls[name]()
        decoder.seconds = None
        found[name] = dict(zip(ops.decoder.PARTS, (1e6 * seconds).tolist(), strict=True))
    return found


def _megabytes(decoder: NativeDecoder, read_rates: Sequence[float], rows: int, past: int) -> float:
    """What one step of a native decoder reads, if its rows open different blocks of a feed-forward layer as if by
    chance. past: positions in the cache of each row."""
    layers, _, key_heads, size = decoder.sizes
    closed = sum((1.0 - rate) ** rows for rate in read_rates) / max(1, len(read_rates))
    weights = decoder.weights.numel() - decoder.gated_floats * closed
    return 4e-6 * (weights + 2 * layers * rows * key_heads * size * past)


def _of(sequences: int) -> str:
    return f", {sequences} sequences" if sequences > 1 else ""
