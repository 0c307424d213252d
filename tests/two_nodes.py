"""Two nodes on one machine: two agents of torchrun that find each other over loopback, as two machines would. And two
processes of one node, with the environment that torchrun gives them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import forked
from tests.forked import Ended

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", **LOOPBACK}


def run_on_two_nodes(
    first: Sequence[str], second: Sequence[str] | None = None, *, processes: int = 1, timeout: float = 300.0
) -> list[Ended]:
    """Let torchrun start a script, or `-m MODULE`, with its arguments on each node; by default the same on both."""
    port = free_port()
    env = {**os.environ, **SINGLE_THREAD}
    with tempfile.TemporaryDirectory() as folder:
        agents = []
        for node, words in enumerate((first, first if second is None else second)):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
                *("--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *words,
            ]
            said = [Path(folder) / f"{node}-{name}" for name in ("out", "err")]
            with said[0].open("w") as out, said[1].open("w") as err:  # not pipes: nobody reads while both run
                agents.append((subprocess.Popen(command, env=env, stdout=out, stderr=err), said))
        try:
            for agent, _ in agents:
                agent.wait(timeout)
        finally:
            for agent, _ in agents:
                agent.kill()
                agent.wait()
        return [Ended(agent.returncode, *(path.read_text() for path in said)) for agent, said in agents]


def run_as_two_nodes(first: Sequence[str], second: Sequence[str] | None = None) -> list[Ended]:
    """`run_on_two_nodes` without torchrun: the two workers alone, with the environment that its agents give them."""
    meet = {**_meeting_place(), "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "2"}
    programs = [
        forked.start(words, env={**SINGLE_THREAD, **meet, "RANK": str(node), "GROUP_RANK": str(node)})
        for node, words in enumerate((first, first if second is None else second))
    ]
    done: list[Ended] = []
    try:
        done.extend(program.wait() for program in programs)
    finally:
        for program in programs[len(done) + 1 :]:  # only if one did not end, which its `wait` has killed
            program.kill()
    return done


def start_two_processes(words: Sequence[str]) -> list[forked.Program]:
    """Start a script with its arguments twice, as `torchrun --nproc-per-node 2` does."""
    meet = {**_meeting_place(), "LOCAL_WORLD_SIZE": "2"}
    return [forked.start(words, env={**SINGLE_THREAD, **meet, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]


def _meeting_place() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}


def run_in_two_processes(words: Sequence[str]) -> list[Ended]:
    """`start_two_processes`, and wait for the end."""
    return forked.wait_for_all(start_two_processes(words))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
