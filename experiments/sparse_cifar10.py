"""SET and RigL on the whole CIFAR-10: an MLP 3072-4000-1000-4000-10 in which about 2 % of the connections exist.

    python -m experiments.sparse_cifar10 --data-dir FOLDER [--epochs 1000] [--device cuda]
    python -m experiments.sparse_cifar10 --collect          # put finished runs into experiments/results

Modelled on SET's published 74.84 % (1,000 epochs of SGD): the same layers, about the same density, mirrored and shifted
images. The optimizer (AdamW with a cosine), the activation (ReLU), batch, dropout and number of epochs differ; 10 % of
the training images are held out. An interrupted run continues where it was; several models may be trained at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dynamicgate as dg
from dynamicgate.files import environment, write_results, write_text
from dynamicgate.lab.datasets.loading import load_dataset

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "sparse-cifar10.json"
SIZES = (3072, 4000, 1000, 4000, 10)
DENSITY = 0.02
SPARSIFIERS: dict[str, Callable[..., dg.sparsity.Sparsifier | None]] = {
    "set": lambda model, every, **rest: dg.sparsity.SET(model, DENSITY, every=every, until=0.9, **rest),
    "rigl": lambda model, every, **rest: dg.RigL(model, DENSITY, every=every, **rest),
    "static-sparse": lambda model, every, **rest: dg.sparsity.Static(model, DENSITY, **rest),
    "dense": lambda model, every, **rest: None,
}


def run(name: str, args: argparse.Namespace) -> None:
    """Train one model and measure it once on the test images."""
    folder = args.out / f"{name}-e{args.epochs}-d{args.dropout}-t{args.every}-s{args.seed}"
    if (folder / "run.json").exists():
        return
    splits = load_dataset("cifar10", data_dir=args.data_dir, seed=args.seed).flat()
    torch.manual_seed(args.seed)
    model = dg.nn.GatedMLP(SIZES, dropout=args.dropout, normalize=dg.nn.Normalize(splits.mean, splits.std))
    sparsifier = SPARSIFIERS[name](model, args.every, distribution="erk", rescale=True, seed=args.seed)
    history = dg.fit(
        model, splits.train, valid=splits.valid, sparsifier=sparsifier, epochs=args.epochs, batch=args.batch,
        lr=args.lr, weight_decay=args.weight_decay, bf16=args.device.startswith("cuda"), device=args.device,
        seed=args.seed, out=folder, checkpoint_seconds=60.0, label=name,
    )  # fmt: skip
    found = dg.measure(model, splits.test).to_dict()
    options = ("epochs", "batch", "lr", "weight_decay", "dropout", "every", "seed")
    settings = {key: getattr(args, key) for key in options} | {"density": DENSITY, "sizes": SIZES}
    result = {
        "model": name,
        "seed": args.seed,
        "data": splits.name,
        **{key: found[key] for key in ("quality", "macs", "layers", "params")},
        "connections": sum(layer.count for layer in sparsifier.layers) if sparsifier else None,
        "sparsity": sparsifier.stats() if sparsifier else None,
        "updates": sparsifier.updates if sparsifier else 0,
        "valid": history.final,
        "seconds": history.seconds,
        "settings": settings,
    }
    asked = f"--models {name} --epochs {args.epochs} --dropout {args.dropout} --every {args.every}"
    meta = environment(f"python -m experiments.sparse_cifar10 {asked}")
    meta["commit"] = args.commit or meta["commit"]
    write_text(folder / "run.json", json.dumps({"meta": meta, "run": result}))
    print(f"{name}: test accuracy {found['quality']['accuracy']:.2%}, relative MACs {found['macs']['relative']:.4f}")


def collect(out: Path) -> None:
    """Write finished runs, one a line, with what SET published."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*/run.json"))]
    if not files:
        raise SystemExit(f"no finished run in {out}")
    published: dict[str, Any] = {
        "method": "SET-MLP",
        "accuracy": 0.7484,
        "epochs": 1000,
        "source": "Mocanu et al. 2018",
    }
    longest = max(files, key=lambda file: file["run"]["settings"]["epochs"])
    meta = {**longest["meta"], "published": published}
    commands = [{"command": file["meta"]["command"], "commit": file["meta"]["commit"]} for file in files]
    write_results(RESULT, meta, ({**file["run"], **made} for file, made in zip(files, commands, strict=True)))


def main() -> None:
    """Train the models that are asked for and collect what is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin or -py")
    parser.add_argument("--models", default="set,rigl,static-sparse", help=f"some of {', '.join(SPARSIFIERS)}")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--every", type=int, default=200, help="optimizer steps between two mask updates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--out", type=Path, default=HERE.parent / "runs" / "sparse-cifar10")
    parser.add_argument("--commit", help="commit of this source tree, where it has no history of its own")
    parser.add_argument("--collect", action="store_true", help="only collect finished runs")
    args = parser.parse_args()
    args.device = "cuda" if args.device == "auto" and torch.cuda.is_available() else args.device
    if not args.collect:
        for name in args.models.split(","):
            run(name, args)
    collect(args.out)


if __name__ == "__main__":
    main()
