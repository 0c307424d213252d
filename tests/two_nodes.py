"""Two nodes on one machine: two agents of torchrun that find each other over loopback, as two machines would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a node ended."""

    returncode: int
    stdout: str
    stderr: str


def run_on_two_nodes(
    first: Sequence[str], second: Sequence[str] | None = None, *, processes: int = 1, timeout: float = 300.0
) -> list[Ended]:
    """Let torchrun start a script, or `-m MODULE`, with its arguments on each node; by default the same on both."""
    port = free_port()
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **loopback}
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


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
