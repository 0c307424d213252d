"""`compile` on a CUDA GPU: find the gated feed-forward layers, time the ways to run them, check the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt

import torch
from torch import Tensor, nn

from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.compiled_model import CompiledModel, assemble
from dynamicgate.inference.gpu.cuda_graph import Recorded
from dynamicgate.inference.gpu.ffn import COMPILED, FeedForward, way
from dynamicgate.inference.gpu.find import Pair, Room, find_pairs
from dynamicgate.inference.gpu.timing import race
from dynamicgate.inference.gpu.verify import Truth, errors_at
from dynamicgate.inference.plan import LayerPlan, Plan, Regime
from dynamicgate.inference.profiling import MOST_ROWS, about_closed, executed, inputs_of, never_open
from dynamicgate.inference.shadow_copy import detach_from_, held_bytes, sharing
from dynamicgate.ops.ffn.decode import MOST_TOKENS

MOST_RECORDED = 1024  # tokens: beyond, launching takes hardly a part of the time, and recordings hold memory
PREFER_DENSE = 0.95  # a lead of less than 5 % over dense may be noise, and is gone the next time
UNGATED = "ungated"
Call = Callable[[Tensor], Tensor]


def compile_on_gpu(
    model: nn.Module, example: Tensor, *, batches: Sequence[int], calibration: Tensor | None, seconds: float
) -> CompiledModel:
    """`compile` where `example` is on a GPU. `batches` are numbers of tokens: rows that enter a layer."""
    hard = sharing(model)
    gates = named_gates(hard)
    example = example[:MOST_ROWS].detach()
    with torch.no_grad():
        macs, _ = executed(hard, gates, example)
        never = never_open(hard, gates, example if calibration is None else calibration.detach())
        rooms, why = find_pairs(hard, gates)
        pairs = [pair for room in rooms for pair in room.pairs]
        layers = [FeedForward(pair) for pair in pairs]
        body = _assembled(hard, rooms, layers)
        detach_from_(body, model)
        notes = [f"the gate of {site!r} stays in torch: {reason}" for site, reason in why.items()]
        regimes, checks = [], []
        for pair, layer, rows_RD in zip(pairs, layers, inputs_of(body, layers, example), strict=True):
            truth = Truth(pair, rows_RD)
            times = _times(layer, rows_RD, batches, seconds / len(pairs), notes, sure=len(truth.rows_RD) > 0)
            _use(layer, rows_RD, batches, times)
            regimes.append([_regime(pair, layer, batch, t, macs) for batch, t in zip(batches, times, strict=True)])
            checks.append(errors_at(truth, layer, batches if len(truth.rows_RD) else ()))
    plan = Plan(
        regimes,
        list(dict.fromkeys(notes)) + about_closed(gates, never, {}),
        checked={key: fold(c[key] for c in checks) for key, fold in (("rows", sum), ("ties", sum), ("error", max))}
        if checks
        else {},
        backend=_backend(example.device),
        threads=torch.get_num_threads(),
        memory=sum(map(held_bytes, layers)) / max(1, sum(_dense_bytes(pair) for pair in pairs)),
    )
    return CompiledModel(body, plan, None)


def _assembled(hard: nn.Module, rooms: Sequence[Room], layers: Sequence[FeedForward]) -> nn.Module:
    """`hard` with its gated feed-forward layers replaced, room by room."""
    left = iter(layers)
    for room in rooms:
        nodes = [pair.nodes for pair in room.pairs]
        new = assemble(hard.get_submodule(room.name), room.graph, nodes, [next(left) for _ in nodes])
        if not room.name:
            return new
        above, _, name = room.name.rpartition(".")
        setattr(hard.get_submodule(above), name, new)
    return hard


def _times(
    layer: FeedForward, rows_RD: Tensor, batches: Sequence[int], seconds: float, notes: list[str], *, sure: bool
) -> list[dict[str, float]]:
    """For each number of tokens the microseconds of every way. sure: there are rows to check them on."""
    found = []
    for batch in batches:
        names = [UNGATED, f"{UNGATED}{COMPILED}", *layer.candidates(batch)]
        if not sure:
            names = [name for name in names if not name.startswith(("gated", "decode"))]
            notes.append("every row has a logit at a threshold, so that only dense ways can be trusted")
        xs = _inputs(rows_RD, batch)
        calls: dict[str, Call] = {}
        for name in names:
            call: Call = partial(way(name), layer)
            try:
                for _ in range(2):  # compile, choose, allocate
                    call(xs[0])
            except Exception as error:  # a compiler that is missing, or has no way to do this
                notes.append(f"{name!r} does not run here: {type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                calls[name] = call
        found.append(race(calls, xs, seconds / len(batches)))
    return found


def _inputs(rows_RD: Tensor, tokens: int) -> list[Tensor]:
    """A few different inputs of so many tokens, cycling through the rows there are."""
    count = 8 if tokens <= 64 else 2
    index = torch.arange(count * tokens, device=rows_RD.device) % len(rows_RD)
    return [rows_RD[part] for part in index.split(tokens)]


def _use(layer: FeedForward, rows_RD: Tensor, batches: Sequence[int], times: Sequence[Mapping[str, float]]) -> None:
    """Let the fastest way run each number of tokens; between two of them the nearer on a log scale counts."""
    ways: list[tuple[int | None, str]] = []
    recorded = {}
    for i, (batch, row) in enumerate(zip(batches, times, strict=True)):
        best = fastest(row)
        most = int(sqrt(batch * batches[i + 1])) if i + 1 < len(batches) else None
        if best == "decode":
            ways.append((MOST_TOKENS if most is None else min(most, MOST_TOKENS), best))
            others = {name: t for name, t in row.items() if name != best}
            ways += [(None, fastest(others))] if most is None else []
        else:
            ways.append((most, best))
        if batch <= MOST_RECORDED and rows_RD.is_cuda:
            recorded[batch] = Recorded(partial(way(best), layer), _inputs(rows_RD, batch)[0])
    layer.use_(ways, recorded)


def fastest(times: Mapping[str, float]) -> str:
    """The name of the fastest way that computes what the model computes; a dense one unless another is ahead of it."""
    ways = {name: t for name, t in times.items() if not name.startswith(UNGATED)}
    best = min(ways, key=lambda name: ways[name])
    dense = min((name for name in ways if name.startswith("dense")), key=lambda name: ways[name])
    return dense if ways[dense] * PREFER_DENSE <= ways[best] else best


def _regime(
    pair: Pair, layer: FeedForward, batch: int, times: Mapping[str, float], macs: Mapping[str, float]
) -> Regime:
    """What the plan says: times are shared out over the layers by their MACs."""
    chosen = fastest(times)
    dense_us = min(t for name, t in times.items() if name.startswith(UNGATED))
    linears = [linear for linear in (pair.up, pair.value, pair.down) if linear is not None]
    whole = sum(linear.weight.numel() for linear in linears)
    work = sum(macs[name] for name in pair.names)
    words = chosen.replace("gated", f"block-gated ({layer.block})").replace("decode", f"decode ({layer.block})")
    words += ", recorded" if batch in layer.recorded else ""
    rows = []
    for name, linear in zip(pair.names, linears, strict=True):
        shape = (linear.out_features, linear.in_features)
        part, dense = macs[name] / max(work, 1.0), linear.weight.numel() / whole
        rows.append(LayerPlan(name, shape, words, dense_us * dense, times[chosen] * part, macs[name]))
    return Regime(batch, rows, chosen, {name: t for name, t in times.items() if not name.startswith(UNGATED)}, dense_us)


def _dense_bytes(pair: Pair) -> int:
    linears = [linear for linear in (pair.up, pair.value, pair.down) if linear is not None]
    return sum(t.numel() * t.element_size() for linear in linears for t in linear.parameters(recurse=False))


def _backend(device: torch.device) -> str:
    return f"triton on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "torch"
