"""Run a model once on an example: how many rows each layer processes for a sample, and what else costs MACs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynamicgate.accounting.attention import module_around
from dynamicgate.accounting.convolutions import gated_convs
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.grouped_matmul import grouped_formulas
from dynamicgate.accounting.scaling import Scaling
from dynamicgate.data.contract import Inputs, call, count_samples
from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.integrations import Tokens, watch_tokens
from dynamicgate.gating.recording import named_gates, unrecorded
from dynamicgate.gating.stages import stages_of
from dynamicgate.linears import is_linear, outer_name
from dynamicgate.modules import evaluating, unwrap

ROTARY = "RotaryEmbedding"
NOT_ROW_BY_ROW = (torch.ops.aten.bmm, torch.ops.aten.baddbmm, torch.ops.aten.convolution)
Shape: TypeAlias = tuple[tuple[str | int, tuple[int, ...], bool, float], ...]


def count_macs(model: nn.Module, example: Inputs) -> MacCounter:
    """The counter of any model, from one forward pass on `example` in evaluation mode.

    In a Hugging Face model padding does not count, and `MacCounter.at` is the counter for sequences of other lengths.

    example: a tensor of a few samples, or a tuple or a mapping of what the model is called with.
    """
    from torch.utils.flop_counter import FlopCounterMode  # here: it imports Triton

    base, samples = unwrap(model), count_samples(example)
    around = {name: module_around(g.site_at(name)) for name, g in named_gates(base).items() if g.site.is_heads}
    convs = gated_convs(base)
    flops = FlopCounterMode(display=False, custom_mapping=grouped_formulas())
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused attention kernel is one op that no counter looks into
    with watch_tokens(base, {}) as tokens:
        trace = _Trace(base, tokens, flops, around.values(), convs)
        try:
            # MATH: the counter does not know the fused attention of the CPU. Gradients on: without, a view of a
            # parameter (static logits, once for each row) claims to need a gradient that it does not have, and the
            # counter trips.
            with (
                evaluating(base), unrecorded(base), sdpa_kernel(SDPBackend.MATH), torch.enable_grad(),
                _plain_stages(base), flops,
            ):  # fmt: skip
                call(base, example)
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            trace.remove_hooks()
    trace.check_experts()
    positions = {outer_name(name): count / samples for name, count in trace.positions.items()}
    work = None if tokens is None else tokens.work()
    if tokens is None or work is None:
        attention = {site: max(0.0, round(trace.macs[name] / samples)) for site, name in around.items()}
        other = max(
            0.0, round(flops.get_total_flops() / 2 / samples - sum(attention.values()) - trace.linear / samples)
        )
        by_outer_name = {outer_name(name): count / samples for name, count in trace.rows.items()}
        return MacCounter(
            base,
            rows=by_outer_name,
            other=other,
            attention=attention,
            positions=positions,
            shape=shape_of(example),
            other_layers=_other_layers(base, flops, samples, convs),
        )
    scaling = _scaling(tokens, trace, around, samples)
    costs = scaling.costs(work)
    shape = shape_of(example)
    counter = MacCounter(base, **costs._asdict(), positions=positions, scaling=scaling, shape=shape)
    return counter.at(work)


def shape_of(inputs: Inputs) -> Shape:
    """What decides the cost of one sample: the name and shape of each input without its first dimension, whether it
    holds numbers (an image, a sound) and not token ids, and how many entries it has for a sample: a text may come with
    several images, or none."""
    values: Iterable[tuple[str | int, Any]] = (
        inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs if isinstance(inputs, tuple) else (inputs,))
    )
    tensors = [(name, value) for name, value in values if isinstance(value, Tensor)]
    entries = [len(value) / max(1, count_samples(inputs)) if value.ndim else 1.0 for _, value in tensors]
    return tuple(
        (name, tuple(value.shape[1:]), value.is_floating_point(), each)
        for (name, value), each in zip(tensors, entries, strict=True)
    )


def _other_layers(model: nn.Module, flops: Any, samples: int, convs: Mapping[str, nn.Conv2d]) -> dict[str, float]:
    """By module without modules of its own, such as a convolution: the MACs per sample. Not those of linear layers and
    of `convs`."""
    found = {}
    root = type(model).__name__
    for name, module in model.named_modules():
        inside = any(module is part for gate in named_gates(model).values() for part in gate.modules())
        leaf = not any(True for _ in module.children())
        if name and leaf and not is_linear(module) and not inside and name not in convs:
            macs = sum(flops.flop_counts.get(f"{root}.{name}", {}).values()) / 2 / samples
            if macs:
                found[name] = macs
    return found


def _scaling(tokens: Tokens, trace: _Trace, around: Mapping[str, str], samples: int) -> Scaling:
    """What a token and a pair of query and key cost."""
    pairs = {
        name: trace.macs[name] / count
        for name, count in tokens.pairs.items()
        if trace.macs[name] > 0 and trace.macs[name] % count == 0  # else not every query meets every key
    }
    left = dict.fromkeys(tokens.parts, 0.0) | {"": 0.0}  # by part, what is neither linear layer nor attention
    for name, macs in trace.macs.items():
        left[_part_around(name, tokens.parts)] += 0.0 if name in pairs else max(0.0, macs)
    per_token = {part: macs / tokens.positions[part] for part, macs in left.items() if tokens.positions.get(part)}
    # An attention of other kinds of pairs, or convolutions along a sequence, which read beyond its ends.
    unknown = any(part in per_token for name, part in trace.unknown(tokens.parts).items() if name not in pairs)
    heads = {site: next((n for n in pairs if n == name or _is_below(n, name)), name) for site, name in around.items()}
    return Scaling(
        calls={outer_name(name): dict(streams) for name, streams in trace.streams.items()},
        fixed_rows={outer_name(name): count / samples for name, count in trace.fixed.items()},
        other={part: macs for part, macs in per_token.items() if macs},
        fixed_other=sum(macs for part, macs in left.items() if part not in per_token) / samples,
        pairs=pairs,
        heads=heads,
        one_length=unknown,
    )


class _Trace:
    """Hooks that see how many rows each linear layer processes, and which module computes everything else."""

    def __init__(
        self,
        model: nn.Module,
        tokens: Tokens | None,
        flops: Any,
        others: Iterable[str],
        convs: Mapping[str, nn.Conv2d],
    ) -> None:
        self.tokens, self.flops = tokens, flops
        self.rows: dict[str, float] = {}
        self.fixed: dict[str, float] = {}
        """Rows that belong to no stream."""
        self.streams: dict[str, Counter[str]] = {}
        self.positions: dict[str, float] = {}
        """By convolution with gated channels: the positions of its outputs in all images."""
        self.linear = 0.0
        """MACs of all linear layers and of these convolutions. Masked weights are multiplied all the same here, and
        gate networks too."""
        modules = dict(model.named_modules())
        watched = [] if tokens is None else [*tokens.parts, *tokens.attentions]
        self._experts = [name for name, m in modules.items() if _holds_experts(m)]
        self.macs = dict.fromkeys(["", *watched, *others, *self._experts], 0.0)
        """By module: what it computes outside of linear layers and of the other modules named here."""
        # Angles are products of two numbers, which torch writes as a matrix product.
        rotary = [name for name, m in modules.items() if tokens is not None and type(m).__name__.endswith(ROTARY)]
        self._running: list[str] = []
        self._called: set[str] = set()
        self._batched: Counter[str] = Counter()
        self._handles: list[Any] = []
        for name in {**self.macs, **dict.fromkeys(rotary)}:
            self._handles += self._around(modules[name], name)
        self._handles += [m.register_forward_pre_hook(self._linear(n)) for n, m in modules.items() if is_linear(m)]
        self._handles += [
            m.register_forward_pre_hook(self._context) for m in modules.values() if isinstance(m, ContextNet)
        ]
        self._handles += [conv.register_forward_hook(self._conv(name)) for name, conv in convs.items()]
        self._seen = self._seen_batched = 0

    def remove_hooks(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    def check_experts(self) -> None:
        """An error for experts that ran and of which nothing was seen."""
        unseen = [name for name in self._experts if name in self._called and not self.macs[name]]
        if unseen:
            raise ValueError(
                f"the experts at {unseen[0]!r} are computed by a kernel whose MACs cannot be counted: call "
                'model.set_experts_implementation("grouped_mm"), or "eager"'
            )

    def unknown(self, parts: Iterable[str]) -> dict[str, str]:
        """Modules whose cost is not known to be in proportion to tokens, and the part that each is in."""
        return {n: _part_around(n, parts) for n, count in self._batched.items() if count and n not in self._experts}

    def _settle(self) -> None:
        """Give what was computed since the last time to the innermost module that is running."""
        now = self.flops.get_total_flops()
        by_operation = self.flops.flop_counts["Global"]
        batched = sum(by_operation.get(operation, 0) for operation in NOT_ROW_BY_ROW)
        if self._running and self._running[-1] in self.macs:
            self.macs[self._running[-1]] += (now - self._seen) / 2
            self._batched[self._running[-1]] += batched - self._seen_batched
        self._seen, self._seen_batched = now, batched

    def _around(self, module: nn.Module, name: str) -> list[Any]:
        def start(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            self._settle()
            self._running.append(name)
            self._called.add(name)

        def stop(_module: nn.Module, _args: tuple[Any, ...], _out: Any) -> None:
            self._settle()
            self._running.pop()

        return [module.register_forward_pre_hook(start), module.register_forward_hook(stop)]

    def _context(self, net: Any, args: tuple[Any, ...]) -> None:
        """Products with prototypes are those of a gate network, which the counter knows."""
        if net.named is None:
            self._known(args[0].shape[:-1].numel() * net.prototypes.numel())

    def _known(self, macs: float) -> None:
        """These MACs are those of a layer that the counter knows."""
        self.linear += macs
        if self._running and self._running[-1] in self.macs:
            self.macs[self._running[-1]] -= macs

    def _conv(self, name: str) -> Any:
        def count(conv: nn.Conv2d, _args: tuple[Any, ...], out: Tensor) -> None:
            images, positions = out.shape[:-3].numel(), out.shape[-2:].numel()
            if self.rows.get(name) and self.positions[name] / self.rows[name] != positions:
                raise ValueError(
                    f"{name!r} has a gate on its channels and runs on images of several sizes in one forward pass, "
                    "which cannot be counted: take the gate off with ungate_"
                )
            for found in (self.rows, self.fixed):
                found[name] = found.get(name, 0.0) + images
            self.positions[name] = self.positions.get(name, 0.0) + images * positions
            self._known(images * positions * conv.weight.numel())

        return count

    def _linear(self, name: str) -> Any:
        def count(module: nn.Module, args: tuple[Any, ...]) -> None:
            x: Tensor = args[0]
            rows, macs = x.shape[:-1].numel(), x.shape[:-1].numel() * module.weight.numel()  # type: ignore[operator]
            self.rows[name] = self.rows.get(name, 0.0) + rows
            self._known(macs)
            stream = None if self.tokens is None else self.tokens.stream(name, x)
            if stream is None:
                self.fixed[name] = self.fixed.get(name, 0.0) + rows
            else:
                self.streams.setdefault(name, Counter())[stream] += 1

        return count


def _holds_experts(module: nn.Module) -> bool:
    """Whether it holds one weight matrix for each of several experts."""
    return "Experts" in type(module).__name__ and any(p.ndim == 3 for p in module.parameters(recurse=False))


def _part_around(name: str, parts: Iterable[str]) -> str:
    return max((part for part in parts if part == name or _is_below(name, part)), key=len, default="")


def _is_below(name: str, module: str) -> bool:
    return not module or name.startswith(f"{module}.")


def _plain_stages(model: nn.Module) -> AbstractContextManager[None]:
    """Without decisions on stages: in torch they cost a second output layer that no plan computes."""
    stages = stages_of(model)
    return nullcontext() if stages is None else stages.skipped()
