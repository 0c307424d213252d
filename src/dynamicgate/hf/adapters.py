"""Gates beside adapters such as LoRA. That gates act in front of them is `dynamicgate.gating.wrapping`'s."""

from __future__ import annotations

from torch import nn

from dynamicgate.gating.recording import named_gates


def train_gates_(model: nn.Module) -> nn.Module:
    """Let all gates of `model` be trained, in place, and return it.

    Adapters freeze everything else in a model, gates too. Call this after `get_peft_model`; putting "gate" into its
    `modules_to_save` would train copies of the gates that decide nothing.
    """
    for gate in named_gates(model).values():
        gate.requires_grad_(True)
    return model
