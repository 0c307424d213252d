"""The models that are compared: each a plain function from settings and data to a network and, perhaps, a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynamicgate.budget import Budget
from dynamicgate.compare.settings import Settings, dense_macs
from dynamicgate.data import Splits
from dynamicgate.gate import GateConfig
from dynamicgate.nn import GatedMLP, Normalize

Prepared = tuple[GatedMLP, Budget | None]


def dense(s: Settings, splits: Splits) -> Prepared:
    """The plain network: the quality to reach and the MACs to save."""
    return _mlp(s.hidden, splits), None


def small(s: Settings, splits: Splits) -> Prepared:
    """A dense network as narrow as the budget: the control that every method must beat."""

    def macs(hidden: tuple[int, ...]) -> int:
        return dense_macs((splits.train.features, *hidden, splits.classes))

    narrower = [tuple(max(1, round(width * k / 4096)) for width in s.hidden) for k in range(1, 4097)]
    best = min(narrower, key=lambda hidden: abs(macs(hidden) - s.budget * macs(s.hidden)))
    return _mlp(best, splits), None


def dropout(s: Settings, splits: Splits) -> Prepared:
    """The dense network with dropout: regularisation without any saving."""
    return _mlp(s.hidden, splits, dropout=s.dropout), None


def static(s: Settings, splits: Splits) -> Prepared:
    """One learned logit per unit, the same units for every input, at the same budget."""
    config = GateConfig(kind="static", block=s.block, train=s.policy, tau=s.tau, theta=s.theta, scale=s.scale)
    return _mlp(s.hidden, splits, dropout=s.dropout, gate=config), Budget(target=s.budget)


def gate(s: Settings, splits: Splits) -> Prepared:
    """Input-dependent gates, held to the budget: DynamicGate."""
    shape = {"net": s.net, "rank": s.rank, "block": s.block}
    config = GateConfig(**shape, train=s.policy, tau=s.tau, theta=s.theta, scale=s.scale)  # type: ignore[arg-type]
    return _mlp(s.hidden, splits, dropout=s.dropout, gate=config), Budget(target=s.budget)


MODELS: dict[str, Callable[[Settings, Splits], Prepared]] = {
    "dense": dense,
    "small": small,
    "dropout": dropout,
    "static": static,
    "gate": gate,
}


def _mlp(hidden: Sequence[int], splits: Splits, *, dropout: float = 0.0, gate: GateConfig | None = None) -> GatedMLP:
    sizes = (splits.train.features, *hidden, splits.classes)
    return GatedMLP(sizes, gate, dropout=dropout, normalize=Normalize(splits.mean, splits.std))
