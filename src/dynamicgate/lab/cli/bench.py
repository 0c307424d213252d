"""`dynamicgate bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from dynamicgate.lab.cli.options import (
    DataDir,
    LoaderOptions,
    Target,
    integers,
    loader_options,
    this_command,
    trained_on,
)
from dynamicgate.lab.cli.other_data import Allow, allowed, options_for

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_ROWS = 2048
BATCHES = "1,16,256"


@dataclass(frozen=True)
class Bench:
    """Time a saved model on this machine, compiled, against the compiled dense network asked for.

    For example:
      dynamicgate bench runs/first/model.safetensors --batches 1,16,256
      dynamicgate bench --model gpt.safetensors --prompt-tokens 1024 --new-tokens 128

    Columns: `dense` is the dense network in eager PyTorch, also under torch.compile and as compiled by DynamicGate;
    `gates in torch` the model in eager PyTorch, `ours` the model as compiled by DynamicGate. The kernel gain is eager
    dense over the fastest dense, the gate gain the fastest dense over ours: what gates and sparsity gain on top.
    """

    path: Annotated[Positional[Path | None], arg(metavar="MODEL", help_behavior_hint="")] = None
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`, a saved language model, or the
    folder of a Hugging Face model."""
    model: Annotated[Path | None, arg(metavar="DIR_OR_FILE", help_behavior_hint="")] = None
    """The same as an option."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset to time on, because the time depends on which units are open; by default the one the model was trained
    on. Columns and classes of other data are found by name. `random` uses random inputs."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    allow: Allow = ()
    batches: Annotated[str, arg(metavar="SIZES")] = BATCHES
    """Batch sizes to time, separated by commas."""
    seconds: float = 4.0
    """About how long to time each batch size."""
    torch_compile: bool = True
    """Also time the dense network under torch.compile, which takes a while to compile."""
    dense: Annotated[Path | None, arg(metavar="MODEL", help_behavior_hint="")] = None
    """A trained dense model to time against; by default one of the width asked for with fresh weights, or for a model
    file that does not say which that was, the model's own layers without gates and masks."""
    prompt_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """For a language model: tokens of the prompt, by default 1,024, or as many as its context has room for."""
    new_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """For a language model: tokens to generate after it, one by one, by default 128, or half of its context."""
    weights: Annotated[Literal["int8"] | None, arg(help_behavior_hint="")] = None
    """For a language model: `int8` lets the compiled model round its weights; the plan says what that changes on random
    tokens."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Where to write the times, as JSON; by default timing.json beside the model. For a language model a page with a
    picture is written beside it."""

    def run(self) -> int:
        """Compile, time, print."""
        path = self._saved()
        asked = {"--prompt-tokens": self.prompt_tokens, "--new-tokens": self.new_tokens, "--weights": self.weights}
        if is_language_model(path):
            return self._language(path)
        if given := [option for option, value in asked.items() if value is not None]:
            raise ValueError(f"{', '.join(given)}: for language models only, and {path} holds none")
        from dynamicgate.io.model_file import load as load_model
        from dynamicgate.lab.cli.bench_rows import bench_rows

        model = load_model(path)
        return bench_rows(
            path,
            model,
            self._rows(model),
            batches=sorted(set(integers(self.batches, "batches"))),
            seconds=self.seconds,
            torch_compile=self.torch_compile,
            trained_dense=self.dense,
            out=self.out,
            command=this_command(),
        )

    def _saved(self) -> Path:
        """The model to time."""
        given = [path for path in (self.path, self.model) if path is not None]
        if len(given) != 1:
            raise ValueError("give one model: dynamicgate bench MODEL, or dynamicgate bench --model DIR_OR_FILE")
        return given[0]

    def _language(self, path: Path) -> int:
        """A language model: its prompt, and the tokens after it."""
        batches = self.batches if self.batches != BATCHES else None
        means_nothing = {"--data": self.data, "--dense": self.dense, "--batches": batches}
        self._refuse("a language model, which is timed on tokens", means_nothing)
        from dynamicgate.lab.cli.bench_language import bench_language

        return bench_language(
            path,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            seconds=self.seconds,
            weights=self.weights,
            torch_compile=self.torch_compile,
            out=self.out,
            command=this_command(),
        )

    def _rows(self, model: nn.Module) -> Tensor:
        import torch

        from dynamicgate.data.schema import schema_of
        from dynamicgate.lab.datasets.aligned import load_aligned

        name, of_file, seed = (None, (), 0) if self.data == "random" else trained_on(self._saved(), self.data)
        if name is None:
            self._refuse("random inputs", {})
            first = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
            return torch.randn(MAX_ROWS, first.in_features, generator=torch.Generator().manual_seed(0))
        schema = schema_of(model)
        given = dict(loader_options(self.data_option, self.target, "--data-option"))
        data = load_aligned(
            name,
            schema,
            data_dir=self.data_dir,
            seed=seed,
            options=options_for(name, schema, given, dict(of_file)),
            allow=allowed(self.allow),
        )
        print(*data.notes, sep="\n", end="\n\n" if data.notes else "")
        return next(iter(data.rows.batches(MAX_ROWS)))[0]

    def _refuse(self, what: str, given: dict[str, Any]) -> None:
        """Raise if options are given that say how to read a dataset, or others that mean nothing for `what`."""
        options = {"--data-option": self.data_option, "--target": self.target, "--allow": self.allow}
        if wrong := [name for name, value in {**given, **options}.items() if value]:
            raise ValueError(f"{', '.join(wrong)} means nothing for {what}")


def is_language_model(path: Path) -> bool:
    """Whether this is the folder of a Hugging Face model, or a file of a GPT."""
    if path.is_dir():
        return True
    from dynamicgate.io.model_file import read_notes

    return "gpt" in read_notes(path)
