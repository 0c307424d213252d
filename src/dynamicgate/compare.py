"""Train models with their controls over paired seeds, and write one folder that a report can be made from.

Every finished run is found again by the hash of its settings and not repeated; an interrupted one goes on from its
checkpoint. Validation data picks, test data is measured once, at the end of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch

from dynamicgate._version import __version__
from dynamicgate.budget import Budget
from dynamicgate.cost import Ledger
from dynamicgate.data import Splits, load
from dynamicgate.files import write_text
from dynamicgate.fit import distributed, fit
from dynamicgate.gate import GateConfig
from dynamicgate.measure import measure
from dynamicgate.nn import GatedMLP, Normalize
from dynamicgate.save import save


@dataclass(frozen=True)
class Settings:
    """What decides the result of one run; zero or empty means: the default for this data set."""

    data: str = "digits"
    model: str = "gate"
    seed: int = 0
    budget: float = 0.3
    hidden: tuple[int, ...] = ()
    epochs: int = 0
    batch: int = 0
    lr: float = 3e-3
    weight_decay: float = 0.1
    dropout: float = 0.1
    block: int = 1
    net: str = "low-rank"
    rank: int = 0
    tau: float = 1.0
    theta: float = 0.5
    scale: bool = True
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False
    balanced: bool = False
    patience: int | None = None

    def resolved(self, splits: Splits) -> Settings:
        """With the defaults of the data set filled in."""
        hidden, epochs, batch = DEFAULTS.get(splits.name, ((256,), 30, 128))
        found = replace(
            self,
            hidden=self.hidden or hidden,
            epochs=self.epochs or epochs,
            batch=self.batch or min(batch, len(splits.train)),
        )
        if not 0.0 < found.budget <= 1.0:
            raise ValueError(
                f"a budget is a share of the dense MACs: expected 0 < budget <= 1, received {found.budget}"
            )
        if any(width < 1 for width in found.hidden):
            raise ValueError(f"hidden widths must be 1 or more, received {found.hidden}")
        return found if found.rank else replace(found, rank=_affordable_rank(found, splits))


DEFAULTS: dict[str, tuple[tuple[int, ...], int, int]] = {"digits": ((128,), 60, 32), "mnist": ((256,), 20, 128)}
GATE_SHARE = 0.28  # of the budget: more rank reads the input better, but its cost is taken from the units


def _affordable_rank(settings: Settings, splits: Splits) -> int:
    sizes = (splits.train.features, *settings.hidden)
    cost_per_rank = sum(a + b for a, b in pairwise(sizes))
    dense = _macs((*sizes, splits.classes))
    return max(2, min(32, round(GATE_SHARE * settings.budget * dense / cost_per_rank)))


def _macs(sizes: Sequence[int]) -> int:
    return sum(a * b for a, b in pairwise(sizes))


# --- the models: each a plain function from settings and data to a network and, perhaps, a budget ---------------------

Prepared = tuple[GatedMLP, Budget | None]


def dense(s: Settings, splits: Splits) -> Prepared:
    """The plain network: the quality to reach and the MACs to save."""
    return _mlp(s.hidden, splits), None


def small(s: Settings, splits: Splits) -> Prepared:
    """A dense network as narrow as the budget: the control that every method must beat."""
    full = _macs((splits.train.features, *s.hidden, splits.classes))
    widths = [max(1, round(w * k / 4096)) for k in range(1, 4097) for w in s.hidden]
    candidates = {tuple(widths[i : i + len(s.hidden)]) for i in range(0, len(widths), len(s.hidden))}
    wanted = s.budget * full
    best = min(candidates, key=lambda hidden: abs(_macs((splits.train.features, *hidden, splits.classes)) - wanted))
    return _mlp(best, splits), None


def dropout(s: Settings, splits: Splits) -> Prepared:
    """The dense network with dropout: regularisation without any saving."""
    return _mlp(s.hidden, splits, dropout=s.dropout), None


def static(s: Settings, splits: Splits) -> Prepared:
    """One learned logit per unit, the same units for every input, at the same budget."""
    config = GateConfig(kind="static", block=s.block, tau=s.tau, theta=s.theta, scale=s.scale)
    return _mlp(s.hidden, splits, dropout=s.dropout, gate=config), Budget(target=s.budget)


def gate(s: Settings, splits: Splits) -> Prepared:
    """Input-dependent gates, held to the budget: DynamicGate."""
    config = GateConfig(net=s.net, rank=s.rank, block=s.block, tau=s.tau, theta=s.theta, scale=s.scale)  # type: ignore[arg-type]
    return _mlp(s.hidden, splits, dropout=s.dropout, gate=config), Budget(target=s.budget)


MODELS: dict[str, Callable[[Settings, Splits], Prepared]] = {
    "dense": dense,
    "small": small,
    "dropout": dropout,
    "static": static,
    "gate": gate,
}


def _mlp(hidden: Sequence[int], splits: Splits, *, dropout: float = 0.0, gate: GateConfig | None = None) -> GatedMLP:
    sizes = (splits.train.features, *hidden, splits.classes)
    return GatedMLP(sizes, gate, dropout=dropout, normalize=Normalize(splits.mean, splits.std))


# --- one run, and many ------------------------------------------------------------------------------------------------


def run_one(
    settings: Settings, splits: Splits, folder: Path, *, device: str = "auto", label: str = ""
) -> dict[str, Any]:
    """Train one model, measure it on the test data, and leave model, log, checkpoints and run.json in `folder`."""
    finished = folder / "run.json"
    if finished.exists():
        return json.loads(finished.read_text(encoding="utf-8"))
    if settings.model not in MODELS:
        raise ValueError(f"unknown model {settings.model!r}; the models are {', '.join(MODELS)}")
    torch.manual_seed(settings.seed)
    model, budget = MODELS[settings.model](settings, splits)
    history = fit(
        model,
        splits.train,
        valid=splits.valid,
        budget=budget,
        epochs=settings.epochs,
        batch=settings.batch,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        accumulate=settings.accumulate,
        clip=settings.clip,
        bf16=settings.bf16,
        class_weights="balanced" if settings.balanced else None,
        patience=settings.patience,
        seed=settings.seed,
        device=device,
        out=folder,
        label=label or f"{settings.model} seed {settings.seed}",
    )
    found = measure(model, splits.test).to_dict()
    # Relative to the full dense network, whatever the model's own width: a small net saves by being small.
    full = _macs((splits.train.features, *settings.hidden, splits.classes))
    own = found["macs"]["dense"]
    for key in ("relative", "relative_zero_skip"):
        found["macs"][key] *= own / full
    found["samples"] = {key: value * own / full for key, value in found["samples"].items()}
    found["macs"]["dense"] = full
    run = {
        "model": settings.model,
        "seed": settings.seed,
        "data": splits.name,
        **{key: found[key] for key in ("quality", "macs", "proxies", "layers", "params")},
        "seconds": history.seconds,
        "budget": budget.target if budget else None,
        "samples": found["samples"],
        "gates": found["gates"],
        "valid": history.final,
        "steps": history.steps,
        "collapses": [str(collapse) for collapse in budget.collapses] if budget else [],
        "settings": asdict(settings),
    }
    if distributed.rank() == 0:
        save(model, folder / "model.safetensors", notes={"data": splits.name, "settings": asdict(settings)})
        write_text(finished, json.dumps(run))
    return run


def compare(
    settings: Settings,
    models: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    data_dir: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """All models over all seeds; results.json is complete after every run."""
    unknown = [name for name in models if name not in MODELS]
    if unknown or not models:
        raise ValueError(f"unknown models {', '.join(unknown) or '(none given)'}; choose from {', '.join(MODELS)}")
    if not seeds:
        raise ValueError("at least one seed is needed")
    runs: list[dict[str, Any]] = []
    jobs = [(seed, model) for seed in seeds for model in models]
    for position, (seed, model) in enumerate(jobs, start=1):
        splits = load(settings.data, data_dir=data_dir, seed=seed)
        chosen = replace(settings, model=model, seed=seed).resolved(splits)
        if position == 1:
            _check_all(chosen, models, splits)
        folder = Path("runs") / f"{model}-s{seed}-{settings_hash(chosen)}"
        label = f"[{position}/{len(jobs)}] {model} seed {seed}"
        runs.append({**run_one(chosen, splits, out / folder, label=label), "folder": folder.as_posix()})
        meta = {
            **environment(command),
            "budget": settings.budget,
            "seeds": list(seeds),
            "epochs": chosen.epochs,
            "hidden": list(chosen.hidden),
            "data": splits.info(),
        }
        results = {"meta": meta, "runs": runs}
        write_text(out / "results.json", _one_run_a_line(results))
    return results


def _one_run_a_line(results: dict[str, Any]) -> str:
    """JSON that stays small and shows in a diff which run changed."""
    runs = ",\n".join(json.dumps(run) for run in results["runs"])
    return f'{{"meta": {json.dumps(results["meta"], indent=1)},\n"runs": [\n{runs}\n]}}\n'


def _check_all(settings: Settings, models: Sequence[str], splits: Splits) -> None:
    """A mistake that only the last model would notice is better known before the first is trained."""
    for name in models:
        model, budget = MODELS[name](settings, splits)
        if budget is not None:
            budget.check_(Ledger(model))


def settings_hash(settings: Settings) -> str:
    """Runs are found by what they were asked to do."""
    return hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode()).hexdigest()[:8]


def environment(command: str) -> dict[str, Any]:
    """Where a result comes from."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "command": command,
        "versions": {
            "dynamicgate": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.system(),
            "arch": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _commit() -> str | None:
    """The commit of this source tree, marked if it has uncommitted changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
