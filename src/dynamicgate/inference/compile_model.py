"""`compile`: from a trained model to a checked and timed plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from dynamicgate import ops
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.compiled_model import CompiledModel, assemble
from dynamicgate.inference.cpu.breakdown import regimes_of, ungated
from dynamicgate.inference.cpu.choose import TORCH, Forms, choose
from dynamicgate.inference.cpu.find import Path, find_paths, look, trace
from dynamicgate.inference.cpu.lower import lower
from dynamicgate.inference.gpu.choose import compile_on_gpu
from dynamicgate.inference.plan import Plan
from dynamicgate.inference.profiling import MOST_ROWS, about_closed, executed, inputs_of, never_open
from dynamicgate.inference.shadow_copy import detach_from_, held_bytes, sharing
from dynamicgate.inference.verify import check
from dynamicgate.modules import unwrap


def compile(
    model: nn.Module,
    example: Tensor,
    *,
    batches: Sequence[int] = (1, 16, 256),
    calibration: Tensor | None = None,
    drop_never_open: bool = False,
    memory: float | None = None,
    threads: int | None = None,
    seconds: float = 8.0,
) -> CompiledModel:
    """Turn a trained model into one that gives the same outputs faster: on the CPU in float32, or, where `example` is
    on a CUDA GPU, there in its own precision (see docs/gpu.md; what follows is about the CPU).

    Runs of Linear layers with gates, masks, activations and normalisation become chains. For each of them the
    candidates (dense in torch, dense panels, zero-skipping, gated by block or unit, sparse, gated and sparse) are timed
    on `example` at each of `batches`; a dense one is always among them. The result is compared with the hard model,
    and refused with a ValueError where it differs. What cannot become a chain stays in torch, and the plan says why.
    `model` is not changed.

    example: inputs as in use, some hundred rows if possible: the open units decide what is fastest.
    calibration: inputs to look for blocks that never open in (the example by default); they are reported, and removed
        only with `drop_never_open`, which changes the outputs of inputs that would have opened them.
    memory: at most this multiple of the dense weights is held (more than one form may be, for different batch sizes).
    threads: of torch, while timing. seconds: about how long all timing may take.
    """
    model = unwrap(model)
    _check_arguments(example, batches)
    if example.is_cuda:
        if drop_never_open or memory is not None or threads is not None:
            raise ValueError("drop_never_open, memory and threads are for plans on the CPU, the example is on a GPU")
        return compile_on_gpu(model, example, batches=batches, calibration=calibration, seconds=seconds)
    hard = sharing(nn.Sequential(model) if isinstance(model, nn.Linear) else model)
    gates = named_gates(hard)
    example = example[:MOST_ROWS].detach()
    with torch.no_grad(), _threads(threads):
        macs, open_rates = executed(hard, gates, example)
        never = never_open(hard, gates, example if calibration is None else calibration.detach())
        graph, paths, notes = _find_chains(hard, gates, example)
        forms = [Forms(lower(path, gates, never if drop_never_open else {})) for path in paths]
        dropped = {site: never[site] for f in forms for site in f.lowered.dropped}
        chains = [f.chain([f.get(TORCH)], [0], [1]) for f in forms]
        nodes = [path.nodes for path in paths]
        body = hard if graph is None else assemble(hard, graph, nodes, chains)
        regimes = []
        for path, chain, f, rows in zip(paths, chains, forms, inputs_of(body, chains, example), strict=True):
            share = seconds / len(paths)
            chosen = choose(f, ungated(path), rows, batches, open_rates=open_rates, seconds=0.7 * share, memory=memory)
            regimes.append(regimes_of(path, f, chosen, rows, batches, macs, 0.3 * share))
            chain.use_(chosen.forms, chosen.at, batches)
        detach_from_(body, model)
        plan = Plan(
            regimes,
            notes + about_closed(gates, never, dropped),
            backend=ops.backend(),
            threads=torch.get_num_threads(),
            memory=sum(held_bytes(c) for c in chains) / max(1, sum(f.dense_bytes for f in forms)),
        )
        checked = check(CompiledModel(body, plan, nodes), model, example, batches=batches, dropped=dropped)
    return CompiledModel(body, replace(plan, checked=checked), nodes)


def _find_chains(
    hard: nn.Module, gates: Mapping[str, Gate], example: Tensor
) -> tuple[fx.Graph | None, list[Path], list[str]]:
    """The traced model, the parts of it that become chains, and sentences on what does not."""
    try:
        graph = trace(hard)
    except ValueError as error:
        return None, [], [f"the model runs in torch as it is: {error}"]
    look(hard, graph, example[:8])
    paths, why = find_paths(hard, graph, gates)
    return graph if paths else None, paths, _about_torch(hard, why)


def _about_torch(hard: nn.Module, why: Mapping[str, str]) -> list[str]:
    linears = {name for name, m in hard.named_modules() if isinstance(m, nn.Linear)}
    reasons: dict[str, list[str]] = {}
    for name, reason in why.items():
        if name in linears:
            reasons.setdefault(reason, []).append(name)
    return [f"{', '.join(map(repr, names))} in torch as before: {reason}" for reason, names in reasons.items()]


def _check_arguments(example: Tensor, batches: Sequence[int]) -> None:
    if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
        shape = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"example must be a tensor of rows of features, at least one, received {shape}")
    if not example.is_cuda and (example.dtype is not torch.float32 or example.device.type != "cpu"):
        raise ValueError(
            f"example must be on a CUDA GPU, or float32 on the cpu, received {example.dtype} on {example.device}"
        )
    if not batches or list(batches) != sorted(set(batches)) or min(batches) < 1:
        raise ValueError(f"batches must be ascending numbers of rows, at least 1, received {tuple(batches)}")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
