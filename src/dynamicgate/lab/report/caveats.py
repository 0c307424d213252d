"""What a reader should know before trusting the means: diverged runs, shared seeds, mixed budgets, too few runs."""

from dynamicgate.lab.report.reading import Results, get_object
from dynamicgate.lab.report.run_metrics import accuracy_of, number, quality_word, target_of
from dynamicgate.lab.report.summary import group_runs, has_several_datasets, spread

LEAST_SEEDS = 3


def find_caveats(results: Results) -> list[str]:
    """One sentence for each."""
    found = []
    groups = group_runs(results)
    several = has_several_datasets(results)
    majority = number(get_object(get_object(results, "meta"), "data").get("majority"))
    for (dataset, model), runs in groups.items():
        name = f"{model} on {dataset}" if several else model
        seeds = [str(run["seed"]) for run in runs]
        accuracy = spread(accuracy_of(run) for run in runs)
        if accuracy["n"] < len(runs):
            found.append(
                f"{name}: {len(runs) - accuracy['n']} of {len(runs)} runs have no finite {quality_word(runs)} "
                "and are left out of the mean."
            )
        if len(set(seeds)) < len(seeds):
            found.append(f"{name}: some of its {len(runs)} runs share a seed, so they are not independent.")
        if len({target_of(run) for run in runs}) > 1:
            found.append(f"{name}: its runs had different budgets but are averaged together.")
        if majority is not None and not several and accuracy["mean"] is not None and accuracy["mean"] <= majority:
            found.append(f"{name}: no more accurate than always predicting the most frequent class.")
    if all(len(runs) == 1 for runs in groups.values()):
        found.append("One run per model: nothing here shows how much a result varies from seed to seed.")
    elif (fewest := min(len(runs) for runs in groups.values())) < LEAST_SEEDS:
        found.append(
            f"{'Two runs' if fewest == 2 else 'One run'} of some models: a 95 % interval of so few runs is very wide. "
            f"Train {LEAST_SEEDS} seeds or more before you believe a verdict."
        )
    if len({len(runs) for runs in groups.values()}) > 1:
        found.append("The models do not all have the same number of runs.")
    return found
