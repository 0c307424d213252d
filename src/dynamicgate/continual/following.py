"""`follow`: train a model along a stream, and measure what it retains. The counterpart of `fit`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dynamicgate import distributed
from dynamicgate.budget import Budget, GateBudget
from dynamicgate.continual.contexts import Contexts
from dynamicgate.continual.learners import Learner
from dynamicgate.continual.optimizers import LR, WEIGHT_DECAY, OptimizerName, optimizer_maker
from dynamicgate.continual.references import measure_references
from dynamicgate.continual.retention import Retention
from dynamicgate.continual.streams import Stream
from dynamicgate.continual.walk import Walk
from dynamicgate.continual.walk_file import Parts
from dynamicgate.sparsity import Keeper, Recycler, Sparsifier
from dynamicgate.sparsity.consolidation import AnyKeeper
from dynamicgate.training.folder_lock import only_process
from dynamicgate.training.optimizer import MakeOptimizer, optimizer_settings
from dynamicgate.training.progress import Progress

LOCK = ".follow.lock"
Clock = Literal["task", "stream", "constant"]


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """The arguments of `follow` that decide the result."""

    epochs: int
    batch: int
    lr: float
    gate_lr_scale: float
    weight_decay: float
    optimizer: str | list[Any]
    clock: Clock
    horizon: int | None
    new_optimizer: bool
    test_every: int | None
    test_later: bool
    online: bool
    references: bool
    seed: int

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "horizon", "test_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, received {value}")
        if not self.lr > 0.0:
            raise ValueError(f"lr must be positive, received {self.lr}")
        if self.clock not in ("task", "stream", "constant"):
            raise ValueError(f"clock must be task, stream or constant, received {self.clock!r}")


def follow(
    model: nn.Module,
    stream: Stream,
    *,
    learner: Learner | None = None,
    keeper: AnyKeeper | None = None,
    contexts: Contexts | None = None,
    sparsifier: Sparsifier | None = None,
    recycler: Recycler | None = None,
    budget: GateBudget | None = None,
    epochs: int = 1,
    batch: int = 128,
    lr: float | None = None,
    gate_lr_scale: float = 1.0,
    weight_decay: float | None = None,
    optimizer: OptimizerName | MakeOptimizer = "adamw",
    clock: Clock = "task",
    horizon: int | None = None,
    new_optimizer: bool = True,
    test_every: int | None = None,
    test_later: bool = False,
    online: bool = False,
    references: bool = False,
    device: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    checkpoint_seconds: float = 15.0,
    label: str = "stream",
    show: bool = True,
) -> Retention:
    """Train `model` in place on the tasks of `stream`, one after the other, and test it on all tasks seen so far after
    each one. Tasks and what is told of them are those of the stream.

    learner: what is done against forgetting, or for plasticity; None is plain training.
    keeper: keeps the units that a task has used to the bit from its end on, or a `Consolidation`, which needs no end.
    contexts: of a model with context gates;
        has a keeper of its own. Where the stream says that nothing is known, they notice changes themselves.
    sparsifier, recycler, budget: as in `fit`; a recycler that belongs to the sparsifier is not given again.
    optimizer: "adamw", "adam", "sgd" or "rmsprop" with `lr` (None: 1e-3) and `weight_decay` (None: 0), or one of your
        own, which has its own: `functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)`.
    gate_lr_scale: learning rate of gate networks, relative to `lr`; not with "adam", "sgd" and "rmsprop".
    clock: over what the learning rate falls along a cosine and a sparsifier's schedule runs: each "task", the whole
        "stream", or never ("constant": both stay as they begin).
    horizon: steps after which a context that was noticed is taken as learned, for the clock; needed where nothing is
        known. With a constant clock the steps over which a budget comes down to its target, where it then stays.
    new_optimizer: forget momentum when a task begins.
    test_every: test on old tasks within tasks too, every so many steps, for the stability gap. test_later: test on all
        tasks not seen yet too. The untrained model is tested on all tasks and each later one on the next task in any
        case, for forward transfer.
    online: also count how many training rows were answered right before the step on them.
    references: also train, before anything else, a copy of the initial model on each task alone (`fresh`, for
        plasticity; turns `online` on) and one on tasks 0 to k together for every k (`joint`, for intransigence): with
        the same settings, sparsifier, recycler and budget, and neither learner, keeper nor contexts. A stream of T
        tasks then takes (T + 5) / 2 times as long.
    out: folder for last.safetensors, from which a call with the same arguments goes on to the same result, stream.json
        (the retention so far) and log.jsonl.
    """
    chosen = distributed.choose_device(device)
    model.to(chosen)
    make = partial(
        optimizer_maker, asked=optimizer, device=chosen, lr=lr, weight_decay=weight_decay, gate_lr_scale=gate_lr_scale
    )
    maker = make(model)
    options = FollowOptions(
        epochs=epochs, batch=batch, lr=LR if lr is None else lr, gate_lr_scale=gate_lr_scale,
        weight_decay=WEIGHT_DECAY if weight_decay is None else weight_decay,
        optimizer=optimizer_settings(maker()) if callable(optimizer) else optimizer, clock=clock, horizon=horizon,
        new_optimizer=new_optimizer, test_every=test_every, test_later=test_later, online=online or references,
        references=references, seed=seed,
    )  # fmt: skip
    learner = learner or Learner(model)
    learner.to(chosen)
    _check(model, stream, learner, keeper, contexts, budget, options)
    folder = None if out is None else Path(out)
    parts = Parts(model, learner, contexts.keeper if contexts else keeper, contexts, sparsifier, recycler, budget)
    with (
        torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []),
        only_process(folder, LOCK, chosen),
    ):
        torch.manual_seed(seed)
        walk = Walk(parts, stream, asdict(options), maker, chosen, folder, checkpoint_seconds)
        walk.resume()
        with walk.interrupts:
            if references:
                with Progress(f"{label}, references", show=show) as progress:
                    measure_references(walk, make, progress)
            with Progress(label, show=show) as progress:
                walk.go(progress)
    model.eval()
    return walk.retention


def _check(
    model: nn.Module,
    stream: Stream,
    learner: Learner,
    keeper: AnyKeeper | None,
    contexts: Contexts | None,
    budget: GateBudget | None,
    options: FollowOptions,
) -> None:
    """Refuse what does not go together."""
    of_others: dict[str, Any] = {"learner": learner.model, "keeper": keeper and keeper.model,
                                 "contexts": contexts and contexts.model}  # fmt: skip
    for name, other in of_others.items():
        if other is not None and other is not model:
            raise ValueError(f"{name} was made for another model: make all of them for the model that follows")
    if contexts is not None and keeper is not None and keeper is not contexts.keeper:
        raise ValueError("contexts have a keeper of their own: Contexts(model, keeper), and leave it out here")
    if isinstance(budget, Budget):
        for name in ("fold", "order_units") if isinstance(keeper, Keeper) or contexts is not None else ():
            if getattr(budget, name):
                raise ValueError(f"{name}=True changes gates, which a keeper keeps: use Budget({name}=False)")
        if options.clock == "constant" and options.horizon is None:
            raise ValueError(
                "a budget comes down along the clock, and clock='constant' never moves: say with horizon= over how "
                "many steps, or use clock='task' or 'stream'"
            )
    if stream.known != "nothing":
        return
    if learner.needs_boundaries or (isinstance(keeper, Keeper) and contexts is None):
        who = type(learner).__name__ if learner.needs_boundaries else "A keeper without contexts"
        raise ValueError(f"{who} must be told when a task ends, and of {stream.name!r} nothing is known")
    if contexts is not None and options.horizon is None:
        raise ValueError("nothing is known of the stream: say with horizon= after how many steps a context is learned")
    if options.clock != "constant" and contexts is None:
        raise ValueError("nothing is known of the stream, so that nobody knows when to slow down: use clock='constant'")
