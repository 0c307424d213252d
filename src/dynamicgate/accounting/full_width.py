"""Measurements against another dense network than the model's own: the one asked for, where a model is wider or
narrower."""

from __future__ import annotations

from dataclasses import replace

from dynamicgate.accounting.measurement import Measurement


def relative_to(found: Measurement, dense_macs: float) -> Measurement:
    """The same measurement, with every fraction relative to a dense network of `dense_macs` MACs per sample."""
    if not dense_macs > 0:
        raise ValueError(f"dense_macs are the MACs of a dense network: expected a positive number, got {dense_macs}")
    scale = found.macs["dense"] / dense_macs
    macs = {
        **found.macs,
        **{key: found.macs[key] * scale for key in ("relative", "relative_zero_skip", "gate_saved")},
        "structure_saved": 1.0 - (1.0 - found.macs["structure_saved"]) * scale,
        "dense": dense_macs,
    }
    stages = found.stages
    if stages:
        stages = {**stages, "relative": [value * scale for value in stages["relative"]]}
    return replace(
        found,
        macs=macs,
        samples={key: value * scale for key, value in found.samples.items()},
        stages=stages,
        curve=[{**point, "relative": point["relative"] * scale} for point in found.curve],
    )
