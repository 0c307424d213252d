"""Pretrained models with gates, against every control with the same tokens.

python -m experiments.conversion smollm2 --device cuda --jobs 1     # SmolLM2-135M, 60 M tokens for each arm
python -m experiments.conversion smollm2-2m --device cuda --jobs 1  # the same with 2 M tokens
python -m experiments.conversion minilm --device cuda --jobs 3      # sentence embeddings, 20 M tokens
python -m experiments.conversion minilm-60m --device cuda --jobs 3  # the same with 60 M tokens
python -m experiments.conversion smollm2 minilm --quick             # tiny random models, without any files
python -m experiments.conversion tokens --out FOLDER --millions 2   # texts in tokens, to take to another machine
python -m experiments.conversion page                               # its sections of docs/language-models.md

Text that SmolLM2 writes itself, to learn from too, as the table smollm2-own-text has it:
python -m experiments.conversion draw --out FOLDER --millions 3 --device cuda
python -m experiments.conversion smollm2-own-text --data-dir FOLDER --device cuda --jobs 1
python -m experiments.conversion smollm2-own-text-20m ...                      # 20 M tokens for each arm: draw 7

For 20 M tokens that are drawn from 12 M, as the table minilm-less-text has them:
python -m experiments.conversion tokens --out FOLDER --millions 12 --for minilm
python -m experiments.conversion minilm-less-text --data-dir FOLDER --device cuda --jobs 3

Students of SmolLM2 one at a time: in batches of 32 windows each needs most of the memory of a large GPU.
DYNAMICGATE_MODELS is the folder in which examples/hf_weights.py wrote the weights, DYNAMICGATE_DATA that of the texts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dynamicgate.distributed import choose_device
from dynamicgate.lab.runner.docs_pages import write_pages
from experiments.command import asked_experiment, exit_code, only, parser_of, run_asked
from experiments.conversion.own_text import write_own_text
from experiments.conversion.page import pages
from experiments.conversion.tables import CONVERSION, MILLION
from experiments.conversion.texts import TESTED_ON, write_texts

MODULE = "experiments.conversion"
READ = {"smollm2": TESTED_ON, "minilm": ("books",)}


def main() -> None:
    """Run what is asked for."""
    parser = parser_of(MODULE, __doc__)
    names = ", ".join(table.name for table in CONVERSION.tables)
    parser.add_argument("names", nargs="+", help=f"{names}; tokens, draw or page")
    parser.add_argument("--only", nargs="*", default=None, help="models; all")
    parser.add_argument("--out", type=Path, default=None, help="for tokens and draw: the folder to write")
    parser.add_argument("--millions", type=float, default=60.0, help="for tokens and draw: of training text, in all")
    parser.add_argument("--batch", type=int, default=1024, help="for draw: sequences that are drawn at once")
    parser.add_argument("--for", dest="models", nargs="*", default=list(READ), help="for tokens: smollm2, minilm")
    args = parser.parse_args()
    experiment = asked_experiment(CONVERSION, args)
    if args.names in (["tokens"], ["draw"]):
        if args.out is None:
            raise ValueError(f"{args.names[0]} writes a folder: name it with --out")
        if args.names == ["draw"]:
            device = choose_device(args.device)
            text = write_own_text("smollm2", args.out, round(args.millions * MILLION), args.batch, device)
            print(", ".join(f"{part} {len(ids):,} tokens" for part, ids in text.tokens.items()))
            return
        for model in args.models:
            write_texts(model, READ[model], args.out, args.data_dir, round(args.millions * MILLION))
        return
    if args.names == ["page"]:
        write_pages(experiment.root, pages(experiment))
        return
    jobs = experiment.jobs([experiment.table(name) for name in args.names], seeds=args.seeds, device=args.device)
    run_asked(experiment, only(jobs, args.only), args, f"python -m {MODULE} {' '.join(args.names)}")


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
