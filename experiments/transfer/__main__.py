"""A budget and nothing else, on data that nobody tuned on.

python -m experiments.transfer             # write the files, train what is missing, write docs/transfer.md
python -m experiments.transfer wine        # only on some of the data
python -m experiments.transfer page        # only the page, from the committed results

Characters need the text tinyshakespeare/input.txt in the folder of DYNAMICGATE_DATA, all others scikit-learn.
"""

from __future__ import annotations

import sys

from dynamicgate.lab.runner.docs_pages import write_pages
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.transfer.datasets import write_files
from experiments.transfer.experiment import TRANSFER
from experiments.transfer.page import losing_cells, pages

MODULE = "experiments.transfer"


def main() -> None:
    """Train what is missing, print where `sparsify` loses, and write the page."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("names", nargs="*", help="datasets, all by default; or page")
    args = parser.parse_args()
    experiment = asked_experiment(TRANSFER, args)
    if args.names != ["page"]:
        tables = [experiment.table(name) for name in args.names] or list(experiment.tables)
        write_files(experiment.root, args.data_dir, [table.name for table in tables])
        jobs = experiment.jobs(tables, seeds=args.seeds, device=args.device)
        run_asked(experiment, jobs, args, f"python -m {MODULE}")
    print("\n".join(losing_cells(experiment)) or "sparsify loses nowhere")
    write_pages(experiment.root, pages(experiment))


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
