"""What several commands share: training options, loader options, number lists, and the command line as text.

Modules of commands import what needs torch where they use it, so that `--help` does not wait for it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from tyro.conf import UseAppendAction, arg

from dynamicgate.lab.cli.option_groups import GROUPS, group_class
from dynamicgate.lab.methods.fields import SPARSIFY, STAGED, Hyperparameters

TRAINED_TOGETHER = ("focus", "stage_distill", "first_stage_weight", "decide")
STAGE_OPTIONS = {"stages": STAGED, **dict.fromkeys(TRAINED_TOGETHER, STAGED[:2]), "clock": (SPARSIFY,)}
"""Options that only some models heed: a cascade trains its networks one by one, and asks their margins."""
PATH_OPTIONS = ("cache_dir",)
"""Loader options that say where to read or write, which a model file cannot set."""
Options: TypeAlias = tuple[tuple[str, str], ...]

DataDir: TypeAlias = Annotated[
    Path | None,
    arg(
        metavar="FOLDER",
        help="Folder with the data files; by default the one in the environment variable DYNAMICGATE_DATA, or else the "
        "platform's cache folder.",
        help_behavior_hint="",
    ),
]
LoaderOptions: TypeAlias = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(
        metavar="KEY=VALUE",
        help="An option of the dataset's loader, such as labels=leiden; for several, separate them by commas or repeat "
        "this option.",
    ),
]
Target: TypeAlias = Annotated[
    str | None,
    arg(
        metavar="COLUMN",
        help="Column with the classes, or the measurement, in a .csv, .tsv, .parquet or .h5ad file; the same as the "
        "loader option target=COLUMN.",
        help_behavior_hint="",
    ),
]


if TYPE_CHECKING:
    from dynamicgate.lab.methods.hyperparameters import Settings

    OptimisationOptions: TypeAlias = Any
    GateOptions: TypeAlias = Any
    SparsityOptions: TypeAlias = Any
    StageOptions: TypeAlias = Any
else:
    OptimisationOptions, GateOptions, SparsityOptions, StageOptions = (group_class(name) for name in GROUPS)


@dataclass(frozen=True)
class Training:
    """The data, the network asked for and its budget."""

    budget: float = Hyperparameters.budget
    """Executed MACs relative to the dense network: hard gates, gate networks and output layer included."""
    data: Annotated[str, arg(metavar="NAME|PATH")] = "digits"
    """A known dataset (see `dynamicgate data list`), or the path of your own file or folder."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        arg(metavar="{classification,regression}", help_behavior_hint=""),
    ] = None
    """Whether the target of a .csv, .tsv or .parquet file names classes, as by default, or is a measurement; the same
    as the loader option task=NAME."""
    hidden: Annotated[str | None, arg(metavar="WIDTHS", help_behavior_hint="")] = None
    """Widths of the hidden layers, such as 256 or 1024,512; by default 128 for digits, otherwise 256."""
    optimisation: OptimisationOptions = field(default_factory=group_class("optimisation"))
    gates: GateOptions = field(default_factory=group_class("gates"))
    sparsity: SparsityOptions = field(default_factory=group_class("sparsity"))
    stages: StageOptions = field(default_factory=group_class("stages"))

    def hyperparameters(self) -> dict[str, Any]:
        """All hyperparameters by name, whatever group they are shown in."""
        grouped = {each: getattr(getattr(self, name), each) for name, group in GROUPS.items() for each in group.names}
        return {"budget": self.budget, **grouped}

    def settings(self, models: Sequence[str], **chosen: Any) -> Settings:
        """These options as the `Settings` of runs of these models; `chosen` sets further fields."""
        from dynamicgate.lab.methods.hyperparameters import Settings

        self._check_stages(models)
        values = {**self.hyperparameters(), "data": self.data}  # where the files are does not affect the result
        options = (*self.data_option, *([] if self.task is None else [f"task={self.task}"]))
        values["data_options"] = loader_options(options, self.target, "--data-option")
        if self.hidden is not None:
            values["hidden"] = integers(self.hidden, "hidden")
        return Settings(**{**values, **chosen})

    def _check_stages(self, models: Sequence[str]) -> None:
        """Refuse options of stages where no model would heed them."""
        given = self.hyperparameters()
        for option, heeded_by in STAGE_OPTIONS.items():
            value = given[option]
            if value == getattr(Hyperparameters, option) or not models or set(heeded_by) & set(models):
                continue
            shown = f"--{option}" if value is True else f"--{option} {value}"
            raise ValueError(f"{shown} means nothing to {', '.join(models)}: it is an option of {', '.join(heeded_by)}")


def loader_options(texts: Sequence[str], target: str | None, flag: str) -> Options:
    """`["a=1,b=2", "c=x,y"]` as sorted pairs; a comma that is not followed by KEY= belongs to the value.

    `flag` names the command-line option in errors.
    """
    pairs = {} if target is None else {"target": target}
    for text in (part for several in texts for part in re.split(r",(?=[\w-]+=)", several)):
        key, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[\w-]+", key):
            raise ValueError(f"{flag} takes KEY=VALUE, such as labels=leiden, received {text!r}")
        key = key.replace("-", "_")
        if key in pairs:
            also = " (--target sets it too)" if key == "target" and target is not None else ""
            raise ValueError(f"{flag} sets {key} twice{also}: give it once")
        pairs[key] = value
    return tuple(sorted(pairs.items()))


class TrainedOn(NamedTuple):
    """The data that a model file says it was trained on."""

    name: str | None
    options: Options
    seed: int


def trained_on(path: Path, given: str | None) -> TrainedOn:
    """What the notes of a model file say, as far as a file may say it; `given` is the dataset of the command line.

    A file may come from anyone. It may name a known dataset and options of its loader; which other files are read, and
    where caches are written, is said on the command line.
    """
    from dynamicgate.io.model_file import read_notes
    from dynamicgate.lab.datasets.loading import LOADERS

    found = read_notes(path).get("settings", {})
    name, options, seed = (
        (found.get(key, default) for key, default in (("data", None), ("data_options", []), ("seed", 0)))
        if isinstance(found, dict)
        else (None, None, None)
    )
    is_list = isinstance(options, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in options
    )
    if not (name is None or isinstance(name, str)) or not is_list or type(seed) is not int or seed < 0:
        raise ValueError(f"{path} is damaged: its notes do not say which data the model was trained on")
    assert isinstance(options, list)
    if given is None and name is not None and name not in LOADERS:
        raise ValueError(f"{path} was trained on {name!r}: if you have this file, and mean it, give it with --data")
    pairs = tuple((key, value) for key, value in options if key not in PATH_OPTIONS)
    return TrainedOn(given or name, pairs if given in (None, name) else (), seed)


def this_command() -> str:
    """The command line, with absolute paths of this machine shortened to their names: it is written into results."""
    return shlex.join(["dynamicgate", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])])


def integers(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers separated by commas; `flag` names the command-line option in errors."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--{flag} takes whole numbers separated by commas, received {text!r}") from error
