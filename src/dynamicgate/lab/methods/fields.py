"""The hyperparameters and what they mean, which the command line shows: nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dynamicgate.choices import Distribution, PlanName, Policy

STAGED = ("staged", "staged-random", "cascade")
SPARSIFY = "sparsify"
STREAM_METHODS = (
    *("naive", "joint", "dense", "small", "gate", "top-k", "static-sparse", "rigl", "gate+rigl", "keep", "xdg", "ewc"),
    *("si", "lwf", "er", "der++", "a-gem", "separate", "readout", "balanced-readout", "l2", "l2-init"),
    *("shrink-perturb", "redo", "cbp", "set", "set-l2"),
)
"""The models of `dynamicgate continual`."""
OF_CONTEXTS = ("keep", "separate", "xdg")
"""Those with a context for each task, which they can be told or notice."""
NEED_BOUNDARIES = ("ewc", "si", "lwf", "a-gem")
"""Those that must be told when a task ends."""
WITHOUT_STEPS = ("readout", "balanced-readout")
"""Those that learn in closed form."""


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """How models are built and trained; None is the default for the dataset and the model."""

    budget: float = 0.3
    """Executed MACs relative to the dense network: hard gates, gate networks and output layer included."""
    epochs: int | None = None
    """Passes over the training data; the default depends on the dataset, and is 500 steps or more for your own."""
    batch: int | None = None
    """Rows per optimizer step, over all processes; the default depends on the dataset, and is smaller where it has few
    rows."""
    lr: float | None = None
    """Peak learning rate of AdamW, with warm-up and a cosine to zero; the default depends on the dataset, and models
    with sparse layers take 5/3 of it."""
    gate_lr_scale: float = 1.0
    """Learning rate of the weights of gate networks relative to that. Each step of Adam moves a logit by about the
    learning rate times the number of inputs: with thousands of inputs, gates that learn at full rate follow noise."""
    weight_decay: float = 0.05
    """Decay of weight matrices."""
    dropout: float = 0.1
    """Dropout of all models except dense and small."""
    dense_dropout: float = 0.0
    """Dropout of dense and small."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    """What follows each hidden layer; only relu produces zeros that can be skipped."""
    block: int | None = None
    """Units that open and close together; by default 1 for static, random and gate, 16 for gate+rigl."""
    net: Literal["auto", "linear", "low-rank", "two-layer"] = "auto"
    """Shape of the gate network; auto is low-rank for gate, linear (and sparse) for gate+rigl."""
    rank: int | None = None
    """Inner width of the gate network; by default as large as its fraction of the budget allows, 1 to 32."""
    gate_fraction: float | None = None
    """Fraction of the budget spent on gate networks; by default 0.1 for gate, and for gate+rigl 0.02 (0.05 at budgets
    below 0.1)."""
    always_open: float | None = None
    """Units of gate that are open for every input, relative to what the budget pays for on average; by default half of
    them (none with soft_width). Without, a gate may spend everything on a few inputs and nothing on the rest."""
    start_static: bool = False
    """Start gate from a choice of units that is the same for every input: the last weights of gate networks are 0."""
    fold: bool = False
    """Make gates of gate constant that move less than their network costs, once the budget has come down: units get its
    MACs."""
    order_units: bool = False
    """Let those units of static, gate and gate+rigl close first that add least to the layer that reads them, as the
    first twentieth of training shows; for gates that start alike."""
    anneal: float = 0.5
    """Fraction of training over which gate, static and gate+rigl come down to the budget, after a twentieth. The
    shorter, the longer the open units learn alone, and the less is tried before."""
    open_rate: float | None = None
    """Fraction of the units that gate+rigl has open on average; the fewer, the more connections may exist. By default
    0.95 (0.85 at budgets below 0.1)."""
    policy: Policy | Literal["auto"] = "auto"
    """What multiplies units in training: hard, soft, bernoulli, concrete, gumbel (hard with noise, so that closed gates
    are tried again); auto is hard. At test time gates are hard."""
    tau: float = 1.0
    """Temperature of the gates."""
    theta: float = 0.5
    """Threshold of the gates."""
    scale: bool = False
    """Multiply open units by their gate's probability."""
    soft_width: float = 0.0
    """How far above its threshold a gate's logit has to be to open its units fully; 0: anywhere above it."""
    loss: Literal["auto", "mse", "huber"] = "auto"
    """Loss of a regression (--task regression): mse, which is auto, or huber, in which outliers weigh less."""
    accumulate: int = 1
    """Split a batch into this many pieces and accumulate their gradients."""
    clip: float | None = None
    """Largest gradient norm; by default gradients are not clipped."""
    bf16: bool = False
    """Train under bfloat16 autocast."""
    balanced: bool = False
    """Weight classes by inverse frequency."""
    distill_weight: float = 0.0
    """Weight of distillation from the dense network with dropout, which is then trained first, in the loss; the labels
    have the rest. 0 trains on the labels alone."""
    patience: int | None = None
    """Stop after this many epochs without a better validation accuracy, and keep the best; by default never."""
    density: float | None = None
    """Fraction of the connections that exist in the hidden layers of pruned, static-sparse, set, rigl and gate+rigl; by
    default as many as the budget allows (in gate+rigl at its open rate, after the gate networks)."""
    initial_density: float | None = None
    """Fraction of the connections that exist at first in the hidden layers of set, rigl and gate+rigl, never less than
    the density; by default 1 in gate+rigl (dense), 0 in the others (as sparse as in the end)."""
    prune_until: float | None = None
    """Fraction of training by which the initial density has fallen to the density; by default when mask updates end,
    0.75."""
    gate_density: float | None = None
    """Like `density`, for the gate networks of gate+rigl; by default what their fraction of the budget allows, and no
    gates where the default fraction allows fewer than four inputs for each of them."""
    pattern: str = "unstructured"
    """Pattern of the masks: unstructured, fan-in (every output has as many inputs), or tiles of outputs x inputs that
    are pruned and grown together, such as 16x1 or 32x32."""
    distribution: Distribution | Literal["auto"] = "auto"
    """How the density is distributed over sparse layers: uniform, or erk (denser where a layer is small); auto is erk
    for gate+rigl, uniform for others."""
    widen: float | None = None
    """Hidden widths of models with sparse layers relative to those asked for, at the same cost: wider is sparser. By
    default 1, except for gate+rigl: 1.25 at budgets from 0.1 on, 1.5 from 0.2 on."""
    output: Literal["auto", "dense", "sparse"] = "auto"
    """The output layer of models with sparse layers; auto keeps it dense, unless that would take more than half of the
    budget."""
    every: int | None = None
    """Optimizer steps between two mask updates; by default 100, or fewer in a short run."""
    stages: PlanName | None = None
    """How staged, staged-random and cascade divide the budget: two stages, which cost 0.75 and 1 times the budget, for
    inputs that are all rather hard; or three, which cost 0.4, 1 and 2.5 times the budget, where most inputs are easy
    (the default)."""
    focus: float | None = None
    """How much later stages of a staged model attend to the inputs that open them, from 0, all inputs alike, to 1, no
    others; by default 0 with two stages and 1 with three."""
    stage_distill: float = 0.0
    """Fraction of the loss of earlier stages of a staged model that is the distance to the outputs of the last one."""
    first_stage_weight: float = 1.0
    """Weight of the loss of the first stage of a staged model; that of every other one is 1."""
    decide: Literal["margin", "entropy", "head"] = "margin"
    """What says that an input needs the next stage of a staged model: the margin between its two best classes, the
    entropy of the outputs, or a learned head."""
    clock: bool = False
    """Let sparsify take gates only where the compiled model is not slower with them than without, by more than 3 % at
    batch 1 or 256 on the CPU of this machine. What is chosen then depends on the machine."""
