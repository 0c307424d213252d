"""Language models with gates in wide feed-forward layers, against every control at equal MACs.

python -m experiments.language fetch               # the Python source, from pinned wheels
python -m experiments.language python              # every method at the cost of a dense layer of 1 d
python -m experiments.language python-long         # the main ones, trained longer
python -m experiments.language python-variants     # the gate with one thing changed at a time, by validation text
python -m experiments.language all --jobs 3 --device cuda
python -m experiments.language save python "gate 16d" --out gpt.safetensors    # one model, for dynamicgate generate
python -m experiments.language page                # docs/language-models.md from the committed results
"""

from __future__ import annotations

import sys
from pathlib import Path

from dynamicgate.lab.language.corpora import fetch_python
from dynamicgate.lab.runner.docs_pages import write_pages
from experiments.command import asked_experiment, exit_code, only, parser_of, run_asked
from experiments.language.page import pages
from experiments.language.save import save_model
from experiments.language.tables import GATE, LANGUAGE

MODULE = "experiments.language"


def main() -> None:
    """Run what is asked for."""
    parser = parser_of(MODULE, __doc__)
    tables = ", ".join(t.name for t in LANGUAGE.tables)
    parser.add_argument("names", nargs="+", help=f"{tables}; all, fetch or page; or save and a table and a model")
    parser.add_argument("--only", nargs="*", default=None, help="models; all")
    parser.add_argument("--out", type=Path, default=Path("gpt.safetensors"), help="the file that save writes")
    parser.add_argument("--half", action="store_true", help="for save: weights in bfloat16, gate networks as they are")
    args = parser.parse_args()
    if args.names == ["fetch"]:
        print(f"checked: {fetch_python(args.data_dir)}")
        return
    experiment = asked_experiment(LANGUAGE, args)
    if args.names[0] == "save":
        if len(args.names) != 3:
            raise ValueError(f'save needs a table and a model: python -m {MODULE} save python "{GATE}"')
        _, table, model = args.names
        save_model(experiment, table, model, args.out, device=args.device, data_dir=args.data_dir, half=args.half)
        return
    if args.names == ["page"]:
        write_pages(experiment.root, pages(experiment))
        return
    names = [t.name for t in experiment.tables] if args.names == ["all"] else args.names
    jobs = experiment.jobs([experiment.table(name) for name in names], seeds=args.seeds, device=args.device)
    run_asked(experiment, only(jobs, args.only), args, f"python -m {MODULE} {' '.join(args.names)}")


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
