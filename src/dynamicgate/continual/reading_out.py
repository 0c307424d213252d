"""`read_out`: follow a stream with an output layer in closed form on features that never change.

There is no gradient, no step and no clock: a task is read once, and what was learned does not depend on its order.
Shapes in names: B rows, D features read.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.continual.asking import Questions
from dynamicgate.continual.readout import Readout
from dynamicgate.continual.retention import Retention
from dynamicgate.continual.streams import Stream, Task
from dynamicgate.continual.walk_file import stream_settings
from dynamicgate.distributed import choose_device
from dynamicgate.files import write_text
from dynamicgate.io.tensor_file import naming_damage, read_tensors, write_tensors
from dynamicgate.modules import evaluating
from dynamicgate.training.checkpoint import refuse_other_settings
from dynamicgate.training.folder_lock import only_process
from dynamicgate.training.interrupt import Interrupts
from dynamicgate.training.progress import Progress

KIND = "readout of a stream"
LOCK = ".read_out.lock"
BATCH = 4096
UNSEEN = -1e4
"""The bias of a class that was never seen, so that it is never answered; a finite one can be compiled and exported."""


def random_features(inputs: int, units: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight [inputs, units] and bias [units] of features that are never trained, about as large as what they read."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(inputs, units, generator=draw)
    bias = 0.1 * torch.randn(units, generator=draw)
    return weight / inputs**0.5, bias


@torch.no_grad()
def readout_model(inputs: int, units: int, classes: int, *, seed: int = 0) -> nn.Sequential:
    """Random features behind a ReLU, and an output layer that `read_out` fills in; nothing in it has a gradient."""
    model = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, classes)).requires_grad_(False)
    weight_DU, bias_U = random_features(inputs, units, seed)
    model[0].weight.copy_(weight_DU.T)  # type: ignore[operator]
    model[0].bias.copy_(bias_U)  # type: ignore[operator]
    put_readout_(model, Readout(units))
    return model


@torch.no_grad()
def put_readout_(model: nn.Sequential, readout: Readout) -> None:
    """Make what a readout has learned the last layer of a model. Classes that were never seen are never answered."""
    output = _output_of(model, readout)
    output.weight.zero_()
    output.bias.fill_(UNSEEN)
    if readout.classes:
        weight_CD, bias_C = readout.solve()
        output.weight[: readout.classes] = weight_CD.to(output.weight)
        output.bias[: readout.classes] = torch.where(readout.counts_C > 0, bias_C, UNSEEN).to(output.bias)


def read_out(
    model: nn.Sequential,
    stream: Stream,
    readout: Readout,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    label: str = "readout",
    show: bool = True,
) -> Retention:
    """Learn the last layer of `model`, a Linear, in closed form from the tasks of `stream`, one after the other, and
    test it on all tasks seen so far after each one. All that comes before the last layer is left as it is.

    out: folder for last.safetensors, the sums after each task, from which a call with the same arguments goes on to the
        same result, and stream.json (the retention so far).
    """
    _output_of(model, readout)
    chosen = choose_device(device)
    model.to(chosen)
    folder = None if out is None else Path(out)
    settings = _settings(model, stream, readout)
    questions = Questions(model, stream, None, chosen)
    with only_process(folder, LOCK, chosen), Interrupts() as interrupts, Progress(label, show=show) as progress:
        retention, first, before = _resumed(folder, readout, settings, len(stream))
        started = time.monotonic() - before
        put_readout_(model, readout)
        for number in range(first, len(stream)):
            _learn(model, readout, stream[number])
            put_readout_(model, readout)
            retention.matrix[number, : number + 1] = torch.tensor(
                [questions.accuracy(tested) for tested in range(number + 1)]
            )
            progress.update((number + 1) / len(stream), f"task {number + 1} of {len(stream)}")
            if folder is not None:
                position = {"task": number + 1, "retention": retention.to_dict(), "seconds": time.monotonic() - started}
                header = {"kind": KIND, "settings": settings, "position": position}
                write_tensors(folder / "last.safetensors", readout.state_dict(), header)
                write_text(folder / "stream.json", json.dumps(retention.to_dict()))
            if interrupts.requested:
                raise KeyboardInterrupt
    return retention


def _output_of(model: nn.Sequential, readout: Readout) -> nn.Linear:
    output = model[-1] if isinstance(model, nn.Sequential) and len(model) else None
    if not isinstance(output, nn.Linear) or output.bias is None:
        raise ValueError("expected an nn.Sequential that ends with an nn.Linear with a bias, which is read out")
    if output.in_features != readout.features:
        raise ValueError(
            f"the last layer reads {output.in_features} features and the readout has sums of {readout.features}: make "
            f"it with Readout({output.in_features})"
        )
    if readout.classes > output.out_features:
        raise ValueError(f"the readout has seen {readout.classes} classes, the model answers {output.out_features}")
    return output


def _learn(model: nn.Sequential, readout: Readout, task: Task) -> None:
    with torch.no_grad(), evaluating(model):
        for x, y in task.train.batches(BATCH):
            readout.add(_features(model, x), y)


def _features(model: nn.Sequential, x_BD: Tensor) -> Tensor:
    """What the last layer reads."""
    h = x_BD.to(model[-1].weight.device)  # type: ignore[arg-type]
    for layer in list(model)[:-1]:
        h = layer(h)
    return h.flatten(1)


def _settings(model: nn.Sequential, stream: Stream, readout: Readout) -> dict[str, Any]:
    """What must be the same for a run to go on: the stream, the readout and the features."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in list(model)[:-1]:
        for name, tensor in layer.state_dict().items():
            digest.update(name.encode() + tensor.cpu().float().contiguous().numpy().tobytes())
    rules = {"features": readout.features, "decay": readout.decay, "balanced": readout.balanced}
    return {**stream_settings(stream), **rules, "model": digest.hexdigest()}


def _resumed(
    folder: Path | None, readout: Readout, settings: dict[str, Any], tasks: int
) -> tuple[Retention, int, float]:
    """The retention so far, the next task, and the seconds that were spent."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    path = None if folder is None else folder / "last.safetensors"
    if path is None or not path.exists():
        if readout.classes:
            raise ValueError("this readout has learned already: start a stream with a new one")
        return Retention.empty(tasks), 0, 0.0
    tensors, header = read_tensors(path, kind=KIND)
    with naming_damage(path):
        refuse_other_settings(path, header["settings"], settings)
        readout.load_state_dict(dict(tensors))
        position = header["position"]
        return Retention.from_dict(position["retention"]), int(position["task"]), float(position["seconds"])
