"""`save_pretrained` and `from_pretrained` keep gates and masks.

`config.json` describes the gates (site and settings) and masks of a model under `quantization_config`, with
`quant_method` "dynamicgate": this is where Transformers lets other packages change a model before its weights are
loaded. Values, tau, theta and masks included, are in the weight files under their own names. A gated model is not
quantised and is treated as an ordinary one in everything else.

A model that is quantised by somebody else has no place there. Its gates are described under `dynamicgate`, and
`dynamicgate.hf.load` reads them.

Without this package Transformers would skip an unknown `quant_method` with a warning and give a model without gates.
`fusion_config`, which it checks strictly, therefore has an entry that it does not know and that says what to do.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.hf.size_check import SizeCheck
from dynamicgate.io.model_file import describe_gates, describe_masks, read_site
from dynamicgate.linears import in_features, out_features
from dynamicgate.masks import declare_mask_

METHOD = "dynamicgate"
NEEDED = "this model has gates: pip install 'dynamicgate[hf]', import dynamicgate.hf, load it with dynamicgate.hf.load"
FORMAT = 1
WHERE_TO_FIND = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)
Description = dict[str, Any]


def describe(model: nn.Module) -> Description:
    """The gates and masks of a model as JSON values, without their tensors."""
    return {"format": FORMAT, "gates": describe_gates(model), "masks": describe_masks(model)}


class _Structure:
    """The description of a model as it is when it is asked for, or of one that is still to be built."""

    def __init__(self, description: Description, model: nn.Module | None = None) -> None:
        self._description = description
        self._model: ReferenceType[nn.Module] | None = None if model is None else ref(model)

    @property
    def description(self) -> Description:
        model = None if self._model is None else self._model()
        return copy.deepcopy(self._description) if model is None else describe(model)

    def is_of(self, model: nn.Module) -> bool:
        """Whether it describes this very model."""
        return self._model is not None and self._model() is model

    def copied(self, memo: dict[int, Any]) -> _Structure:
        """Of the copy of the model, if that is what is copied."""
        model = None if self._model is None else self._model()
        return _Structure(self.description, memo.get(id(model)))


@register_quantization_config(METHOD)
class GatesConfig(QuantizationConfigMixin):
    """The gates and masks of a model, in the place of its quantisation."""

    quant_method = METHOD  # type: ignore[assignment]

    def __init__(self, structure: _Structure | None = None, **description: Any) -> None:
        """From config.json, or from the `structure` of a model."""
        description.pop("quant_method", None)
        if description.get("format", FORMAT) > FORMAT:
            raise ValueError(
                f"the gates of this model have format {description['format']}, this version reads up to {FORMAT}: "
                "upgrade dynamicgate to open it"
            )
        self._structure = structure or _Structure(description)

    def to_dict(self) -> Description:
        """What config.json says: the model as it is now."""
        return {"quant_method": METHOD, **self._structure.description}

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict: Transformers reads it from config.json, or from the config of a loaded model."""
        return self.to_dict().get(name, default)

    def __deepcopy__(self, memo: dict[int, Any]) -> GatesConfig:
        return GatesConfig(self._structure.copied(memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_description, (self._structure.description,)


def _from_description(description: Description) -> GatesConfig:
    return GatesConfig(**description)


class _Beside(dict[str, Any]):
    """The description of a model that is quantised by somebody else. It becomes a dict when a config is written."""

    def __init__(self, structure: _Structure) -> None:
        super().__init__(structure.description)
        self._structure = structure

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        copied = self._structure.copied(memo)
        return copied.description if copied._model is None else _Beside(copied)


def keep_in_config(model: PreTrainedModel) -> None:
    """Make `save_pretrained` of a model, and of the models inside it that have a config of their own, write the gates
    and masks that are there when it is called; if there are none, nothing."""
    described: set[int] = set()
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and id(part.config) not in described:
            described.add(id(part.config))
            _keep_in_its_config(part)


def _keep_in_its_config(model: PreTrainedModel) -> None:
    config = model.config
    forget(config)
    description = describe(model)
    if not description["gates"] and not description["masks"]:
        return
    config.fusion_config = {**(getattr(config, "fusion_config", None) or {}), NEEDED: True}
    structure = _Structure(description, model)
    if getattr(config, "quantization_config", None) is None:
        config.quantization_config = GatesConfig(structure)
    else:
        config.dynamicgate = _Beside(structure)


def is_described(model: PreTrainedModel) -> bool:
    """Whether the config of a model describes its gates and masks already: then no other model has this config."""
    held = (getattr(model.config, name, None) for name in ("quantization_config", METHOD))
    return any(isinstance(one, GatesConfig | _Beside) and one._structure.is_of(model) for one in held)


def forget(config: PreTrainedConfig) -> None:
    """Take everything that is about gates out of a config."""
    if _is_ours(getattr(config, "quantization_config", None)):
        del config.quantization_config
    if hasattr(config, METHOD):
        delattr(config, METHOD)
    fusions = {name: value for name, value in (getattr(config, "fusion_config", None) or {}).items() if name != NEEDED}
    if fusions:
        config.fusion_config = fusions
    elif hasattr(config, "fusion_config"):
        del config.fusion_config


def _is_ours(quantization: Any) -> bool:
    return quantization is not None and quantization_method(quantization) == METHOD


def quantization_method(quantization: Any) -> str | None:
    """The name of a quantisation as config.json says it."""
    found = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    return getattr(found, "value", found)


@register_quantizer(METHOD)
class GatesLoader(HfQuantizer):
    """Puts gates on a model before its weights are loaded. It is a quantizer in name only."""

    is_trainable = True
    is_qat_trainable = True
    is_compileable = True

    def is_serializable(self, *_args: Any, **_kwargs: Any) -> bool:
        """Gates are ordinary tensors."""
        return True

    def update_attn_implementation(self, config: Any) -> Any:
        """Called before anything is checked or built: what stops a program without this package goes."""
        fusions = {name: on for name, on in (getattr(config, "fusion_config", None) or {}).items() if name != NEEDED}
        config.fusion_config = fusions or None
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_options: Any) -> PreTrainedModel:
        put_on_(model, self.quantization_config.to_dict())
        self._shapes = {name: value.shape for name, value in model.state_dict().items()}
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: PreTrainedModel) -> list[Any]:
        """Called before weights are read."""
        self._check = SizeCheck()
        known: list[Any] = super().update_weight_conversions(weight_conversions, model)  # type: ignore[no-untyped-call]
        return [*known, self._check]

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_options: Any) -> PreTrainedModel:
        self._check_loaded(model)
        # From here on an ordinary model: nothing is quantised, and half() or the Trainer must not think so.
        del model.hf_quantizer, model.quantization_method
        vars(model)["is_quantized"] = False
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                module.config._is_quantized = False
        keep_in_config(model)
        return model

    def _check_loaded(self, model: PreTrainedModel) -> None:
        """An error for what is not as it was saved; new values for gates and masks that had to be left out."""
        held: Any = model
        held._weight_conversions = [one for one in held._weight_conversions if one is not self._check]
        other = [name for name, value in model.state_dict().items() if value.shape != self._shapes.get(name)]
        if other:  # set by a converter of the model itself
            raise RuntimeError(f"the saved model has other sizes than this one: {', '.join(other[:3])}")
        gates = {f"{name}.gate" if name else "gate": gate for name, gate in named_gates(model).items()}
        lacking = [f"{name}.tau" for name in gates if f"{name}.tau" not in self._check.seen]
        if self._check.seen and lacking:
            raise ValueError(
                f"config.json describes gates whose values are not in the weights: {', '.join(lacking[:3])}. The model "
                "was built from the config of a model with gates: build it from a config without them, and save it "
                "again"
            )
        for name, gate in gates.items():
            if any(key.startswith(f"{name}.") for key in self._check.mismatched):
                _start_anew_(gate)
        for name in self._check.mismatched:
            if name.endswith(".mask"):
                model.get_buffer(name).fill_(True)


def _start_anew_(gate: Gate) -> None:
    """The values of a new gate, which is open."""
    reads = next((m.in_features for m in gate.net.modules() if isinstance(m, nn.Linear)), gate.site.width)
    gate.net.load_state_dict(Gate(gate.site, gate.config, reads).net.state_dict())


def put_on_(model: PreTrainedModel, description: Description) -> None:
    """Put the described gates, and masks without values, on a model that has none."""
    for name, mask in description["masks"].items():
        linear = model.get_submodule(_name_in(model, name))
        assert isinstance(linear, nn.Linear)
        values = torch.ones(linear.weight.shape, dtype=torch.bool, device=linear.weight.device)
        declare_mask_(linear, values, mask["pattern"])
    rows = description["gates"]
    put_gates_on_(model, [(GateConfig(**row["config"]), _site_in(model, read_site(row["site"]))) for row in rows])


def put_gates_on_(model: nn.Module, gates: list[tuple[GateConfig, Site]]) -> None:
    """Put these gates on a model, those with the same settings together."""
    sites: dict[GateConfig, list[Site]] = {}
    for config, site in gates:
        sites.setdefault(config, []).append(site)
    for config, chosen in sites.items():
        gate_(model, config, where=chosen)


def _site_in(model: PreTrainedModel, site: Site) -> Site:
    """The site with the names and the width it has in `model`; that other widths do not fit the saved values is said
    when these are loaded."""
    moved = site.moved_to(_name_in(model, site.consumer))
    if moved.channels:
        writer: Any = model.get_submodule(moved.producers[0])
        return replace(moved, width=writer.out_channels)
    if moved.factors:
        return replace(moved, width=out_features(model.get_submodule(moved.source)))
    return replace(moved, width=in_features(model.get_submodule(moved.consumer)))


def _name_in(model: PreTrainedModel, name: str) -> str:
    """The name of a layer in `model`, which may have been saved with another head around the same base model."""
    prefix = f"{model.base_model_prefix}."
    modules = dict(model.named_modules())
    for candidate in (name, prefix + name, name.removeprefix(prefix)):
        if candidate in modules:
            return candidate
    raise ValueError(f"the saved model has a gate or a mask on {name!r}, and {type(model).__name__} has no such layer")


def load(folder: str | Path, model_class: type | None = None, **options: Any) -> PreTrainedModel:
    """A model that was saved with gates or masks, whatever else is quantised in it.

    folder: where `save_pretrained` wrote it, or a repository of the Hub.
    model_class: as which model to load it, an Auto class for instance; None: as the class that was saved.
    options: of `from_pretrained`, for example dtype or device_map.
    """
    where = {name: value for name, value in options.items() if name in WHERE_TO_FIND}
    if Path(folder, "adapter_config.json").is_file() and not Path(folder, "config.json").is_file():
        raise ValueError(
            f"{folder} holds an adapter, not a model: load the base model, then "
            "peft.PeftModel.from_pretrained(model, folder), which puts the gates on that were saved with it"
        )
    config = options.pop("config", None) or AutoConfig.from_pretrained(folder, **where)
    saved_as = (config.architectures or ["AutoModel"])[0]
    cls: Any = model_class or getattr(transformers, saved_as, None)
    if cls is None:
        raise ValueError(f"{folder} holds a {saved_as}, which Transformers does not know: pass model_class=")
    if _is_ours(getattr(config, "quantization_config", None)):
        return cls.from_pretrained(folder, config=config, **options)
    description = getattr(config, METHOD, None)
    if description is None:
        raise ValueError(
            f"{folder} holds a model without gates: load it with {cls.__name__}.from_pretrained, then call "
            "dynamicgate.gate_"
        )
    forget(config)
    model: PreTrainedModel = cls.from_pretrained(folder, config=config, **options)
    put_on_(model, description)
    _read_gates_(model, Path(folder))
    model.train(False)
    return model


@torch.no_grad()
def _read_gates_(model: PreTrainedModel, folder: Path) -> None:
    """Load the tensors of the gates from the weight files, which `from_pretrained` read without knowing them."""
    if not folder.is_dir():
        raise ValueError(
            f"{folder} has gates beside another quantisation, which are read from a local folder: download it first "
            "with huggingface_hub.snapshot_download"
        )
    wanted: dict[str, Tensor] = {}
    for name, gate in named_gates(model).items():
        wanted |= {f"{name}.gate.{key}": value for key, value in gate.state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in wanted.keys() & set(file.keys()):
                saved, value = file.get_tensor(key), wanted.pop(key)
                if saved.shape != value.shape:  # copying would spread a smaller tensor over a larger one
                    raise ValueError(f"{key} is {list(saved.shape)} in {folder}, and {list(value.shape)} in the model")
                value.copy_(saved)
    if wanted:
        raise ValueError(f"{folder} does not hold the values of {', '.join(sorted(wanted)[:3])}: save the model again")
