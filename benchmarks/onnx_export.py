"""Times exported models in onnxruntime against the dense network in onnxruntime, in one process, in turn.

Gated networks have random gates on blocks of 16 units that open a given fraction of the blocks of each row, another one
for each row. The staged network is 784-1024-10 with stages of 0.2 and 0.8 of the units, of which 15 % of the rows open
the second. Each call gets other rows. One thread.

    OMP_NUM_THREADS=1 python benchmarks/onnx_export.py
    OMP_NUM_THREADS=1 python benchmarks/onnx_export.py --out benchmarks/results/onnx_export.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.export import to_onnx
from dynamicgate.files import environment, write_text
from dynamicgate.gating.stages import stages_of

SIZES = ((784, 256, 10), (784, 1024, 10), (1024, 4096, 1024))
OPEN = (0.05, 0.1, 0.2, 0.4)
BATCHES = (1, 16, 128)
BLOCK = 16
ROWS = 2048
OPENED = 0.15  # fraction of the rows that open the second stage


@torch.no_grad()
def gated_model(sizes: tuple[int, ...], fraction: float, x: Tensor) -> nn.Module:
    """A network whose gates open this fraction of the blocks on `x`."""
    model = dg.nn.GatedMLP(sizes, dg.GateConfig(block=BLOCK)).eval()
    with dg.usage(model) as used:
        model(x)
    for name, gate in dg.named_gates(model).items():
        logits = used[name].logits - gate.bias
        gate.bias.copy_(-logits.quantile(1.0 - fraction, dim=0))
    return model


@torch.no_grad()
def staged_model(x: Tensor) -> nn.Module:
    """A network of two stages, of which a fraction of the rows of `x` opens the second."""
    model = dg.nn.GatedMLP((784, 1024, 10), dg.GateConfig(kind="stages", stages=(0.2, 0.8))).eval()
    stages = stages_of(model)
    assert stages is not None
    with dg.usage(model) as used:
        model(x)
    assert used.stages is not None
    stages.cut[0] = used.stages.score[:, 0].quantile(1.0 - OPENED)
    return model


def session(model: nn.Module, x: Tensor, form: str, folder: str) -> Any:
    """The model in onnxruntime, on one thread."""
    path = Path(folder) / "model.onnx"
    to_onnx(model, x, path, form=form)  # type: ignore[arg-type]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def times(sessions: dict[str, Any], x: Tensor, batch: int, rounds: int) -> dict[str, list[float]]:
    """Mean microseconds of a call in each round, all sessions in turn, each round from another one on. Processor time:
    other processes on the machine disturb it less."""
    parts = [part.numpy() for part in x.split(batch) if len(part) == batch][: max(2, 128 // batch)]
    found: dict[str, list[float]] = {name: [] for name in sessions}
    order = list(sessions)
    for number in range(rounds + 1):
        for name in order:
            run, input_name = sessions[name].run, sessions[name].get_inputs()[0].name
            start = time.process_time()
            for part in parts:
                run(None, {input_name: part})
            if number:  # the first round warms up
                found[name].append((time.process_time() - start) / len(parts) * 1e6)
        order.append(order.pop(0))
    return found


def compared(what: dict[str, Any], model: nn.Module, x: Tensor, rounds: int) -> list[dict[str, Any]]:
    """One row for each batch size and form."""
    dense = dg.ungate_(dg.nn.GatedMLP(model.sizes).eval())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            "dense": session(dense, x, "masks", folder),
            "masks": session(model, x, "masks", folder),
            "skip": session(model, x, "skip", folder),
        }
        rows = []
        for batch in BATCHES:
            found = times(sessions, x, batch, rounds)
            for form in ("masks", "skip"):
                ratios = [a / b for a, b in zip(found["dense"], found[form], strict=True)]
                quarters = statistics.quantiles(ratios, n=4)
                row = {**what, "batch": batch, "form": form}
                row |= {f"{name}_us": round(statistics.median(found[name]), 2) for name in ("dense", form)}
                row |= {
                    "speedup": round(statistics.median(ratios), 3),
                    "quartiles": [round(q, 3) for q in quarters[::2]],
                }
                print(row, flush=True)
                rows.append(row)
    return rows


def main() -> None:
    """Time all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, help="a JSON file; without, results are only printed")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for sizes in SIZES:
        x = torch.randn(ROWS, sizes[0])
        for fraction in OPEN:
            what = {"kind": "gates", "sizes": "-".join(map(str, sizes)), "open": fraction}
            rows += compared(what, gated_model(sizes, fraction, x), x, chosen.rounds)
    x = torch.randn(ROWS, 784)
    rows += compared({"kind": "stages", "sizes": "784-1024-10", "open": OPENED}, staged_model(x), x, chosen.rounds)
    if chosen.out:
        meta = environment("OMP_NUM_THREADS=1 python benchmarks/onnx_export.py")
        meta |= {"threads": 1, "onnxruntime": onnxruntime.__version__, "block": BLOCK}
        write_text(chosen.out, json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
