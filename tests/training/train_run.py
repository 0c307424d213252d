"""A training run in a process of its own, made to be killed: python train_run.py '{"out": ..., more settings}'.

Everything with randomness or state takes part unless switched off: dropout, Bernoulli gates, a budget whose controller
integrates and whose schedule moves tau, early stopping.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dynamicgate as dg
from dynamicgate import distributed
from tests.training.easy import blobs


def main(
    out: str,
    *,
    noisy: bool = True,
    sparsifier: str = "",
    rows: int = 173,
    epochs: int = 16,
    batch: int = 20,
    lr: float = 2e-2,
    **rest: Any,
) -> None:
    distributed.start(torch.device("cpu"))
    torch.manual_seed(1)
    gate = dg.GateConfig(block=4, train="bernoulli" if noisy else "hard", net="low-rank", rank=2)
    model = dg.nn.GatedMLP((8, 32, 16, 3), gate, dropout=0.3 if noisy else 0.0)
    closed = dg.Budget(target=0.5, tau=dg.schedule.linear(1.0, 0.8))
    # An open loop: a controller reads the first micro-batch, which one process and two processes split differently.
    budget = closed if noisy else dg.budget.OpenLoopBudget(form="linear", weight=0.3)
    layers = {"density": 0.4, "every": 3, "until": 0.9, "pattern": "4x1" if sparsifier == "set" else "unstructured"}
    chosen = {
        "": lambda: None,
        "rigl": lambda: dg.RigL(model, **layers),
        "set": lambda: dg.sparsity.SET(model, **layers),
    }
    history = dg.fit(
        model,
        blobs(rows, seed=1, spread=1.5),
        valid=blobs(90, seed=2, spread=1.5),
        budget=budget,
        sparsifier=chosen[sparsifier](),  # type: ignore[no-untyped-call]
        epochs=epochs,
        batch=batch,
        lr=lr,
        seed=3,
        out=out,
        show=False,
        **rest,
    )
    if distributed.rank() == 0:
        dg.save(model, Path(out) / "final.safetensors")
        summary = {"steps": history.steps, "best": history.best, "stopped_early": history.stopped_early}
        (Path(out) / "summary.json").write_text(json.dumps({**summary, "log": history.log}))
    distributed.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(**json.loads(sys.argv[1]))
