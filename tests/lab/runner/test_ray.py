"""Ray: two nodes give what one process gives. One cluster serves all tests, for it takes long to start."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dynamicgate.lab.runner.engines import open_engine
from dynamicgate.lab.runner.ray_engine import run_task
from dynamicgate.lab.runner.results import table_path
from dynamicgate.lab.runner.scheduling import Engine
from tests.lab.runner import sweeping
from tests.lab.runner.clouds import content, new_experiment, run, write_clouds
from tests.places import ROOT

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Two nodes with one core each, and a connection to them."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))  # all machines have the same packages
        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            nodes.add_node(**node)
            with open_engine("ray", address=nodes.address) as engine:
                yield engine
            assert not ray.is_initialized()
        finally:
            nodes.shutdown()


def where_it_ran(item: int) -> tuple[str, str, int]:
    if item < 0:
        raise ValueError(f"received {item}")
    time.sleep(1.0)  # so that the other node takes the next one
    return ray.get_runtime_context().get_node_id(), os.getcwd(), item * item


@pytest.mark.slow
def test_tasks_run_on_both_nodes_in_the_folder_of_the_command(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    further, items, out = {0: [10]}, [0, 1, 2, 3, 4, 5], tmp_path / "out"
    assert engine.workers == 2
    done = list(engine.run(where_it_ran, items, more=lambda item: further.get(item, []), shared=out))
    assert {item: found[2] for item, found in done} == {item: item * item for item in (*items, 10)}
    assert [item for item, _ in done].index(10) < 6, "what was begun ends first"
    assert len({node for _, (node, _, _) in done}) == 2
    assert {folder for _, (_, folder, _) in done} == {str(tmp_path)}
    assert list(out.iterdir()) == []
    with pytest.raises(ValueError, match="received -1") as raised:
        list(engine.run(where_it_ran, [-1]))
    assert type(raised.value) is ValueError, "the error of the task, as it was raised"


@pytest.mark.slow
def test_a_table_of_twelve_runs_is_the_same_on_two_nodes_and_in_one_process(engine: Engine, tmp_path: Path) -> None:
    experiment = new_experiment(tmp_path / "one", seeds=4, timed=False)
    assert run(experiment) == 12
    two = replace(experiment, root=tmp_path / "two")
    assert run(two, engine=engine) == 12
    assert content(two) == content(experiment)
    assert run(two, engine=engine) == 0, "all are found by their hash"
    next(two.work.rglob("result.json")).unlink()
    table_path(two.results, two.tables[0].name).unlink()
    assert run(two, engine=engine) == 1, "the others are found in their folders"
    assert content(two) == content(experiment)


@pytest.mark.slow
def test_a_sweep_of_eight_trials_is_the_same_on_two_nodes_and_in_one_process(engine: Engine, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    data = write_clouds(tmp_path / "clouds.npz")
    found = sweeping.run(tmp_path / "two", data, 8, engine=engine)
    assert len(found["runs"]) == 8
    assert found == sweeping.run(tmp_path / "one", data, 8)


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    mark = tmp_path / "runs" / ".seen"
    with pytest.raises(ValueError, match=f"does not see {mark.parent}: machines of a Ray cluster write into one"):
        run_task((where_it_ran, tmp_path, mark), 0)
    with pytest.raises(ValueError, match=f"does not see {tmp_path / 'gone'}"):
        run_task((where_it_ran, tmp_path / "gone", None), 0)
