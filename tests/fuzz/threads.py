"""One gated model and one compiled model called from many threads: every answer must be the one of a single thread.
`python -m tests.fuzz.threads --count 500` makes 500 calls from each of 8 threads."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

import dynamicgate as dg
from tests.fuzz import record

THREADS = 8


def gated_model() -> nn.Module:
    """A model whose gates open about half of their blocks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 7))
    dg.gate_(model, dg.GateConfig(block=4))
    for gate in dg.named_gates(model).values():
        for parameter in gate.net.parameters():
            nn.init.normal_(parameter)
    return model.eval()


def compiled_model() -> nn.Module:
    """The same, compiled."""
    return dg.compile(gated_model(), torch.randn(300, 32), seconds=0.3)


def inputs(thread: int) -> list[Tensor]:
    """The batches of one thread, of a few sizes."""
    generator = torch.Generator().manual_seed(thread)
    return [torch.randn(rows, 32, generator=generator) for rows in (1, 3 + thread, 64, 200)]


def wrong_calls(model: nn.Module, calls: int, *, recorded: bool = False) -> list[str]:
    """What went wrong in `calls` calls from each thread. recorded: inside `usage`, whose rows must be of that call."""
    xs = [inputs(thread) for thread in range(THREADS)]
    with torch.no_grad():
        expected = [[model(x) for x in own] for own in xs]
    found: list[str] = []

    def call(thread: int, number: int) -> None:
        which = number % len(xs[thread])
        x, want = xs[thread][which], expected[thread][which]
        if recorded:
            with dg.usage(model) as used:
                y = model(x)
            if any(len(used[site].open) != len(x) for site in used):
                found.append(f"thread {thread}, call {number}: rows of another thread were recorded")
        else:
            y = model(x)
        if not torch.equal(y, want):
            found.append(f"thread {thread}, call {number}: wrong by {(y - want).abs().max():.3g}")

    _run_together(lambda thread: [call(thread, number) for number in range(calls)], found)
    return found


def _run_together(work: Callable[[int], object], found: list[str]) -> None:
    def guarded(thread: int) -> None:
        try:
            with torch.no_grad():
                work(thread)
        except Exception as error:  # whatever a call raises is what the test is about
            found.append(f"thread {thread}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500, help="calls from each of 8 threads")
    parser.add_argument("--record", action="store_true", help="note the result in tests/fuzz/last_run.json")
    wanted = parser.parse_args()
    begun, problems, said = record.begin("threads"), 0, []
    for name, model, recorded in (
        ("gated", gated_model(), False),
        ("gated, recorded", gated_model(), True),
        ("compiled", compiled_model(), False),
    ):
        wrong = wrong_calls(model, wanted.count, recorded=recorded)
        problems += len(wrong)
        said.append(f"{name}: {THREADS} threads x {wanted.count} calls, {len(wrong)} wrong")
        print(said[-1], *wrong[:3], sep="\n  ")
    if wanted.record:
        record.write("threads", begun, count=wanted.count, seed=None, wrong=problems, said="; ".join(said))
    sys.exit(1 if problems else 0)
