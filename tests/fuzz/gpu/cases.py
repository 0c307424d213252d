"""The case of a seed, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import random
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import NamedTuple

import torch

from tests.fuzz.gpu import kernels, plans
from tests.fuzz.gpu.menu import Case, draw

CHECKS = {
    **kernels.CHECKS,
    "plan": plans.check_plan,
    "torch.compile": partial(plans.check_plan, by_torch_compile=True),
}
KERNELS = tuple(kernels.CHECKS)


class Wrong(NamedTuple):
    """A case that went wrong."""

    seed: int
    what: str


def prepare(device: str) -> None:
    """Memory that was not written is NaN, so that a case notices what a kernel leaves out."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("on the cpu the kernels run in Triton's interpreter only: set TRITON_INTERPRET=1")
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this machine has no CUDA GPU")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)


def check(seed: int, device: str, kinds: tuple[str, ...] = ()) -> str | None:
    """What is wrong with the case of this seed, if anything is; whatever it raises is wrong too."""
    case = draw(seed, device, kinds)
    try:
        said = CHECKS[case.kind](case.layer, random.Random(seed), seed, device)
    except Exception:  # a kernel that does not compile, a plan that is refused, a fault of the device
        said = traceback.format_exc(limit=-6)
    return said and f"{_named(case)}: {said}"


def run(seeds: Sequence[int], device: str, kinds: tuple[str, ...], jobs: int) -> Iterator[tuple[str, int, list[Wrong]]]:
    """By kind and layer: its name, how many cases there were, and those that went wrong.

    Cases of one layer run together, in one process, which compiles its kernels once."""
    groups: dict[Case, list[int]] = {}
    for seed in seeds:
        groups.setdefault(draw(seed, device, kinds), []).append(seed)
    slowest_first = sorted(groups, key=lambda case: (case.kind != "torch.compile", case.kind != "plan", case[:2]))
    if jobs == 1:
        for case in slowest_first:
            yield _named(case), len(groups[case]), check_all(groups[case], device, kinds)
        return
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare, initargs=(device,)) as pool:
        waiting = {pool.submit(check_all, groups[case], device, kinds): case for case in slowest_first}
        for done in as_completed(waiting):
            case = waiting[done]
            yield _named(case), len(groups[case]), done.result()


def check_all(seeds: Sequence[int], device: str, kinds: tuple[str, ...]) -> list[Wrong]:
    """The cases that go wrong."""
    return [Wrong(seed, said) for seed in seeds if (said := check(seed, device, kinds))]


def _named(case: Case) -> str:
    features, units, outputs, block, dtype, activation = case.layer[:6]
    with_value = " with value" if case.layer.value else ""
    sizes = f"{features}x{units}x{outputs} in blocks of {block}"
    return f"{case.kind} {case.number}, {sizes}, {str(dtype)[6:]} {activation}{with_value}"
