"""Does a compiled model compute what its model computes? Compared in float64, on the example and on random inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.gating.stages import stages_of
from dynamicgate.inference.plan import Verification
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.inference.verify import TOLERANCE, near_cut, near_threshold, near_tie, refuse_above

MAX_REFERENCE_MACS = 4e9  # a few seconds in float64


@torch.no_grad()
def verify_model(
    compiled: nn.Module,
    model: nn.Module,
    x: Tensor,
    *,
    batches: Sequence[int] = (1, 16),
    dropped: Mapping[str, Tensor] | None = None,
    tolerance: float = TOLERANCE,
    what: str = "the plan",
) -> Verification:
    """Compare `compiled` with `model` in evaluation mode, on rows of `x` and on random ones, at each batch size.

    Raises ValueError if an output differs by more than the tolerance. dropped: for each site, the blocks that were
    removed although some input could open them. Rows that open one are not compared, nor are rows near a threshold.
    what: how an error calls what is compared.
    """
    wide = _reference_model(model, x)
    gates = named_gates(wide)
    rows = _rows_to_compare(x, model)
    stages = stages_of(wide)
    by_chance = stages is not None and stages.config.decide == "random"
    # With a capacity, or a random number for each row, the output of a row depends on its batch: then the reference is
    # computed for each batch.
    independent = all(gate.config.capacity is None for gate in gates.values()) and not by_chance
    expected, near = _reference(wide, gates, rows, dropped or {}) if independent else (rows, rows)
    error, left_out, compared = 0.0, 0, 0
    for batch in batches:
        for index in (torch.arange(max(batch, len(rows))) % len(rows)).split(batch):
            y = _with_fixed_seed(compiled, rows[index])
            want, skip = expected[index], near[index]
            if not independent:
                want, skip = _reference(wide, gates, rows[index], dropped or {})
            scale = max(float((expected if independent else want).abs().max()), 1e-6)
            wrong = (y.double() - want).abs().flatten(1).amax(1)[~skip] / scale
            worst = float(wrong.max()) if wrong.numel() else 0.0
            refuse_above(tolerance, worst, f"batch {batch}", what)
            error, left_out, compared = max(error, worst), left_out + int(skip.sum()), compared + int((~skip).sum())
    return Verification(compared, left_out, error)


def _reference_model(model: nn.Module, x: Tensor) -> nn.Module:
    """`model` in float64. Raises ValueError if it does not run: a forward that was replaced from outside may hold
    tensors that no copy converts, and a plan that cannot be verified is not given out."""
    wide = copy_in_float64(model)
    try:
        _with_fixed_seed(wide, x[:1].double())
    except RuntimeError as error:
        replaced = [name or "the model" for name, module in model.named_modules() if "forward" in vars(module)]
        blamed = f" The forward of {', '.join(map(repr, replaced))} was replaced: undo that, or" if replaced else ""
        raise ValueError(
            f"the plan cannot be verified, because the model does not run in float64: {error}.{blamed} make tensors "
            "that it reads parameters or buffers of a module"
        ) from error
    return wide


def _rows_to_compare(x: Tensor, model: nn.Module) -> Tensor:
    """Rows of the example and as many random ones of the same mean and spread, the same ones every time."""
    linears, convs = (
        sum(m.weight.numel() for m in model.modules() if isinstance(m, kind)) for kind in (nn.Linear, nn.Conv2d)
    )
    cost = linears * max(1, x[0].numel() // x.shape[-1]) + convs * x[0].shape[-2:].numel()
    count = int(min(len(x), 256, max(8, MAX_REFERENCE_MACS / max(1, cost) / 2)))
    generator = torch.Generator().manual_seed(0)
    spread, middle = float(x.std(correction=0)), float(x.mean())
    random = torch.randn(count, *x.shape[1:], generator=generator) * spread + middle
    return torch.cat((x[:count], random.to(x)))


def _reference(
    wide: nn.Module, gates: Mapping[str, Gate], rows: Tensor, dropped: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs in float64, and which rows have a decision that rounding could change."""
    near_B = torch.zeros(len(rows), dtype=torch.bool)
    with usage(wide) as used, _ties_of_contexts(gates, near_B):
        y = _with_fixed_seed(wide, rows.double())
        for name, gate in gates.items():
            near_BG = near_threshold(gate, used[name])
            if name in dropped:
                near_BG = near_BG | ((used[name].open != 0) & dropped[name])
            of_site_B = near_BG.reshape(len(rows), -1).any(1)
            # With a capacity, a row that switches expert can push out any other row: one such row excludes the batch.
            near_B |= of_site_B if gate.config.capacity is None else of_site_B.any()
        stages = stages_of(wide)
        if stages is not None and used.stages is not None:
            near_B |= near_cut(stages, used.stages).reshape(len(rows), -1).any(1)
    return y, near_B


@contextmanager
def _ties_of_contexts(gates: Mapping[str, Gate], near_B: Tensor) -> Iterator[None]:
    """Mark in `near_B` the rows whose two nearest prototypes are so alike that rounding may swap them: a context gate
    says only which blocks are open, not how far it was from another answer."""

    def mark(net: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(net, ContextNet)
        if net.named is None:
            known = net.closeness(args[0])[..., net.known]
            near_B.logical_or_(near_tie(known).reshape(len(near_B), -1).any(1))

    nets = [gate.net for gate in gates.values() if isinstance(gate.net, ContextNet)]
    handles = [net.register_forward_pre_hook(mark) for net in nets]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_fixed_seed(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs, with the same random numbers each time (experts may be filled in random order)."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which notes the traceback of each call for a GPU that may come: 0.2 to 0.9 ms
        torch.default_generator.manual_seed(0)
        return model(x)
