"""What kind of gate to put on a site, and which choices go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from dynamicgate.choices import Policy as Policy
from dynamicgate.gating.routing import DropPolicy

OPEN, THETA, RANK = 0.8, 0.5, 8
STAGES = (0.2, 0.3, 0.5)
CONTEXTS = 10
LARGEST_BLOCK = 1 << 24  # units; of a narrower layer all
OF_STAGES = ("stages", "decide")  # options
OF_CONTEXTS = ("contexts",)
Decide = Literal["margin", "entropy", "head", "random"]


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """What kind of gate to put on a site.

    kind: "dynamic" decides from the input through a small network, "static" learns one logit per block, "router" lets
        the blocks compete as experts: p is a softmax over them, the `top_k` most probable open and are multiplied by p
        (from two on by p over the sum of the chosen), and only open experts get a gradient. "context" opens the blocks
        of the context that the nearest prototype names, see `dynamicgate.continual`. "stages" see below.
    block: units that open and close together; a ragged last block is fine. None is 1, and for attention heads those
        that share keys and values.
    open: p0, the probability of being open that training starts with (bias = tau * logit(open), sec 4.1(2)).
    tau, theta: temperature and threshold; p = sigmoid(z / tau), g = 1[p > theta].
    net: shape of the gate network: one "linear" layer, "low-rank" (two without a nonlinearity), "two-layer" (ReLU), or
        "auto", the cheaper of the first two: a linear gate on single units costs as much as the layer it gates. Or
        "magnitude", which costs nothing: units open that are larger than a threshold of their own (reads="same").
    rank: inner width of "low-rank" and "two-layer"; None is 8.
    reads: "previous" looks at h^(l-1), so that the producer's work can be skipped; "same" looks at h^(l), already
        computed, so that only the consumer's can.
    train: what the forward pass multiplies by in training: "hard" g with the straight-through gradient, "soft" p,
        a "bernoulli" draw of p (straight-through), a relaxed "concrete" sample, or its thresholded "gumbel" form.
    evaluate: "hard" (what will be deployed) or "soft".
    top_k: exactly this many blocks open (a count, or a fraction below 1) instead of the threshold (sec 3.4); for a
        router None is 1.
    scale: multiply open units by p as well, so that the gate also says how much (a router always does). "softmax": by
        the softmax of the logits of the open blocks, so that their weights add up to 1 however many they are. Blocks
        then compete as experts do, but each input opens as many as it needs, and only open blocks get a gradient.
        "relu": by z / tau - logit(theta), how far the logit lies above its threshold. Nothing jumps where a block
        closes, so that the gradient is the true one: closed blocks have none.
    soft_width: how far z / tau must be above its threshold before the block is fully open. Open units are multiplied by
        min(1, (z / tau - logit(theta)) / soft_width), which is 0 at the threshold, so that nothing jumps where a gate
        closes. 0 opens at once. Which blocks are open, and what that costs, does not depend on it.
    always_open: the most probable blocks that stay open whatever the threshold says (a count, or a fraction;
        sec 4.1(4)).
    capacity: a router's capacity factor: each expert takes at most ceil(capacity * rows * top_k / blocks) rows of a
        forward pass, in training and in evaluation, and drops the others; None: no limit.
    drop_policy: which rows a full expert keeps: the first ones in row order ("position"), or "random" ones.
    stages: with kind "stages", the sizes of the stages: fractions of the units of every hidden layer that add up to 1,
        or numbers of units. Easy inputs stop after an early stage; see `dynamicgate.gating.stages`. None is
        (0.2, 0.3, 0.5).
    decide: what says that a row needs the next stage: a small "margin" between its two largest outputs, the "entropy"
        of its outputs, a learned linear "head" that predicts how much the last stage would gain, or a "random" draw,
        the control for the others.
    contexts: with kind "context", how many can be told apart at most. None is 10.

    Options that mean nothing together are refused.
    """

    kind: Literal["dynamic", "static", "router", "stages", "context"] = "dynamic"
    block: int | None = None
    open: float = OPEN
    tau: float = 1.0
    theta: float = THETA
    net: Literal["auto", "linear", "low-rank", "two-layer", "magnitude"] = "auto"
    rank: int | None = None
    reads: Literal["previous", "same"] = "previous"
    train: Policy = "hard"
    evaluate: Literal["hard", "soft"] = "hard"
    top_k: int | float | None = None
    scale: bool | Literal["softmax", "relu"] = False
    soft_width: float = 0.0
    always_open: int | float = 0
    capacity: float | None = None
    drop_policy: DropPolicy = "position"
    stages: tuple[float, ...] | None = None
    decide: Decide = "margin"
    contexts: int | None = None

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, ("dynamic", "static", "router", "stages", "context"))
        _one_of("decide", self.decide, ("margin", "entropy", "head", "random"))
        _one_of("net", self.net, ("auto", "linear", "low-rank", "two-layer", "magnitude"))
        _one_of("reads", self.reads, ("previous", "same"))
        _one_of("train", self.train, ("hard", "soft", "bernoulli", "concrete", "gumbel"))
        _one_of("evaluate", self.evaluate, ("hard", "soft"))
        _one_of("drop_policy", self.drop_policy, ("position", "random"))
        if self.block is not None and (not isinstance(self.block, int) or self.block < 1):
            raise ValueError(f"block is a number of units and must be an integer >= 1, received {self.block!r}")
        if self.block is not None and self.block > LARGEST_BLOCK:
            raise ValueError(f"block={self.block}: no layer has so many units; the largest block is the layer's width")
        if self.rank is not None and (not isinstance(self.rank, int) or self.rank < 1):
            raise ValueError(f"rank must be an integer >= 1, received {self.rank!r}")
        if not 0.0 < self.open < 1.0:
            raise ValueError(f"open is a probability and must lie strictly between 0 and 1, received {self.open!r}")
        if not 0.0 < self.theta < 1.0:
            raise ValueError(f"theta is compared with a probability: expected 0 < theta < 1, received {self.theta!r}")
        if not (self.tau > 0.0 and math.isfinite(self.tau)):
            raise ValueError(f"the temperature tau must be positive and finite, received {self.tau!r}")
        if self.top_k is not None and (not self.top_k > 0 or _ambiguous(self.top_k)):
            raise ValueError(
                "top_k opens exactly k blocks: expected an integer k >= 1 or a fraction strictly between 0 and 1, "
                f"received {self.top_k!r}"
            )
        if self.always_open < 0 or _ambiguous(self.always_open):
            raise ValueError(
                "always_open is a number of blocks: expected an integer >= 0 or a fraction in [0, 1), "
                f"received {self.always_open!r}"
            )
        if self.capacity is not None and not (self.capacity > 0.0 and math.isfinite(self.capacity)):
            raise ValueError(f"capacity is a factor on an even load, expected more than 0, received {self.capacity!r}")
        if self.kind == "router" and (self.train, self.evaluate, self.always_open) != ("hard", "hard", 0):
            raise ValueError(
                "a router opens exactly top_k experts: expected train='hard', evaluate='hard' and always_open=0, "
                f"received {self.train!r}, {self.evaluate!r} and {self.always_open!r}"
            )
        if self.kind != "router" and (self.capacity is not None or self.drop_policy != "position"):
            raise ValueError(
                f"capacity and drop_policy are for experts: expected kind='router', received {self.kind!r}"
            )
        if not (self.soft_width >= 0.0 and math.isfinite(self.soft_width)):
            raise ValueError(
                f"soft_width is a distance between logits: expected a finite number >= 0, received {self.soft_width!r}"
            )
        self._check_stages()
        self._check_contexts()
        self._refuse_idle_options()
        self._check_scale()
        self._check_magnitude()
        if self.soft_width:
            self._check_soft_width()

    @property
    def competes(self) -> bool:
        """Whether open blocks share one weight by a softmax, and only they get a gradient: routers, and gates with
        ``scale="softmax"``."""
        return self.kind == "router" or self.scale == "softmax"

    @property
    def learns_from_open(self) -> bool:
        """Whether only open blocks get a gradient, so that nothing is lost if closed ones are never computed."""
        return self.competes or self.scale == "relu"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, as files hold them. Those of stages and of contexts are left out for other
        kinds: files without them stay as earlier versions wrote them."""
        others = (() if self.kind == "stages" else OF_STAGES) + (() if self.kind == "context" else OF_CONTEXTS)
        return {name: value for name, value in asdict(self).items() if name not in others}

    def _check_contexts(self) -> None:
        """A context gate has blocks and contexts, and nothing else; other gates have no contexts."""
        if self.kind != "context":
            if self.contexts is not None:
                raise ValueError(f"contexts is for kind='context', received kind={self.kind!r}")
            return
        if self.contexts is None:
            object.__setattr__(self, "contexts", CONTEXTS)
        if not isinstance(self.contexts, int) or self.contexts < 1:
            raise ValueError(f"contexts is a number of contexts, 1 or more, received {self.contexts!r}")
        allowed = ("kind", "block", "contexts")
        others = [f for f in fields(self) if f.name not in allowed and getattr(self, f.name) != f.default]
        if others:
            received = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in others)
            raise ValueError(f"{received} means nothing with kind='context', which has only block= and contexts=")

    def _check_stages(self) -> None:
        """Stages have sizes and a decision, and nothing else; other gates have neither."""
        if self.kind != "stages":
            if self.stages is not None or self.decide != "margin":
                raise ValueError(
                    f"stages and decide are for kind='stages', received kind={self.kind!r}, stages={self.stages!r} and "
                    f"decide={self.decide!r}"
                )
            return
        others = [f for f in fields(self) if f.name not in ("kind", *OF_STAGES) and getattr(self, f.name) != f.default]
        if others:
            received = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in others)
            raise ValueError(f"{received} means nothing with kind='stages', which has only stages= and decide=")
        stages = STAGES if self.stages is None else tuple(self.stages)
        object.__setattr__(self, "stages", stages)
        units = all(isinstance(size, int) for size in stages)
        if len(stages) < 2 or not all(size > 0 for size in stages):
            raise ValueError(f"stages are the sizes of two stages or more, all above 0, received {stages!r}")
        if not units and abs(sum(stages) - 1.0) > 1e-6:
            raise ValueError(
                "stages are fractions of the units of a layer that add up to 1, or whole numbers of units, received "
                f"{stages!r}, which adds up to {sum(stages):g}"
            )

    def _refuse_idle_options(self) -> None:
        """An option that would do nothing is a mistake."""
        router, static = self.kind == "router", self.kind == "static"
        idle = {
            "net": (static and self.net != "auto", "a static gate has no network"),
            "rank": (
                self.rank is not None and (static or self.net in ("linear", "magnitude")),
                "it is the inner width of net='low-rank' and 'two-layer'",
            ),
            "reads": (static and self.reads != "previous", "a static gate reads nothing"),
            "open": (router and self.open != OPEN, "a router opens top_k experts from the start"),
            "theta": (
                self.theta != THETA and (router or self.top_k is not None),
                "top_k takes the place of the threshold",
            ),
            "always_open": (self.top_k is not None and self.always_open != 0, "exactly top_k blocks are open"),
            "drop_policy": (
                self.capacity is None and self.drop_policy != "position",
                "no expert is full without capacity",
            ),
        }
        for name, (wrong, reason) in idle.items():
            if wrong:
                raise ValueError(
                    f"{name} means nothing with kind={self.kind!r}, net={self.net!r} and top_k={self.top_k!r}: "
                    f"{reason}. Leave it out; received {name}={getattr(self, name)!r}"
                )

    def _check_scale(self) -> None:
        if self.scale not in (False, True, "softmax", "relu"):
            raise ValueError(f"scale must be False, True, 'softmax' or 'relu', received {self.scale!r}")
        if self.scale == "softmax" and (self.kind != "dynamic" or "soft" in (self.train, self.evaluate)):
            raise ValueError(
                "scale='softmax' divides one weight among the open blocks of an input: expected kind='dynamic' and "
                f"hard decisions, received kind={self.kind!r}, train={self.train!r} and evaluate={self.evaluate!r}"
            )
        if self.scale == "relu":
            self._check_relu()

    def _named(self, refused: Mapping[str, bool]) -> str:
        """The options that are refused, with their values."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name, wrong in refused.items() if wrong)

    def _check_relu(self) -> None:
        """A block is multiplied by 0 at its threshold: it needs one, and blocks that are open above it alone."""
        refused = {
            "kind": self.kind not in ("dynamic", "static"),
            "train": self.train != "hard",
            "evaluate": self.evaluate != "hard",
            "top_k": self.top_k is not None,
            "always_open": self.always_open != 0,
        }
        if received := self._named(refused):
            raise ValueError(
                "scale='relu' multiplies open blocks by how far their logit is above a threshold: expected "
                "kind='dynamic' or 'static', train='hard', evaluate='hard', and neither top_k nor always_open, "
                f"received {received}"
            )
        if self.open < self.theta or (self.kind == "static" and self.open == self.theta):
            raise ValueError(
                "scale='relu' gives closed blocks no gradient, so that gates which begin closed never learn: expected "
                f"open above theta (equal is enough for kind='dynamic'), received open={self.open}, theta={self.theta}"
            )

    def _check_magnitude(self) -> None:
        """Magnitudes are those of the units themselves."""
        if self.net == "magnitude" and (self.kind != "dynamic" or self.reads != "same"):
            raise ValueError(
                "net='magnitude' opens units by how large they are: expected kind='dynamic' and reads='same', received "
                f"kind={self.kind!r} and reads={self.reads!r}"
            )

    def _check_soft_width(self) -> None:
        """Soft opening starts at the threshold: it needs one, and blocks that are open above it and nowhere else."""
        refused = {
            "kind": self.kind == "router",
            "train": self.train not in ("hard", "gumbel"),
            "evaluate": self.evaluate == "soft",
            "top_k": self.top_k is not None,
            "scale": bool(self.scale),
            "always_open": self.always_open != 0,
        }
        if received := self._named(refused):
            raise ValueError(
                "soft_width is for gates that open above a threshold: expected kind='dynamic' or 'static', "
                "train='hard' or 'gumbel', evaluate='hard', and neither top_k, scale nor always_open, "
                f"received {received} with soft_width={self.soft_width!r}"
            )


def _ambiguous(amount: int | float) -> bool:
    """Is 1.0 one block or all of them?"""
    return isinstance(amount, float) and not amount < 1.0


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, received {value!r}")
