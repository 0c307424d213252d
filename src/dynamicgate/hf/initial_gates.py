"""Let the gates of a trained model begin by knowing which blocks matter, before any training.

For every token a block adds a vector to the output of the layer that reads it, and the norm of that vector says what
closing the block would lose. The gate network is fitted to predict the logarithm of this norm from what it reads, by a
ridge regression (D2DMoE trains its routers on the same target). The threshold is then put where the wanted fraction of
the blocks of each layer is open.

Shapes in names: B tokens, D features read, N units, G blocks, U units of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.data.contract import Inputs
from dynamicgate.gating.gate import Gate, StaticLogits, count_of
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.gating.stages import stages_of
from dynamicgate.gating.unit_order import weight_of
from dynamicgate.hf.activity import Update, between, observe, read_batches
from dynamicgate.hf.regression import Linear, RunningRidge, reduced_rank
from dynamicgate.linears import unwrapped
from dynamicgate.masks import connections
from dynamicgate.training.progress import Progress

TOKENS, QUANTILE_TOKENS = 16384, 2048
SPREAD = 2.0  # standard deviation of the logits over tokens and blocks, in temperatures
SHARED = 8.0  # temperatures above the threshold: blocks that are always open
FLOOR = 0.1  # of the mean norm: blocks that add less than this are all alike
LINEAR_FROM = 4.0  # standard deviations
LOOKING = 0.85  # of the time goes into the pass that fits, the rest into the one for thresholds
AT_ONCE = 2**30  # bytes of sums that are held in memory; more gates than fit are looked at in another pass


@torch.no_grad()
def init_gates_(
    model: nn.Module, batches: Any, *, open_rate: float, tokens: int = TOKENS, show: bool = True
) -> dict[str, float]:
    """Fit every gate of a trained model to what its blocks add to the output, in place.

    batches: typical inputs, as `measure` takes them; only the first `tokens` tokens are read.
    open_rate: the fraction of the blocks of each layer that is open on average, with those that are always open. A gate
        with `top_k` opens as many as that says.

    The blocks that `GateConfig.always_open` is for become those with the largest mean norm. Returns, by site, the
    fraction of the variance of the logarithms of the norms that the gate network explains.
    """
    gates = _fittable(model, open_rate)
    inputs = read_batches(batches, tokens)
    explained: dict[str, float] = {}
    shared: dict[str, Tensor] = {}
    with Progress("fitting gates", show=show) as progress:
        for part in _parts(gates):
            start, end = (LOOKING * done / len(gates) for done in (len(explained), len(explained) + len(part)))
            update = between(progress, start, end)
            for name, norms in _observe_norms(model, part, inputs, update).items():
                found = norms.ridge.solve()
                _write_(gates[name], found, norms.ridge)
                shared[name] = norms.total.topk(_always(gates[name])).indices
                explained[name] = found.explained
        logits = observe_logits(model, gates, inputs, between(progress, LOOKING, 1.0))
    for name, gate in gates.items():
        _put_threshold_(gate, logits[name], shared[name], open_rate)
    return explained


class BlockNorms:
    """The norm of what each block of a gate adds to the output of the consumer, and its regression on what is read."""

    def __init__(self, gate: Gate, consumer: nn.Module) -> None:
        """For a gate in front of `consumer`."""
        self.block, self.padding = gate.block, -gate.site.width % gate.block
        weight_OGU = F.pad(weight_of(unwrapped(consumer)).float(), (0, self.padding)).unflatten(1, (-1, self.block))
        self.gram = torch.einsum("ogu,ogv->guv", weight_OGU, weight_OGU)
        self.features = _features(gate)
        self.ridge = RunningRidge(self.features, gate.blocks)
        self.total = torch.zeros(gate.blocks, dtype=torch.float64)
        self.floor: float | None = None

    def of(self, h_BN: Tensor) -> Tensor:
        """The norm for each token and block: ||W h||^2 = h' (W'W) h, cheaper than the outputs of every block."""
        h_BGU = F.pad(h_BN.float(), (0, self.padding)).unflatten(1, (-1, self.block))
        return (torch.einsum("bgu,guv->bgv", h_BGU, self.gram) * h_BGU).sum(-1).clamp_min(0.0).sqrt()

    def add(self, x_BD: Tensor, h_BN: Tensor) -> None:
        """Take in a batch."""
        norm_BG = self.of(h_BN)
        if self.floor is None:  # of the first batch: all batches must be measured alike
            self.floor = max(FLOOR * float(norm_BG.mean()), 1e-30)
        self.total += norm_BG.sum(0).cpu()
        self.ridge.add(x_BD[:, : self.features].float(), norm_BG.clamp_min(self.floor).log())


def _observe_norms(
    model: nn.Module, gates: Mapping[str, Gate], inputs: Sequence[Inputs], update: Update
) -> dict[str, BlockNorms]:
    sites = [gate.site_at(name) for name, gate in gates.items()]
    found = {site.name: BlockNorms(gates[site.name], model.get_submodule(site.consumer)) for site in sites}
    observe(model, sites, inputs, lambda site, x_BD, h_BN: found[site.name].add(x_BD, h_BN), update)
    missed = [name for name, norms in found.items() if not norms.ridge.rows]
    if missed:
        raise ValueError(f"no batch reached the gate at {missed[0]!r}: pass other batches")
    return found


def observe_logits(
    model: nn.Module, gates: Mapping[str, Gate], inputs: Sequence[Inputs], update: Update | None = None
) -> dict[str, Tensor]:
    """The logits of every gate as if all were open, for up to QUANTILE_TOKENS tokens."""
    found: dict[str, list[Tensor]] = {name: [] for name in gates}

    def see(site: Site, x_BD: Tensor, _h: Tensor) -> None:
        room = QUANTILE_TOKENS - sum(map(len, found[site.name]))
        if room > 0:
            found[site.name].append(gates[site.name].net(x_BD[:room]).float())

    few = read_batches(list(inputs), QUANTILE_TOKENS)
    observe(model, [gate.site_at(name) for name, gate in gates.items()], few, see, update)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _write_(gate: Gate, found: Linear, ridge: RunningRidge) -> None:
    """Put a regression into the gate network, with as much rank as it has."""
    net, last, bias_G = gate.net, gate.last, found.bias
    if isinstance(net, StaticLogits):
        net.bias.copy_(bias_G)
        return
    assert isinstance(last, nn.Linear)
    if net is last:
        _copy_(last, found.weight, bias_G)
        return
    assert isinstance(net, nn.Sequential)
    first = net[0]
    assert isinstance(first, nn.Linear)
    inner_RD, outer_GR = reduced_rank(found.weight, ridge.covariance, first.out_features)
    unused = first.out_features - len(inner_RD)
    outer_GR = F.pad(outer_GR, (0, unused))
    if gate.config.net == "two-layer":  # far enough above zero for ReLU to be linear on nearly all tokens
        offset_R = LINEAR_FROM * outer_GR.norm(dim=0)[: len(inner_RD)] - inner_RD @ ridge.mean
        bias_G = bias_G - outer_GR[:, : len(inner_RD)] @ offset_R
        first.bias[: len(inner_RD)] = offset_R.to(first.bias)
    inner_RD = torch.cat([inner_RD, first.weight[len(inner_RD) :].cpu().double()])
    _copy_(first, inner_RD, None)
    _copy_(last, outer_GR, bias_G)


def _copy_(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight.copy_(weight)
    mask = connections(linear)
    if mask is not None:
        linear.weight.mul_(mask)
    if bias is not None:
        linear.bias.copy_(bias)


def _put_threshold_(gate: Gate, logits_BG: Tensor, shared: Tensor, open_rate: float) -> None:
    """Scale the logits, and shift them so that the wanted fraction of them is above the threshold."""
    last: Any = gate.last
    tau, threshold = float(gate.tau), float(gate.logit_threshold)
    others = torch.ones(gate.blocks, dtype=torch.bool)
    others[shared] = False
    values = logits_BG[:1] if gate.config.kind == "static" else logits_BG  # the same in every row
    values = values[:, others.to(values.device)].flatten().sort(descending=True).values
    if not len(values):
        values = logits_BG.flatten()[:1]
    wanted = round((open_rate * gate.blocks - len(shared)) / max(1, gate.blocks - len(shared)) * len(values))
    spread = max(float(values.std(correction=0)), 1e-6)
    between = values[max(wanted - 1, 0) : wanted + 1].mean() if wanted < len(values) else values[-1] - spread
    gain = SPREAD * tau / spread
    if gate.config.kind != "static":
        last.weight.mul_(gain)
        last.weight[shared.to(last.weight.device)] = 0.0
    last.bias.sub_(between).mul_(gain).add_(threshold)
    last.bias[shared.to(last.bias.device)] = threshold + SHARED * tau


def _fittable(model: nn.Module, open_rate: float) -> dict[str, Gate]:
    """The gates of the model; an error for those that cannot be fitted."""
    gates = named_gates(model)
    if not 0.0 < open_rate <= 1.0:
        raise ValueError(f"open_rate is a fraction of the blocks: expected 0 < open_rate <= 1, received {open_rate}")
    if not gates or stages_of(model) is not None:
        raise ValueError("this model has no gates on units, or has stages: call dynamicgate.gate_(model, ...) first")
    for name, gate in gates.items():
        if gate.config.learns_from_open:
            raise ValueError(
                f"the gate at {name!r} weights its open blocks (a router, or scale='softmax' or 'relu'): a trained "
                "model would not compute the same with it. Use kind='dynamic' and another scale, with top_k= if need be"
            )
        if gate.site_at(name).is_input:
            raise ValueError(f"the gate at {name!r} is on input features: fit gates on hidden units only")
        if open_rate * gate.blocks <= _always(gate):
            raise ValueError(
                f"open_rate={open_rate:g} of {gate.blocks} blocks leaves none to choose besides the {_always(gate)} "
                f"that are always open at {name!r}: use fewer of these, or a higher rate"
            )
    return gates


def _parts(gates: Mapping[str, Gate]) -> Iterator[dict[str, Gate]]:
    """The gates, in parts whose sums fit into memory."""
    part: dict[str, Gate] = {}
    used = 0
    for name, gate in gates.items():
        features = _features(gate)
        needed = 8 * features * (features + gate.blocks)
        if part and used + needed > AT_ONCE:
            yield part
            part, used = {}, 0
        part[name] = gate
        used += needed
    yield part


def _features(gate: Gate) -> int:
    """How many values the gate network reads; a static gate reads none."""
    first = gate.net[0] if isinstance(gate.net, nn.Sequential) else gate.net
    return first.in_features if isinstance(first, nn.Linear) else 0


def _always(gate: Gate) -> int:
    return count_of(gate.config.always_open, gate.blocks)
