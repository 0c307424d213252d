"""What is forgotten, what is kept, and whether a network grows old.

python -m experiments.continual e1 --jobs 16 --device cuda   # one table; stored runs are found
python -m experiments.continual all --jobs 16 --device cuda
python -m experiments.continual e1 --quick --only keep naive # seconds, with few rows; kept apart
python -m experiments.continual page                         # both pages from the committed results

tuning-...: settings, on other permutations and orders; once one is stored whole, the tables below ask for what it
chose. keep, horizon: contexts. learners, rotated, classes, cifar10, rivals: rates and strengths of every method, for
e1, e9, e8, e9-cifar10 and e2-rivals. plasticity, plasticity-decay: for e5, e6 and e5-decay.
e0-permuted-5, e0-permuted-10, e0-rotated-5: nothing kept, does it forget less? e1: 10 permutations, every method;
e1-longer: with the recipe of e2. e2: 100. e2-rivals: the usual methods at 100. e3: nothing known, and how much the
horizon matters. e4: 1,000. e5, e5-decay, e6, e6-wide: 500, 200 and 50 permutations, does it grow old? e7: 800 with room
for 100. e8: new classes. e9: rotated; e9-cifar10: pairs of natural classes. e10: cell types; e10-laboratories and
e10-shared-genes: a second laboratory. e11: time scales; e11-consolidation: the third of them. Small networks along a
stream (e0, e1, e8, e9, e11) also run on cores, one each: --device cpu. Wide ones and those side by side belong on a
GPU.
"""

from __future__ import annotations

import sys

from dynamicgate.lab.runner.docs_pages import write_pages
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.continual.page import pages
from experiments.continual.tables import CONTINUAL

MODULE = "experiments.continual"


def main() -> None:
    """Run what is asked for, then write the page."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("names", nargs="+", help=f"{', '.join(t.name for t in CONTINUAL.tables)}; all, or page")
    parser.add_argument("--only", nargs="*", default=None, help="models; all")
    args = parser.parse_args()
    experiment = asked_experiment(CONTINUAL, args)
    if args.names != ["page"]:
        names = [t.name for t in experiment.tables] if args.names == ["all"] else args.names
        jobs = experiment.jobs([experiment.table(name) for name in names], seeds=args.seeds, device=args.device)
        jobs = [job for job in jobs if args.only is None or job.model in args.only]
        run_asked(experiment, jobs, args, f"python -m {MODULE} {' '.join(args.names)}")
    if not experiment.quick:
        write_pages(experiment.root, pages(experiment))


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
