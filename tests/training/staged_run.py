"""A training run of a model with stages, for one process or several: python staged_run.py '{"out": ..., more}'."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dynamicgate as dg
from dynamicgate import distributed
from dynamicgate.training import StageLoss
from tests.training.easy import blobs


def staged(decide: Any = "margin", *, dropout: float = 0.0, sizes: tuple[int, ...] = (8, 32, 16, 3)) -> dg.nn.GatedMLP:
    torch.manual_seed(1)
    gate = dg.GateConfig(kind="stages", stages=(0.25, 0.25, 0.5), decide=decide)
    return dg.nn.GatedMLP(sizes, gate, dropout=dropout)


def main(out: str, *, decide: str = "head", focus: float = 0.7, sparse: bool = False, **rest: Any) -> None:
    distributed.start(torch.device("cpu"))
    model = staged(decide)
    sparsifier = dg.RigL(model, {"layers.0": (0.4, 0.5, 0.6), "layers.1": 0.5}, every=3) if sparse else None
    dg.fit(
        model,
        blobs(89, seed=1, spread=1.5),
        valid=blobs(60, seed=2, spread=1.5),
        budget=dg.Budget(target=0.4),
        sparsifier=sparsifier,
        stage_loss=StageLoss(weights=(1.0, 1.0, 2.0), focus=focus, distill=0.2),
        batch=21,  # 11 and 10 rows for two processes; 3 and 2 in the last batch
        seed=3,
        lr=2e-3,
        out=out,
        show=False,
        **rest,
    )
    if distributed.rank() == 0:
        dg.save(model, Path(out) / "final.safetensors")
    distributed.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(**json.loads(sys.argv[1]))
