"""`dynamicgate export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dynamicgate.choices import Form
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, loader_options, trained_on

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_ROWS = 512


@dataclass(frozen=True)
class Export:
    """Write a saved model for runtimes without DynamicGate: ONNX, or an AOTInductor package.

    For example:
      dynamicgate export runs/first/model.safetensors --to onnx --out model.onnx

    The file is compared with the model before it is written, and what it executes at the cost of the dense network is
    said.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`."""
    to: Literal["onnx", "pt2"]
    """onnx: standard operators, for onnxruntime and others. pt2: machine code for this kind of processor, made by
    AOTInductor, which needs a C++ compiler."""
    out: Annotated[Path, arg(metavar="FILE")]
    """Where to write it."""
    form: Form = "auto"
    """skip: leave out the work of closed units and stages where the runtime can. masks: multiply what is closed by
    zero. auto: skip where that was faster, see docs/export.md."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset that says which units are open, and on which the file is verified; by default the one the model was
    trained on. `random` uses random inputs."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()

    def run(self) -> int:
        """Write and verify."""
        from dynamicgate.export import to_aot, to_onnx
        from dynamicgate.io.model_file import load as load_model

        model = load_model(self.model)
        write = to_onnx if self.to == "onnx" else to_aot
        print(write(model, self._rows(model), self.out, form=self.form))
        return 0

    def _rows(self, model: nn.Module) -> Tensor:
        import torch

        from dynamicgate.lab.datasets.loading import load_dataset

        name, of_file, seed = (None, {}, 0) if self.data == "random" else trained_on(self.model, self.data)
        if name is None:
            first = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
            return torch.randn(MAX_ROWS, first.in_features, generator=torch.Generator().manual_seed(0))
        options = loader_options(self.data_option, None, "--data-option") or of_file
        splits = load_dataset(name, data_dir=self.data_dir, seed=seed, options=dict(options)).flat()
        return next(iter(splits.valid.batches(MAX_ROWS)))[0]
