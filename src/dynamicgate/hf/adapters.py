"""Gates beside adapters such as LoRA: training them, and keeping them in the adapter's file.

`PeftModel.save_pretrained` writes adapters only, and the checkpoints of a `Trainer` hold nothing else. So gates travel
in the adapter's file, and `PeftModel.from_pretrained` and `load_adapter` bring them back: PEFT asks every
`AuxiliaryTrainingWrapper` in a model what it adds to the file, and PyTorch tells us when a state dict is asked for or
loaded. That gates act in front of adapters is `dynamicgate.gating.wrapping`'s.

Names in the file are relative to the model that is adapted. They hold slashes, because PEFT renames what looks like the
name of an adapter. A program that has not imported this package gets a model without gates from PEFT, which skips what
it does not know; Transformers prints the names of what it skips, and one of them says what to do.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.hf.saving import FORMAT, put_gates_on_
from dynamicgate.io.model_file import describe_gates, read_site

CHILD = "dynamicgate"
DESCRIPTION = "this adapter has gates: import dynamicgate, then load it with PeftModel"  # no dots, as said above
Entries = dict[str, Tensor]


def train_gates_(model: nn.Module) -> nn.Module:
    """Let all gates of `model` be trained, in place, and return it.

    Adapters freeze everything else in a model, gates too. Call this after `get_peft_model`; putting "gate" into its
    `modules_to_save` would train copies of the gates that decide nothing.
    """
    for gate in named_gates(model).values():
        gate.requires_grad_(True)
    keep_in_adapters(model)
    return model


def keep_in_adapters(model: nn.Module) -> None:
    """Let `model`, and every `PeftModel` in it, keep gates in the files of its adapters, now or later."""
    for module in model.modules():
        if _is_peft_model(module) or (module is model and hasattr(module, "save_pretrained")):
            _watch(module)


def _is_peft_model(module: nn.Module) -> bool:
    return any(cls.__name__ == "PeftModel" and cls.__module__.startswith("peft.") for cls in type(module).__mro__)


def _has_adapters(module: nn.Module) -> bool:
    """Whether its `save_pretrained` writes adapters only. Transformers adds adapters to its own models too."""
    return _is_peft_model(module) or bool(getattr(module, "_hf_peft_config_loaded", False))


def _watch(model: nn.Module) -> None:
    if _before_saving not in model._state_dict_pre_hooks.values():
        model.register_state_dict_pre_hook(_before_saving)
        if _is_peft_model(model):
            model.register_load_state_dict_pre_hook(_before_loading)


def _new_child(parent: nn.Module, name: str, _module: nn.Module | None) -> None:
    """Called by PyTorch before a module becomes the child `name` of `parent`."""
    if name == "base_model" and _is_peft_model(parent):
        _watch(parent)


def _before_saving(model: nn.Module, _prefix: str, _keep_vars: bool) -> None:
    """A state dict is asked for, by PEFT for instance, which then looks for modules that add to it."""
    if CHILD not in model._modules and _has_adapters(model) and named_gates(model):
        from dynamicgate.hf.adapter_file import GatesInAdapter  # PEFT is there: this is one of its models

        model.add_module(CHILD, GatesInAdapter(model, entries))


def adapted(model: Any) -> nn.Module:
    """The model that a `PeftModel` adapts; any other model itself."""
    found: nn.Module = model.get_base_model() if _is_peft_model(model) else model
    return found


def entries(model: nn.Module) -> Entries:
    """What the gates of an adapted model add to the file of an adapter; nothing if there are none."""
    base = adapted(model)
    gates = named_gates(base)
    if not gates:
        return {}
    described = json.dumps({"format": FORMAT, "gates": describe_gates(base)}).encode()
    found = {DESCRIPTION: torch.tensor(list(described), dtype=torch.uint8)}
    for name, gate in gates.items():
        found |= {_entry(name, key): value.detach() for key, value in gate.state_dict().items()}
    return found


def _entry(site: str, key: str) -> str:
    return f"{site}/gate/{key}".replace(".", "/")


def _before_loading(
    model: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any, _strict: bool, *_lists: Any
) -> None:
    """A state dict is being loaded: put gates on that are in it, and take them out of it."""
    marks = (f"{prefix}{CHILD}.", f"{prefix}base_model.model.{CHILD}.")
    found = {key.removeprefix(mark): state.pop(key) for mark in marks for key in list(state) if key.startswith(mark)}
    if found:
        _load_(adapted(model), found)
    elif named_gates(model) and not any(key.endswith(".gate.tau") for key in state):
        warnings.warn(
            "this adapter was saved without gates, and the model has some: they stay as they are. If they were trained "
            "beside the adapter, their values are lost",
            stacklevel=2,
        )


@torch.no_grad()
def _load_(base: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Put the gates of an adapter's file on a model, or their values into the same gates if it has them."""
    described = json.loads(bytes(found[DESCRIPTION].tolist()))
    if described["format"] > FORMAT:
        raise ValueError(f"the gates of this adapter have format {described['format']}: upgrade dynamicgate to load it")
    gates = named_gates(base)
    if not gates:
        put_gates_on_(base, [(GateConfig(**row["config"]), read_site(row["site"])) for row in described["gates"]])
        gates = named_gates(base)
        for gate in gates.values():
            gate.requires_grad_(False)  # as everything else that is not the adapter
    elif described["gates"] != json.loads(json.dumps(describe_gates(base))):
        raise ValueError(
            "the gates of this adapter are not those of the model: load it into the model without gates, or with the "
            "same ones"
        )
    for name, gate in gates.items():
        for key, value in gate.state_dict().items():
            value.copy_(found[_entry(name, key)])


register_module_module_registration_hook(_new_child)
