"""The one MAC counter: what every layer executes, given which blocks are open (sec 3.6, 3.8(3)).

A layer with gates on both sides executes, for one row, ``g_out^T C g_in`` multiply-accumulates, where C counts the
existing connections between a block of outputs and a block of inputs. Counts are made per row and summed: a product of
mean open rates is not the mean of the products. The same functions count hard decisions (0 or 1) exactly and
probabilities in expectation, so that a penalty can be a differentiable cost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.attention import AttentionMacs, module_around
from dynamicgate.accounting.convolutions import ConvMacs
from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.accounting.scaling import Costs, Scaling
from dynamicgate.accounting.sides import Side, StageSides
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.gating.stages import STAGES, StageGate, stages_of
from dynamicgate.gating.work import Work
from dynamicgate.linears import adapter_sides, in_features, is_linear, out_features, outer_name
from dynamicgate.masks import connections
from dynamicgate.modules import unwrap


class MacCounter:
    """The layers, gates and fixed costs of a model, ready to be counted. Made by `count_macs(model, example)`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        rows: Mapping[str, float],
        other: float = 0.0,
        attention: Mapping[str, float] | None = None,
        positions: Mapping[str, float] | None = None,
        scaling: Scaling | None = None,
        shape: tuple[Any, ...] | None = None,
        readers_only: bool = False,
        other_layers: Mapping[str, float] | None = None,
    ) -> None:
        """Count `model`, whose Linear layers process `rows` rows for one sample, and whose gated convolutions process
        `rows` images, by layer name.

        rows: a layer that is absent was not called on its own (attention calls its projection by another way) and is
            part of `other`. `count_macs` finds both by running the model on an example.
        other: MACs per sample of everything that is not a Linear layer, without those in `attention` and `positions`.
        attention: MACs per sample of the scores and the mixing of gated heads, by site name, with all heads open.
        positions: of the outputs of convolutions with gates on their channels, in all images of a sample, by name.
        scaling: how all of these change with the tokens of a sample; None: they do not, or nobody knows how.
        shape: of the example that was counted; None: any.
        readers_only: count as the published MNIST and Speech Commands code does: a closed unit saves the work of the
            layer that reads it, never that of the layer that writes it.
        other_layers: what is known of `other` by module, for messages.
        """
        base = unwrap(model)
        self.gates = named_gates(base)
        self.sites = {name: gate.site_at(name) for name, gate in self.gates.items()}
        self.scaling, self.shape, self.positions = scaling, shape, dict(positions or {})
        self.other_layers = dict(other_layers or {})
        self._writers = [name for name in self.gates if self.saves_producers(name) and not readers_only]
        written_by = {producer: name for name in self._writers for producer in self.sites[name].producers}
        self.stages = stages_of(base)
        gate_modules = [*self.gates.values(), *([self.stages] if self.stages is not None else [])]
        inside_gates = {id(m) for gate in gate_modules for m in gate.modules()}
        sides = StageSides(base, self.stages)
        self.layers: list[LayerMacs] = []
        self.convs: list[ConvMacs] = []
        for path, m in base.named_modules():
            name = outer_name(path)
            is_conv = isinstance(m, nn.Conv2d) and name in self.positions
            if not (is_linear(m) or is_conv) or id(m) in inside_gates or name not in rows:
                continue
            reads, writes = adapter_sides(name)
            sizes = (m.in_channels, m.out_channels) if isinstance(m, nn.Conv2d) else (in_features(m), out_features(m))
            site = reads if reads in self.gates else None
            read = sides.side(name, sizes[0], site, self.gates.get(reads), read=True)
            out_site = written_by.get(writes)
            out_gate = None if out_site is None else self.gates[out_site]
            written = sides.side(name, sizes[1], out_site, out_gate, read=False)
            if isinstance(m, nn.Conv2d):
                each = self.positions[name] / (rows[name] or 1.0)
                conv = ConvMacs(name=name, conv=m, rows=rows[name], positions=each, read=read, written=written)
                self.convs.append(conv)
            else:
                self.layers.append(LayerMacs(name=name, linear=m, rows=rows[name], read=read, written=written))
        # a vision tower that the example did not use: other samples may
        self._some_unused = len(self.layers) < sum(
            is_linear(m) and id(m) not in inside_gates for m in base.modules()
        )  # fmt: skip
        self._stack_end = sides.names[-1] if self.stages is not None else None
        nets = [m for gate in self.gates.values() for m in gate.net.modules() if isinstance(m, nn.Linear)]
        self._masked: list[nn.Module] = [*nets, *(part.linear for part in self.layers), *(c.conv for c in self.convs)]
        self._cache: dict[str, tuple[Any, Any]] = {}
        self._set(Costs(dict(rows), other, dict(attention or {})))

    def _set(self, costs: Costs, keys: Mapping[str, Tensor] | None = None) -> None:
        """Count samples of these costs. keys: of each token, by site of gated heads."""
        self.rows = costs.rows
        self.layers = [replace(layer, rows=costs.rows[layer.name]) for layer in self.layers]
        self.convs = [replace(conv, rows=costs.rows[conv.name]) for conv in self.convs]
        # of gates that come too late to save it, attention is a fixed cost
        self.attention_macs = {name: macs for name, macs in costs.attention.items() if name in self._writers}
        self.other = costs.other + sum(costs.attention.values()) - sum(self.attention_macs.values())
        self.attention = [
            AttentionMacs(
                name=f"{module_around(self.sites[name])} scores and mixing",
                rows=self.rows[name],
                per_row=macs / (self.rows[name] or 1.0),
                read=Side(units=self.sites[name].width),
                written=Side(units=self.sites[name].width, site=name, gate=self.gates[name]),
                keys=(keys or {}).get(name),
            )
            for name, macs in self.attention_macs.items()
        ]
        self.stage_rows = 1.0 if self._stack_end is None else self.rows[self._stack_end]
        self._gate_rows = {name: self.rows[site.source] for name, site in self.sites.items()}

    def at(self, work: Work | None) -> MacCounter:
        """The counter of the mean sample of these forward passes, whatever the length of the example was; itself where
        nobody knows how costs change with the length."""
        if work is None or self.scaling is None:
            return self
        found = copy.copy(self)  # which shares what was counted for a row
        found.__dict__.pop("dense", None)
        heads = {site: work.keys[layer] for site, layer in self.scaling.heads.items() if layer in work.keys}
        found._set(self.scaling.costs(work), heads)
        return found

    @property
    def depends_on_shape(self) -> bool:
        """Whether a sample of another shape may cost something else, and nobody knows how much. Where costs are known
        for every number of tokens, images and sounds are left."""
        if self.shape is None:
            return False
        if self.scaling is None or self.scaling.one_length:
            return self.other > 0 or bool(self.positions) or {*self.rows.values()} != {1.0}
        return self._some_unused or any(holds_numbers for _, _, holds_numbers, _ in self.shape)

    def counts(self, gates: Mapping[str, Gate], stages: StageGate | None) -> bool:
        """Whether it was made for the model with these gates, and not for another one or a copy."""
        return self.stages is stages and self.gates == dict(gates)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` needs, as plain JSON values."""
        costs = {"rows": dict(self.rows), "other": self.other, "attention": dict(self.attention_macs)}
        costs |= {"positions": self.positions} if self.positions else {}
        return {**costs, "scaling": None if self.scaling is None else asdict(self.scaling), "shape": self.shape}

    @classmethod
    def from_dict(cls, model: nn.Module, saved: Mapping[str, Any]) -> MacCounter:
        """The counter of `model` that `to_dict` wrote down for the same model."""
        scaling = None if saved["scaling"] is None else Scaling(**saved["scaling"])
        costs: dict[str, Any] = {name: saved.get(name) for name in ("rows", "other", "attention", "positions")}
        shape = saved.get("shape")  # absent in checkpoints from before images of several sizes were counted
        if shape is not None:  # JSON has lists only
            shape = tuple((name, tuple(size), *others) for name, size, *others in shape)
        return cls(model, **costs, scaling=scaling, shape=shape)

    @classmethod
    def for_mlp(cls, model: nn.Module, *, readers_only: bool = False) -> MacCounter:
        """The counter of an MLP: every Linear layer runs exactly once for every sample, and nothing else costs MACs.
        Nothing checks that; for any other model use `count_macs(model, example)`."""
        layers = [outer_name(n) for n, m in unwrap(model).named_modules() if is_linear(m) or isinstance(m, nn.Conv2d)]
        return cls(model, rows=dict.fromkeys(layers, 1.0), readers_only=readers_only)

    @property
    def parts(self) -> list[LayerMacs | AttentionMacs | ConvMacs]:
        """Everything whose cost depends on gates or masks: convolutions with gated channels, the linear layers, and the
        attention of gated heads."""
        return [*self.convs, *self.layers, *self.attention]

    @property
    def always_executed(self) -> dict[str, float]:
        """By module, the MACs per sample that no gate can save: layers without one, and what is no such layer."""
        fixed = {p.name: p.present * p.rows for p in self.parts if not (p.read.closes or p.written.closes)}
        rest = self.other - sum(self.other_layers.values())
        if rest > 0.0:
            fixed["what is no Linear layer, such as attention"] = rest
        return dict(sorted((fixed | self.other_layers).items(), key=lambda item: -item[1]))

    def saves_producers(self, site: str) -> bool:
        """Whether closed units of a site also save the work of the layers that write them: a gate that reads its own
        layer's output comes too late for that."""
        return self.gates[site].saves_producers

    @cached_property
    def dense(self) -> float:
        """MACs per sample of the base model: no gates, no masks."""
        return sum(part.dense * part.rows for part in self.parts) + self.other

    @property
    def gate(self) -> float:
        """MACs per sample of all gate networks, counted in full: they run on every input."""
        return self._of_gates(self.gates)

    @property
    def gate_on_channels(self) -> float:
        """Those of gates on channels."""
        return self._of_gates([name for name, site in self.sites.items() if site.channels])

    def gate_macs(self, site: str) -> float:
        """MACs per sample of the gate network at a site."""
        return self._of_gates([site])

    def _of_gates(self, names: Iterable[str]) -> float:
        macs = self._cached("gate", lambda: {name: gate.macs for name, gate in self.gates.items()})
        return float(sum(macs[name] * self._gate_rows[name] for name in names))

    @property
    def all_open(self) -> float:
        """`relative` with every gate open: the most that the present connections can execute."""
        layers: list[LayerMacs | ConvMacs] = [*self.convs, *self.layers]
        present = self._cached("present", lambda: [layer.present for layer in layers])
        connected = sum(macs * layer.rows for macs, layer in zip(present, layers, strict=True))
        heads = sum(self.stages.head_macs) * self.stage_rows if self.stages is not None else 0.0
        return (connected + sum(self.attention_macs.values()) + heads + self.gate + self.other) / self.dense

    def all_open_without(self, removed: Callable[[Any], float]) -> float:
        """`all_open` after `removed(layer)` more connections of each Linear layer have been pruned."""
        going = self._cached("going", lambda: [removed(layer.linear) for layer in self.layers])
        rows = (layer.rows for layer in self.layers)
        return self.all_open - sum(count * each for count, each in zip(going, rows, strict=True)) / self.dense

    def _cached(self, name: str, count: Callable[[], Any]) -> Any:
        """What is counted for a row, again only when a mask has changed: every training step asks, and on a GPU an
        answer is a wait."""
        masks = [connections(layer) for layer in self._masked]
        now = [None if mask is None else (id(mask), mask._version) for mask in masks]
        now += [(id(gate.net), 0) for gate in self.gates.values()]  # a gate may become constant in training
        now += [(id(gate), gate.net.counts._version) for gate in self.gates.values() if gate.config.kind == "context"]
        if name not in self._cache or self._cache[name][0] != now:
            self._cache[name] = (now, count())
        return self._cache[name][1]

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """Mean MACs per sample under `decisions`, gate networks and everything else included."""
        constant: Tensor | float = self.gate + self.other  # by itself, in float64: float32 would round it at every sum
        varying = self._deciding(decisions)
        for part in self.parts:
            macs = part.executed(decisions)
            if macs.ndim:
                varying = macs.sum() / max(1, macs.numel()) * part.rows + varying  # no rows (of a rank) cost 0
            else:
                constant = macs * part.rows + constant
        if not isinstance(varying, Tensor):
            return torch.as_tensor(constant)
        return varying + (constant.to(varying) if isinstance(constant, Tensor) else constant)

    def _deciding(self, decisions: Mapping[str, Tensor]) -> Tensor | float:
        """Mean MACs per sample of the heads that decide on stages: each runs where its stage is open."""
        each = self.deciding(decisions)
        return 0.0 if each is None else each.sum() / max(1, each.numel()) * self.stage_rows

    def deciding(self, decisions: Mapping[str, Tensor]) -> Tensor | None:
        """The same for each row; None without such heads."""
        if self.stages is None or not any(self.stages.head_macs):
            return None
        open_BK = decisions[STAGES]
        return open_BK @ torch.tensor(self.stages.head_macs, dtype=open_BK.dtype, device=open_BK.device)

    def relative(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """`executed` as a fraction of `dense`: the headline number."""
        return self.executed(decisions) / self.dense

    def relative_at(self, open_rate: float) -> float:
        """What the model would cost if every gate were open for this fraction of inputs, independently."""
        exact: dict[str, Any] = {"dtype": torch.float64}  # float32 cannot hold the MACs of a large model
        rates = {
            name: torch.full((1, gate.blocks), open_rate, device=gate.tau.device, **exact)
            for name, gate in self.gates.items()
        }
        if self.stages is not None:  # the first stage is open for every row
            rates[STAGES] = torch.full((1, self.stages.count), open_rate, device=self.stages.cut.device, **exact)
            rates[STAGES][:, 0] = 1.0
        return float(self.relative(rates))


def deployed(gates: Mapping[str, Gate], used: Usage) -> dict[str, Tensor]:
    """The decisions that count: hard gates as they are, a gate that is evaluated softly as open throughout, and the
    stages that opened."""
    found = {
        name: torch.ones_like(used[name].open) if gate.config.evaluate == "soft" else used[name].open
        for name, gate in gates.items()
    }
    stages = used.stages
    return found if stages is None else {**found, STAGES: stages.open}
