"""`compile` for a GPU, run on the CPU with invented times and the reference implementations behind the ops."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from dynamicgate.inference import CompiledModel
from dynamicgate.inference.gpu import candidates, choose, ffn, pipeline
from dynamicgate.inference.gpu.pipeline import compile_on_gpu
from tests.inference.gpu.models import Compile


@pytest.fixture
def compile_as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`compile_on_gpu` on the CPU, as if `favourite` were fastest at each number of tokens."""

    def run(
        model: nn.Module, x: Tensor, favourite: str = "gated", batches: tuple[int, ...] = (1, 16, 64)
    ) -> CompiledModel:
        def invented(calls: Any, xs: Any, seconds: float) -> dict[str, float]:
            return {name: 1.0 if name.startswith(favourite) else 3.0 for name in calls}

        plain: Any = lambda name: candidates.STRATEGIES[name.removesuffix(candidates.COMPILED)]  # noqa: E731
        for module in (choose, ffn):
            monkeypatch.setattr(module, "strategy", plain)
        monkeypatch.setattr(choose, "time_calls", invented)
        monkeypatch.setattr(pipeline, "choose_whole", lambda *_, **__: ([], []))  # compiles for seconds: see its test
        return CompiledModel(*compile_on_gpu(model, x, batches=batches, calibration=x, seconds=1.0))

    return run
