"""E0, E1, E9, E11 and the rivals of E2: runs of `follow`, one method each."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.stream_runs import run_stream
from dynamicgate.lab.methods.streams import scaled, stream_of
from dynamicgate.lab.runner import Job
from experiments.continual.laboratories import Laboratories


def train(job: Job, data: Splits | Laboratories) -> dict[str, Any]:
    """Follow the stream that a run is asked for. Permutations are those of the seed; settings were tuned on others."""
    torch.set_float32_matmul_precision("high")
    asked = job.settings
    stream = data.stream(job.seed) if isinstance(data, Laboratories) else stream_of(scaled(data), asked, job.seed)
    found = run_stream(stream, asked, job.seed, device=job.device, folder=job.folder)
    return {"model": job.model, "seed": job.seed, "settings": asked, **found}
