"""Jobs: what identifies a run, which runs are asked for, and the data they read."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Experiment, Job
from dynamicgate.lab.runner.prepared import file_name, load_splits, prepare
from tests.lab.runner.clouds import new_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return new_experiment(tmp_path)


def unchanged(splits: Splits) -> Splits:
    return splits


def test_everything_that_decides_a_result_is_in_the_hash(experiment: Experiment) -> None:
    (table,) = experiment.tables
    job = Job(table, "dense", 0)
    others = [
        replace(job, model="gate"),
        replace(job, seed=1),
        replace(job, quick=True),
        replace(job, table=replace(table, name="other")),
        replace(job, table=replace(table, revision=2)),
        replace(job, table=replace(table, data_options={"a": 1})),
        replace(job, table=replace(table, data="other")),
        replace(job, table=replace(table, changes=(Change("unchanged", unchanged),))),
        replace(job, table=replace(table, changes=(Change("other name", unchanged),))),
        replace(job, table=replace(table, models={"dense": {**table.models["dense"], "lr": 2e-2}})),
    ]
    assert len({job.hash, *(other.hash for other in others)}) == len(others) + 1
    asked_for_default = replace(table, models={"dense": {**table.models["dense"], "every": None}})
    same = [replace(job, work=Path("elsewhere"), device="cuda"), replace(job, table=asked_for_default)]
    assert {other.hash for other in same} == {job.hash}


def test_the_hash_of_a_run_does_not_depend_on_the_machine_or_the_python_session(experiment: Experiment) -> None:
    (table,) = experiment.tables
    job = Job(replace(table, data="clouds"), "dense", 0)
    assert job.hash == "bd3d6083"
    assert pickle.loads(pickle.dumps(job)) == job, "workers receive jobs by pickle"


def test_an_experiment_asks_for_every_model_and_seed_of_its_tables(experiment: Experiment) -> None:
    jobs = experiment.jobs()
    assert [(job.seed, job.model) for job in jobs] == [(s, m) for s in (0, 1) for m in ("dense", "gate", "rigl")]
    assert {job.folder.parent for job in jobs} == {experiment.root / "runs" / "test" / "clouds" / "small"}
    assert len({job.folder for job in jobs}) == 6
    assert {job.seed for job in experiment.jobs(seeds=1)} == {0}
    quick = replace(experiment, quick=True)
    assert {job.seed for job in quick.jobs()} == {0}
    assert quick.results == experiment.root / "runs" / "test-quick" / "results"
    assert jobs[1].of("dense") == jobs[0]


def test_a_mistake_is_answered_with_a_sentence(experiment: Experiment) -> None:
    with pytest.raises(ValueError, match="at least one seed is needed, received 0"):
        experiment.jobs(seeds=0)
    with pytest.raises(ValueError, match="unknown table 'cloud': the tables of test are clouds/small"):
        experiment.table("cloud")


def test_prepared_data_is_read_instead_of_the_original(experiment: Experiment) -> None:
    job = experiment.jobs()[-1]
    folder = experiment.root / "data"
    written = prepare(experiment.tables, folder / "prepared", None)
    assert [path.name for path in written] == [file_name(job.table.data, {}, seed) for seed in (0, 1)]
    original = load_splits(job, None)
    (experiment.root / "clouds.npz").unlink()
    read = load_splits(job, folder)
    for part in ("train", "valid", "test"):
        assert (getattr(read, part).values == getattr(original, part).values).all()
        assert (getattr(read, part).y == getattr(original, part).y).all()
    assert (read.mean == original.mean).all()
    assert (read.name, read.classes, read.class_names) == (original.name, original.classes, original.class_names)
    assert load_splits(job, folder) is read, "runs of a seed read their data once"
