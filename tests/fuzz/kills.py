"""kill -9 at file events (a half-written file, before and after a flush or a move, half a line of a log or of the
journal of a sweep), then the same command again until it ends: every file must be, bit for bit, what an uninterrupted
run leaves. And two runs at once in one folder, which must never mix. `python -m tests.fuzz.kills --count 200 --seed 0`
counts kills.

Children are forked from one process that has imported everything: a kill costs seconds less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from optuna.storages.journal import JournalFileBackend
from safetensors.torch import load_file

from dynamicgate.continual import walk
from dynamicgate.lab.cli import main
from dynamicgate.lab.methods import stream_runs, train_one
from dynamicgate.training import run_state
from tests.fuzz import record

TRAIN = "train --data digits --epochs 2 --hidden 24"
COMMANDS = {
    "gate+rigl": f"{TRAIN} --model gate+rigl --budget 0.3",
    "gate": f"{TRAIN} --model gate --budget 0.5 --policy gumbel --accumulate 3 --clip 1.0",
    "patience": f"{TRAIN} --model rigl --budget 0.3 --patience 1",
    "compare": "compare --data digits --models dense,gate --budget 0.5 --seeds 2 --epochs 1 --hidden 16",
    "sweep": "sweep --data digits --model gate --budget 0.5 --trials 4 --epochs 3 --hidden 16",
    "continual": "continual --data digits --models naive,er,keep --tasks 2 --rows 300 --epochs 2 --hidden 16 --width 8",
}
SAME = ("model.safetensors", "best.safetensors", "log.jsonl", "samples.json", "stream.json")
SAME_TENSORS = ("last.safetensors",)  # its header has times
WITHOUT_TIMES = ("run.json", "results.json", "sweep.json")
TIMES = ("created", "command", "seconds", "commit", "steps_a_second")
CHECKPOINT_SECONDS = 0.05
KILLS_IN_A_TRIAL = 4


class Events:
    """Counts file events of this process, and ends it at one of them."""

    def __init__(self, kill_at: int | None, seed: int = 0) -> None:
        """Kill at this event, counted from 1; None: never."""
        self.kill_at, self.count, self.random = kill_at, 0, random.Random(seed)

    def install(self) -> None:
        """Watch the calls that change files, in this process only."""
        replace, fsync, append, journal = os.replace, os.fsync, run_state.append_row, JournalFileBackend.append_logs
        follow = stream_runs.follow

        def watched_replace(source: Any, target: Any) -> None:
            if self._comes():  # half a file, never in place
                os.truncate(source, os.path.getsize(source) // 2)
            self._event()
            replace(source, target)
            self._event()

        def watched_fsync(handle: int) -> None:
            self._event()
            fsync(handle)

        def watched_append(path: Path, row: dict[str, Any]) -> None:
            if self._comes():
                text = json.dumps(row)
                with path.open("a") as file:
                    file.write(text[: self.random.randrange(len(text))])
            self._event()
            append(path, row)

        def watched_journal(backend: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
            if self._comes():
                text = json.dumps(logs[0])
                with Path(backend._file_path).open("a") as file:
                    file.write(text[: self.random.randrange(len(text))])
            self._event()
            journal(backend, logs)

        def follow_with_checkpoints(*args: Any, **options: Any) -> Any:
            return follow(*args, **{**options, "checkpoint_seconds": CHECKPOINT_SECONDS})

        os.replace, os.fsync = watched_replace, watched_fsync
        run_state.append_row = walk.append_row = watched_append  # type: ignore[assignment]
        JournalFileBackend.append_logs = watched_journal  # type: ignore[method-assign]
        stream_runs.follow = follow_with_checkpoints  # type: ignore[assignment]
        train_one.fit = partial(train_one.fit, checkpoint_seconds=CHECKPOINT_SECONDS)  # type: ignore[assignment]

    def _comes(self) -> bool:
        return self.kill_at is not None and self.count + 1 == self.kill_at

    def _event(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def start(command: str, out: Path, kill_at: int | None = None, *, count_in: Path | None = None, seed: int = 0) -> int:
    """Run a command in a child; returns its process id."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        events = Events(kill_at, seed)
        events.install()
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            log = (out.parent / f"{out.name}.err").open("a")
            with contextlib.redirect_stderr(log):
                status = main([*command.split(), "--out", str(out)])
            log.close()
        if count_in is not None:
            count_in.write_text(str(events.count))
    finally:
        os._exit(status)  # what the parent has at its own exit is not the child's


def ended(child: int) -> int:
    """Wait for a child; its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def differences(base: Path, out: Path) -> list[str]:
    """The files that are not what the uninterrupted run left."""
    found = []
    for path in sorted(p for p in base.rglob("*") if p.is_file()):
        other = out / path.relative_to(base)
        if not other.exists():
            found.append(f"{other.name} is missing")
            continue
        if path.name in SAME:
            differs = path.read_bytes() != other.read_bytes()
        elif path.name in SAME_TENSORS:
            differs = not _same_tensors(path, other)
        else:
            differs = path.name in WITHOUT_TIMES and _timeless(path) != _timeless(other)
        if differs:
            found.append(path.name)
    return found


def _same_tensors(path: Path, other: Path) -> bool:
    one, two = load_file(path), load_file(other)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _timeless(path: Path) -> Any:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(each) for key, each in value.items() if key not in TIMES}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return strip(json.loads(path.read_text()))


def trial(command: str, base: Path, out: Path, events: int, rng: random.Random) -> tuple[int, list[str]]:
    """Kill the command at random events until it ends; returns the number of kills, and what is wrong."""
    kills = 0
    while True:
        kill_at = rng.randint(1, max(1, events)) if kills < KILLS_IN_A_TRIAL else None
        status = ended(start(command, out, kill_at, seed=rng.randrange(1 << 30)))
        if status == -signal.SIGKILL:
            kills += 1
            continue
        if status:
            return kills, [f"ended with {status}: {(out.parent / f'{out.name}.err').read_text()[-300:]}"]
        return kills, differences(base, out)


def two_writers(folder: Path) -> list[str]:
    """Two runs with other seeds in one folder at once: the files must be those of one of them, and the other must have
    been refused or find the result of the first refused."""
    command = COMMANDS["gate+rigl"]
    alone = {seed: folder / f"alone-{seed}" for seed in (0, 1)}
    for seed, out in alone.items():
        if not out.exists() and ended(start(f"{command} --seed {seed}", out)):
            return [f"the run with seed {seed} failed"]
    out = folder / "both"
    shutil.rmtree(out, ignore_errors=True)
    first = start(f"{command} --seed 0", out)
    time.sleep(random.Random(time.monotonic_ns()).uniform(0.0, 0.5))
    second = start(f"{command} --seed 1", out)
    status = {0: ended(first), 1: ended(second)}
    winners = [seed for seed, code in status.items() if code == 0]
    if len(winners) != 1:
        return [f"exit codes {status}, expected one run and one refusal"]
    return [f"{name} differs from a run alone" for name in differences(alone[winners[0]], out)]


def run(count: int, seed: int, commands: list[str], *, note: bool = False) -> int:
    """Until there were `count` kills; returns how many trials were wrong. note: in the record."""
    begun, rng = record.begin("kills"), random.Random(seed)
    wrong = kills = trials = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            main([*COMMANDS["gate"].split(), "--out", str(folder / "warm")])  # children find everything imported
        events, killed_in = {}, dict.fromkeys(commands, 0)
        for key in commands:
            command = COMMANDS[key]
            counted = folder / "count"
            if status := ended(start(command, folder / f"base-{key}", count_in=counted)):
                print(f"{key}: the uninterrupted run ended with {status}")
                return 1
            events[key] = int(counted.read_text())
        while kills < count:
            for key in commands:
                out = folder / f"{key}-{trials}"
                killed, problems = trial(COMMANDS[key], folder / f"base-{key}", out, events[key], rng)
                kills, trials = kills + killed, trials + 1
                killed_in[key] += killed
                wrong += bool(problems)
                print(f"{kills} kills, {key}: {problems or 'the same bits'}", flush=True)
                shutil.rmtree(out, ignore_errors=True)
                if kills >= count:
                    break
        pairs = max(1, count // 20)
        mixed = [problem for _ in range(pairs) for problem in two_writers(folder)]
        print(*mixed[:3], sep="\n", end="\n" if mixed else "")
    each = ", ".join(f"{number} {key}" for key, number in killed_in.items())
    said = f"{kills} kills ({each}) in {trials} trials: {wrong} wrong; {pairs} pairs of writers: {len(mixed)} wrong"
    print(said, flush=True)
    if note:
        record.write("kills", begun, count=kills, seed=seed, wrong=wrong + len(mixed), said=said)
    return wrong + len(mixed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS), help="separated by commas")
    parser.add_argument("--record", action="store_true", help="note the result in tests/fuzz/last_run.json")
    wanted = parser.parse_args()
    sys.exit(1 if run(wanted.count, wanted.seed, wanted.commands.split(","), note=wanted.record) else 0)
