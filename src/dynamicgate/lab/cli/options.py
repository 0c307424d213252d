"""What several commands share: the options of training, loader options, and the line that goes into results."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tyro.conf import UseAppendAction

from dynamicgate.lab.methods import Hyperparameters, Settings

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Training(Hyperparameters):
    """Options of training."""

    data: str = "digits"
    """A known dataset (`dynamicgate data list` shows them), or the path of your own file or folder."""
    data_dir: Path | None = None
    """Folder with the data files; by default the variable DYNAMICGATE_DATA, else the cache folder of the platform."""
    data_option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE, e.g. labels=leiden; several with commas, or by repeating this option."""
    target: str | None = None
    """Column that holds the classes, in a .csv, .parquet or .h5ad file; short for --data-option target=COLUMN."""
    hidden: str = ""
    """Widths of the hidden layers, e.g. 256 or 1024,512. By default 128 for digits and 256 elsewhere."""

    def settings(self, **chosen: Any) -> Settings:
        """The same as the library's `Settings`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["hidden"] = integers(self.hidden, "hidden") if self.hidden else None
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
