"""What several commands share: the options of training, loader options, and the line that goes into results."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tyro.conf import UseAppendAction

from dynamicgate.compare import Settings
from dynamicgate.gate import Policy

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Training:
    """Options of training."""

    data: str = "digits"
    """A known dataset (`dynamicgate data list` shows them), or the path of your own file or folder."""
    data_dir: Path | None = None
    """Folder with the data files; by default the variable DYNAMICGATE_DATA, else the cache folder of the platform."""
    data_option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE, e.g. labels=leiden; several with commas, or by repeating this option."""
    target: str | None = None
    """Column that holds the classes, in a .csv, .parquet or .h5ad file; short for --data-option target=COLUMN."""
    budget: float = 0.3
    """Executed MACs relative to the dense network: hard gates, gate networks and output layer included."""
    hidden: str = ""
    """Widths of the hidden layers, e.g. 256 or 1024,512. By default 128 for digits and 256 elsewhere."""
    epochs: int = 0
    """Passes over the training data; 0 is the default of the data set."""
    batch: int = 0
    """Rows per optimizer step, over all processes; 0 is the default of the data set."""
    lr: float = 0.0
    """Peak learning rate of AdamW, with warm-up and a cosine to zero; 0 is the default of the data set, 5/3 of that for
    models with sparse layers."""
    weight_decay: float = 0.05
    """Decay of weight matrices."""
    dropout: float = 0.1
    """Dropout of all models but dense and small."""
    block: int = 0
    """Units that open and close together; 0 is 1 for static and gate, 16 for gate+rigl."""
    net: Literal["auto", "linear", "low-rank", "two-layer"] = "auto"
    """Shape of the gate network; auto is low-rank for gate, linear (and sparse) for gate+rigl."""
    rank: int = 0
    """Inner width of the gate network; 0 takes what 28 % of the budget pays for."""
    policy: Policy = "gumbel"
    """What multiplies units in training: hard, soft, bernoulli, concrete, gumbel (hard with noise, so that closed gates
    are tried again). At test time gates are hard."""
    tau: float = 1.0
    """Temperature of the gates."""
    theta: float = 0.5
    """Threshold of the gates."""
    scale: bool = False
    """Multiply open units by their gate's probability."""
    accumulate: int = 1
    """Work a batch off in this many pieces."""
    clip: float | None = None
    """Largest gradient norm."""
    bf16: bool = False
    """Train under bfloat16 autocast."""
    balanced: bool = False
    """Weight classes by inverse frequency."""
    patience: int | None = None
    """Stop after this many epochs without a better validation accuracy, and keep the best."""
    density: float = 0.0
    """Share of the connections that exist in the hidden layers of pruned, static-sparse, set, rigl and gate+rigl; 0 is
    what the budget pays for (in gate+rigl 1.2 times the budget, of which the gates then open about two thirds)."""
    gate_density: float = 0.0
    """The same for the gate networks of gate+rigl; 0 is what a fifth of the budget pays for."""
    structure: str = "unstructured"
    """Pattern of the masks: unstructured, fan-in (every output has as many inputs), or cells of outputs x inputs that
    come and go together, like 16x1 or 32x32."""
    sparse_output: bool = False
    """Make the output layer as sparse as the others; by default it stays dense."""
    every: int = 0
    """Optimizer steps between two rewirings; 0 is 100, or less in a short run."""

    def settings(self, **chosen: Any) -> Settings:
        """The same as the library's `Settings`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["hidden"] = integers(self.hidden, "hidden") if self.hidden else ()
        values["data_options"] = loader_options(self.data_option, self.target, "--data-option")
        for word in ("data_dir", "data_option", "target"):  # where the files are does not decide the result
            del values[word]
        return Settings(**{**values, **chosen})


def loader_options(words: Sequence[str], target: str | None, said: str) -> Options:
    """`["a=1,b=2", "c=x,y"]` as sorted pairs; a comma that no KEY= follows belongs to the value."""
    pairs = {} if target is None else {"target": target}
    for word in (part for text in words for part in re.split(r",(?=[\w-]+=)", text)):
        key, sign, value = word.partition("=")
        if not sign or not re.fullmatch(r"[\w-]+", key):
            raise ValueError(f"{said} takes KEY=VALUE, e.g. labels=leiden, received {word!r}")
        key = key.replace("-", "_")
        if key in pairs:
            also = " (--target sets it too)" if key == "target" and target is not None else ""
            raise ValueError(f"{said} sets {key} twice{also}: give it once")
        pairs[key] = value
    return tuple(sorted(pairs.items()))


def this_command() -> str:
    """What was typed, with folders of this machine shortened to their names: the line goes into results."""
    return shlex.join(["dynamicgate", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])])


def integers(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--{what} takes whole numbers separated by commas, received {text!r}") from error
