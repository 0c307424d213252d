"""Running jobs: found by their hash, in parallel, resumed after a kill, the same every time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dynamicgate.lab.result_file import write_runs
from dynamicgate.lab.runner import Experiment, Job, run_jobs, run_parallel
from dynamicgate.lab.runner.pool import Outcome, ProcessPool, Progress, describe, format_duration
from dynamicgate.lab.runner.results import (
    StaleRunsWarning,
    collect,
    find_runs,
    read_results,
    say_stale,
    table_path,
    write_for_report,
)
from tests import forked
from tests.lab.runner.clouds import COMMAND, InThisProcess, content, new_experiment, run, stored
from tests.places import ROOT

TABLE = "clouds/small"
T = TypeVar("T")
R = TypeVar("R")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment of which nothing has been run."""
    return new_experiment(tmp_path, timed=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An experiment of which everything has been run."""
    experiment = new_experiment(tmp_path_factory.mktemp("finished"))
    assert run(experiment) == 6
    return experiment


def copy_of(experiment: Experiment, root: Path) -> Experiment:
    """A copy that may be changed; its jobs ask for the same data, so they have the same hashes."""
    shutil.copytree(experiment.root, root, dirs_exist_ok=True)
    return replace(experiment, root=root)


def square(number: int) -> int:
    if number < 0:
        raise ValueError(f"received {number}")
    return number * number


def test_tasks_run_in_parallel_and_come_back_with_their_items() -> None:
    assert dict(run_parallel(square, [3, 1, 2], processes=2)) == {3: 9, 1: 1, 2: 4}
    assert list(run_parallel(square, [], processes=2)) == []
    with pytest.raises(ValueError, match="at least one process is needed, received 0"):
        list(run_parallel(square, [1], processes=0))
    with pytest.raises(ValueError, match="received -1"):
        list(run_parallel(square, [-1], processes=1))


def sleep_and_say_who(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    words = (
        "from dynamicgate.lab.runner.pool import run_parallel\n"
        "from tests.lab.runner.test_pool import sleep_and_say_who\n"
        f"if __name__ == '__main__': list(run_parallel(sleep_and_say_who, [{str(tmp_path / 'pid')!r}], processes=1))"
    )
    (tmp_path / "parent.py").write_text(words)
    parent = forked.start([str(tmp_path / "parent.py")], env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])})
    worker = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_running(worker))


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that nobody has asked for yet."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(happens: Callable[[], T]) -> T:
    for _ in range(1200):
        if found := happens():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_further_tasks_are_asked_for_as_others_finish_and_are_taken_first() -> None:
    further = {1: [10, 11], 10: [100]}
    done = list(run_parallel(square, [1, 2, 3, 4, 5], processes=1, more=lambda item: further.get(item, [])))
    assert sorted(item for item, _ in done) == [1, 2, 3, 4, 5, 10, 11, 100]
    order = [item for item, _ in done]
    assert order.index(10) < order.index(11) < order.index(4)


def test_runs_are_done_once_and_again_if_deleted_with_the_same_result(finished: Experiment, tmp_path: Path) -> None:
    experiment = copy_of(finished, tmp_path)
    path = table_path(experiment.results, TABLE)
    before = path.read_bytes()
    assert run(experiment) == 0
    assert path.read_bytes() == before
    assert not list(tmp_path.rglob("last.safetensors")), "checkpoints are only for what is not finished"
    others = [one for one in stored(experiment) if (one["model"], one["seed"]) != ("gate", 1)]
    write_runs(path, others)
    assert run(experiment) == 0, "it is still in its folder, and collected again"
    assert path.read_bytes() == before
    write_runs(path, others)
    shutil.rmtree(next(experiment.work.rglob("gate-s1-*")))
    assert run(experiment) == 1
    assert content(experiment) == content(finished)
    created = {one["hash"]: one["meta"]["created"] for one in stored(experiment)}
    assert all(created[one["hash"]] == one["meta"]["created"] for one in others), "all others are kept as they were"


def test_a_run_with_other_settings_is_reported_as_stale_run_again_and_replaced(
    finished: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = copy_of(finished, tmp_path)
    runs = stored(experiment)
    for one in runs:
        one["hash"] = "00000000" if (one["model"], one["seed"]) == ("rigl", 0) else one["hash"]
    write_runs(table_path(experiment.results, TABLE), runs)
    shutil.rmtree(next(experiment.work.rglob("rigl-s0-*")))
    with pytest.warns(StaleRunsWarning, match="1 stored runs are stale, .*: clouds/small rigl seed 0; they are left"):
        found, _ = read_results(experiment.results, experiment.jobs())
    assert [len(rows) for rows in found.values()] == [2, 2, 1]
    assert run(experiment) == 1
    assert "clouds/small rigl seed 0; they are run again and replaced" in capsys.readouterr().err
    assert content(experiment) == content(finished)


def test_of_many_stale_runs_the_first_few_are_named(finished: Experiment) -> None:
    said = say_stale(finished.jobs())
    assert said.startswith("6 stored runs are stale, made with other settings")
    assert said.endswith(" and 1 more")
    assert said.count(" seed ") == 5


def test_collect_adds_to_what_a_table_holds(finished: Experiment, tmp_path: Path) -> None:
    jobs = finished.jobs()
    assert collect(tmp_path, jobs[:2]) == 2
    assert collect(tmp_path, jobs[1:]) == 4
    assert collect(tmp_path, jobs) == 0
    assert table_path(tmp_path, TABLE).read_bytes() == table_path(finished.results, TABLE).read_bytes()


def test_the_number_of_processes_does_not_change_results(finished: Experiment, tmp_path: Path) -> None:
    experiment = replace(finished, root=tmp_path)
    assert run(experiment, engine=ProcessPool(2)) == 6
    assert content(experiment) == content(finished)


def test_a_run_has_its_results_its_hash_and_where_it_comes_from(finished: Experiment) -> None:
    for one in stored(finished):
        assert one["meta"].keys() >= {"command", "versions", "machine", "quick", "data"}
        assert one["meta"]["command"] == COMMAND
        assert one["meta"]["machine"]["threads"] == 1
        assert one["meta"]["data"]["train"] == 163
        assert one.keys() >= {"hash", "quality", "macs", "proxies", "params", "settings", "steps", "valid"}
        assert all("open_by_class" not in gate for gate in one["gates"]), "large, and only for the report"


def test_after_a_kill_only_the_rest_is_run(finished: Experiment, tmp_path: Path) -> None:
    shutil.copy(finished.root / "clouds.npz", tmp_path)
    experiment = new_experiment(tmp_path)
    words = [sys.executable, "-m", "tests.lab.runner.clouds", str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    while not list(experiment.work.rglob("result.json")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in experiment.work.rglob("result.json")}
    assert 1 <= len(kept) < 6
    again = forked.run(words[1:], cwd=ROOT)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    whole, found = content(finished), content(experiment)
    for one in (*whole.values(), *found.values()):
        del one["hash"], one["settings"]["data"]  # the path of the data
    assert found == whole


class TerminatedAfterOne(InThisProcess):
    """An engine that gets SIGTERM once its first item is done."""

    def run(self, task: Callable[[T], R], items: Sequence[T], **more: Any) -> Iterator[tuple[T, R]]:
        for item, result in super().run(task, items, **more):
            os.kill(os.getpid(), signal.SIGTERM)
            yield item, result


def test_what_is_finished_is_collected_after_sigterm(tmp_path: Path) -> None:
    experiment = new_experiment(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(experiment, engine=TerminatedAfterOne())
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert run(experiment, engine=TerminatedAfterOne()) == 5  # a handler of the caller is left alone
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(stored(experiment)) == 6


def test_a_run_that_diverged_is_said_so() -> None:
    run = {"quality": {"bits_per_byte": None}, "macs": {"relative": None}, "diverged": "the loss became nan at step 3"}
    assert describe(run) == "diverged: the loss became nan at step 3"


def test_after_a_kill_the_runs_that_follow_finished_ones_are_still_asked_for(tmp_path: Path) -> None:
    jobs = new_experiment(tmp_path, seeds=2).jobs(device="cpu")[:4]
    results, after = tmp_path / "results", {a.folder: [b] for a, b in pairwise(jobs)}

    def more(job: Job) -> list[Job]:
        return after.get(job.folder, [])

    run_jobs([jobs[0], jobs[2]], results, engine=InThisProcess())
    shutil.rmtree(results)  # the call that asks for one after the other was killed before it wrote the tables
    ran = run_jobs(jobs[:1], results, engine=InThisProcess(), more=more)
    assert ran == 2
    assert len(find_runs(results, jobs)[0]) == 4


def test_quick_runs_are_kept_apart_and_say_so(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(experiment, quick=True) == 3, "one seed"
    quick = replace(experiment, quick=True)
    assert not experiment.results.exists()
    for one in stored(quick):
        assert one["meta"]["quick"]
        assert one["meta"]["data"]["train"] == 60
        assert one["settings"]["epochs"] == 1
        assert one["seconds_relative"] > 0
    said = capsys.readouterr().err
    assert "[3/3] clouds/small  rigl seed 0" in said
    assert f"3 runs, 0 of them found in {quick.results}" in said
    assert write_for_report(quick.results, quick.jobs()) == [quick.work / TABLE]
    summary = json.loads((quick.work / TABLE / "results.json").read_text())
    assert [one["model"] for one in summary["runs"]] == ["dense", "gate", "rigl"]
    assert "open_by_class" in summary["runs"][1]["gates"][0], "for the report"
    assert all((quick.work / TABLE / one["folder"] / "log.jsonl").exists() for one in summary["runs"])


def test_runs_on_different_data_are_not_put_in_one_table(finished: Experiment, tmp_path: Path) -> None:
    runs = stored(finished)
    runs[1]["meta"]["data"]["train"] += 1
    write_runs(table_path(tmp_path, TABLE), runs)
    with pytest.raises(ValueError, match="the runs of clouds/small are on different data"):
        read_results(tmp_path, finished.jobs())


def test_the_time_left_is_estimated_from_runs_of_the_same_table(experiment: Experiment) -> None:
    (table,) = experiment.tables
    jobs = [Job(one, "dense", seed) for one in (table, replace(table, name="other")) for seed in range(4)]
    progress = Progress(jobs, processes=2)
    line = progress.line(jobs[0], Outcome("90.00%  MACs 1.000", 10.0))
    assert line == "[1/8] clouds/small  dense seed 0  90.00%  MACs 1.000  10 s  about 35 s left"
    progress.line(jobs[4], Outcome("", 100.0))
    assert progress.remaining() == pytest.approx((3 * 10 + 3 * 100) / 2)
    assert [format_duration(s) for s in (5, 100, 7200)] == ["5 s", "2 min", "2.0 h"]


def test_a_run_is_described_by_the_quality_it_has() -> None:
    macs = {"relative": 0.5}
    assert describe({"quality": {"accuracy": 0.9}, "macs": macs}) == "90.00%  MACs 0.500"
    assert describe({"quality": {"cosine": 0.98}, "macs": macs}) == "cosine 0.9800  MACs 0.500"
    assert describe({"quality": {"bits_per_byte": 1.5}, "macs": macs}) == "1.5000 bits per byte  MACs 0.500"


def test_an_error_names_the_run(tmp_path: Path) -> None:
    experiment = new_experiment(tmp_path, seeds=1)
    table = experiment.tables[0]
    wrong = replace(table, models={"gate": {**table.models["gate"], "budget": 0.0001}})
    with pytest.raises(ValueError, match=r"clouds/small, gate, seed 0: .*budget"):
        run(replace(experiment, tables=(wrong,)))
