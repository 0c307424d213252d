"""Methods of continual learning by name, each as a model and what goes into `follow` with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

import dynamicgate as dg
from dynamicgate.continual import EWC, SI, Contexts, Keeper, Learner, Readout, Replay, Stream
from dynamicgate.continual.learners import LwF
from dynamicgate.continual.plasticity import L2, L2Init, ShrinkAndPerturb
from dynamicgate.continual.reading_out import readout_model
from dynamicgate.continual.replay import AGEM, DarkReplay
from dynamicgate.sparsity import SET, Recycler, RigL, Static
from dynamicgate.sparsity.consolidation import Consolidation

FEATURES = 1000  # random ones, that a readout reads


class Made(NamedTuple):
    """A model, and what goes into `follow` with it."""

    model: nn.Module
    parts: dict[str, Any]


def mlp(stream: Stream, hidden: list[int], gate: dg.GateConfig | None = None) -> nn.Module:
    """A network for a stream."""
    return dg.nn.GatedMLP((stream.features, *hidden, stream.classes), gate)


def _learner(make: Callable[..., Learner], **options: Any) -> Callable[[Stream, dict[str, Any]], Made]:
    def build(stream: Stream, asked: dict[str, Any]) -> Made:
        model = mlp(stream, asked["hidden"])
        return Made(model, {"learner": make(model, **{**options, **asked.get("learner", {})})})

    return build


def _dense(stream: Stream, asked: dict[str, Any]) -> Made:
    return Made(mlp(stream, asked["hidden"]), {})


def _small(stream: Stream, asked: dict[str, Any]) -> Made:
    """A dense network of about the cost that gates are asked for."""
    scale = asked.get("budget", 0.35)
    return Made(mlp(stream, [max(4, round(scale * width)) for width in asked["hidden"]]), {})


def _gate(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"], dg.GateConfig(block=asked.get("block")))
    return Made(model, {"budget": dg.Budget(target=asked.get("budget", 0.35))} if "budget" in asked else {})


def _top_k(stream: Stream, asked: dict[str, Any]) -> Made:
    return Made(mlp(stream, asked["hidden"], dg.GateConfig(top_k=0.1)), {})


def _rigl(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"])
    return Made(model, {"sparsifier": RigL(model, asked.get("density", 0.2), every=asked.get("every"))})


def _static(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"])
    return Made(model, {"sparsifier": Static(model, asked.get("density", 0.2))})


def _set(stream: Stream, asked: dict[str, Any]) -> Made:
    """Half of the connections, a tenth of them exchanged at random at every update, to the end."""
    model = mlp(stream, asked["hidden"])
    density, every = asked.get("density", 0.5), asked.get("every")
    return Made(model, {"sparsifier": SET(model, density, every=every, until=1.0, fraction=0.1, seed=asked["seed"])})


def _set_l2(stream: Stream, asked: dict[str, Any]) -> Made:
    """The same, with weights held small: the strength that was chosen for 500 permutations."""
    made = _set(stream, asked)
    learner = L2(made.model, **{"strength": 3e-3, **asked.get("learner", {})})
    return Made(made.model, {**made.parts, "learner": learner})


def _recycled(**options: Any) -> Callable[[Stream, dict[str, Any]], Made]:
    """A dense network whose units are drawn anew: silent ones (ReDo), or useless ones (continual backprop)."""

    def build(stream: Stream, asked: dict[str, Any]) -> Made:
        model = mlp(stream, asked["hidden"])
        return Made(
            model, {"recycler": Recycler(model, seed=asked["seed"], **{**options, **asked.get("recycler", {})})}
        )

    return build


def _readout(*, balanced: bool) -> Callable[[Stream, dict[str, Any]], Made]:
    """An output layer in closed form on random features."""

    def build(stream: Stream, asked: dict[str, Any]) -> Made:
        units = asked.get("features", FEATURES)
        model = readout_model(stream.features, units, stream.classes, seed=asked["seed"])
        return Made(model, {"readout": Readout(units, decay=asked.get("decay", 1e-3), balanced=balanced)})

    return build


def _gate_rigl(stream: Stream, asked: dict[str, Any]) -> Made:
    model = mlp(stream, asked["hidden"], dg.GateConfig(block=asked.get("block", 16)))
    every = asked.get("every")
    if every is not None and every <= 0:
        return Made(model, {"sparsifier": Static(model, asked.get("density", 0.2))})
    after = asked.get("keep_after")  # exchanges that a connection has survived when it is kept
    keeper = None if after is None else Consolidation(model, after=after)
    sparsifier = RigL(model, asked.get("density", 0.2), every=every, until=1.0, keeper=keeper)
    return Made(model, {"sparsifier": sparsifier, **({} if keeper is None else {"keeper": keeper})})


def _keep(stream: Stream, asked: dict[str, Any]) -> Made:
    """Blocks of its own for every context; sparse by RigL from a dense start where a density is asked for."""
    tasks, width = len(stream), asked["width"]
    model = mlp(stream, [tasks * width], dg.GateConfig(kind="context", block=width, contexts=tasks))
    keeper = Keeper(model)
    sparsifier = None
    if asked.get("density"):
        sparsifier = RigL(model, asked["density"], initial_density=1.0, every=asked.get("every"), keeper=keeper)
    contexts = Contexts(model, keeper, sparsifier, share=1, reuse=asked.get("reuse", 0))
    return Made(model, {"contexts": contexts, **({} if sparsifier is None else {"sparsifier": sparsifier})})


def _separate(stream: Stream, asked: dict[str, Any]) -> Made:
    """Small dense networks behind the same router, with as many weights as `keep` has connections: its strongest
    control. They are blocks of one network, and kept, so that nothing else differs."""
    density = asked.get("density") or 1.0
    inputs, outputs = stream.features, stream.classes
    width = max(1, round(asked["width"] * (density * inputs + outputs) / (inputs + outputs)))
    return _keep(stream, {**asked, "width": width, "density": None})


def _xdg(stream: Stream, asked: dict[str, Any]) -> Made:
    """Context-dependent gating: a fifth of the units, at random, named by our router instead of a task's number."""
    blocks = 20
    hidden = asked["hidden"]
    config = dg.GateConfig(kind="context", block=max(1, hidden[0] // blocks), contexts=len(stream))
    model = mlp(stream, hidden, config)
    return Made(model, {"contexts": Contexts(model, share=max(1, blocks // 5), blocks="random")})


METHODS: dict[str, Callable[[Stream, dict[str, Any]], Made]] = {
    "naive": _dense, "joint": _dense, "dense": _dense, "small": _small, "gate": _gate, "top-k": _top_k,
    "static-sparse": _static, "rigl": _rigl, "gate+rigl": _gate_rigl, "keep": _keep, "xdg": _xdg,
    "ewc": _learner(EWC), "si": _learner(SI), "lwf": _learner(LwF), "er": _learner(Replay),
    "der++": _learner(DarkReplay), "a-gem": _learner(AGEM), "separate": _separate,
    "readout": _readout(balanced=False), "balanced-readout": _readout(balanced=True),
    "l2": _learner(L2), "l2-init": _learner(L2Init), "shrink-perturb": _learner(ShrinkAndPerturb),
    "redo": _recycled(kind="silent"), "cbp": _recycled(kind="useless"), "set": _set,
    "set-l2": _set_l2,
}  # fmt: skip
