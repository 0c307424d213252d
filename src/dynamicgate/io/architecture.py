"""The JSON description of a module, and the module built again from it.

`LAYERS` has one entry for each class that can be described. A model of any other class is saved with its tensors only,
and needs an instance when it is loaded: ``load(path, into=model)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.attach import ungate_
from dynamicgate.nn import FFN, GatedMLP, Normalize, Switch, SwitchMLP

Description = dict[str, Any]


def describe(module: nn.Module) -> Description:
    """A JSON description from which `build` makes an untrained module of the same shape, without gates."""
    cls = type(module)
    layer = LAYERS.get(cls.__name__)
    if layer is None or layer.cls is not cls:  # a subclass may compute something else
        return {"kind": "custom", "class": f"{cls.__module__}.{cls.__qualname__}"}
    return {"kind": cls.__name__, **layer.describe(module)}


def build(description: Description, path: Path) -> nn.Module:
    """The module that `describe` described; `path`, the file it was read from, is named in errors."""
    kind = description["kind"]
    if kind == "custom":
        raise ValueError(
            f"{path} holds a model of your own class {description['class']}: pass an instance with "
            "load(path, into=model). A command cannot: take dynamicgate.compile and dynamicgate.export in Python"
        )
    if kind not in LAYERS:
        raise ValueError(
            f"{path} describes a layer of kind {kind!r}, which this version does not know: upgrade dynamicgate"
        )
    return LAYERS[kind].build(description, path)


class Layer(NamedTuple):
    """How one class is described and built again; `describe` gives everything but the kind."""

    cls: type[nn.Module]
    describe: Callable[[Any], Description]
    build: Callable[[Description, Path], nn.Module]


def _from_arguments(cls: type[nn.Module], *names: str) -> Layer:
    """A class whose constructor arguments are attributes of the same name."""
    return Layer(
        cls,
        describe=lambda module: {name: getattr(module, name) for name in names},
        build=lambda d, _path: cls(**_arguments(d, names)),
    )


def _arguments(d: Description, names: Iterable[str]) -> dict[str, Any]:
    """Arguments of a class by name; JSON has lists only, and sizes of images are tuples."""
    return {name: tuple(d[name]) if isinstance(d[name], list) else d[name] for name in names}


def _describe_gated_mlp(module: GatedMLP) -> Description:
    return {
        "sizes": module.sizes,
        "activation": module.activation,
        "dropout": module.dropout.p,
        "normalize": describe(module.normalize),
    }


def _build_gated_mlp(d: Description, path: Path) -> nn.Module:
    model = GatedMLP(d["sizes"], activation=d["activation"], dropout=d["dropout"])
    model.normalize = build(d["normalize"], path)  # type: ignore[assignment]
    return model


_FFN_ARGUMENTS = ("activation", "gate_gradient", "kernels")


def _describe_ffn(module: FFN) -> Description:
    return {
        "size": [module.up.in_features, module.up.out_features, module.down.out_features],
        "value": module.value is not None,
        "bias": module.up.bias is not None,
        **{name: getattr(module, name) for name in _FFN_ARGUMENTS},
    }


def _build_ffn(d: Description, _path: Path) -> nn.Module:
    return FFN(*d["size"], **{name: d[name] for name in ("value", "bias", *_FFN_ARGUMENTS)})


_SWITCH_ARGUMENTS = ("fallback", "activation", "kernels")


def _describe_switch(module: Switch) -> Description:
    size = [module.features, module.experts, module.width]
    return {"size": size, **{name: getattr(module, name) for name in _SWITCH_ARGUMENTS}}


def _build_switch(d: Description, _path: Path) -> nn.Module:
    # The router is in the file's list of gates, which may also have none or another one.
    return ungate_(Switch(*d["size"], **{name: d[name] for name in _SWITCH_ARGUMENTS}))


def _describe_switch_mlp(module: SwitchMLP) -> Description:
    return {
        "inputs": module.fc1.in_features,
        "outputs": module.fc2.out_features,
        "switch": describe(module.switch),
        "normalize": describe(module.normalize),
    }


def _build_switch_mlp(d: Description, path: Path) -> nn.Module:
    hidden, experts, width = d["switch"]["size"]
    model = SwitchMLP(d["inputs"], hidden, experts, width, d["outputs"], top_k=1)
    model.switch = build(d["switch"], path)  # type: ignore[assignment]
    model.normalize = build(d["normalize"], path)  # type: ignore[assignment]
    return model


def _describe_normalize(module: Normalize) -> Description:
    return {"mean_shape": list(module.mean.shape), "std_shape": list(module.std.shape)}


def _build_normalize(d: Description, _path: Path) -> nn.Module:
    return Normalize(torch.zeros(d["mean_shape"]), torch.ones(d["std_shape"]))


def _describe_sequential(module: nn.Sequential) -> Description:
    # not named_children(), which leaves out a module that occurs a second time
    return {"modules": {name: describe(child) for name, child in module._modules.items()}}


def _build_sequential(d: Description, path: Path) -> nn.Module:
    sequential = nn.Sequential()
    for name, child in d["modules"].items():
        sequential.add_module(name, build(child, path))
    return sequential


def _describe_linear(module: nn.Linear) -> Description:
    return {"size": [module.in_features, module.out_features], "bias": module.bias is not None}


def _build_linear(d: Description, _path: Path) -> nn.Module:
    inputs, outputs = d["size"]
    return nn.Linear(inputs, outputs, bias=d["bias"])


_CONV_ARGUMENTS = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


def _describe_conv2d(module: nn.Conv2d) -> Description:
    return {
        "size": [module.in_channels, module.out_channels],
        "bias": module.bias is not None,
        **{name: getattr(module, name) for name in _CONV_ARGUMENTS},
    }


def _build_conv2d(d: Description, _path: Path) -> nn.Module:
    inputs, outputs = d["size"]
    return nn.Conv2d(inputs, outputs, bias=d["bias"], **_arguments(d, _CONV_ARGUMENTS))


def _describe_layer_norm(module: nn.LayerNorm) -> Description:
    affine = {"elementwise_affine": module.weight is not None, "bias": module.bias is not None}
    return {"shape": list(module.normalized_shape), "eps": module.eps, **affine}


def _build_layer_norm(d: Description, _path: Path) -> nn.Module:
    return nn.LayerNorm(d["shape"], d["eps"], elementwise_affine=d["elementwise_affine"], bias=d["bias"])


_BATCH_NORM_ARGUMENTS = ("num_features", "eps", "momentum", "affine", "track_running_stats")

LAYERS: dict[str, Layer] = {
    layer.cls.__name__: layer
    for layer in (
        Layer(GatedMLP, _describe_gated_mlp, _build_gated_mlp),
        Layer(FFN, _describe_ffn, _build_ffn),
        Layer(Switch, _describe_switch, _build_switch),
        Layer(SwitchMLP, _describe_switch_mlp, _build_switch_mlp),
        Layer(Normalize, _describe_normalize, _build_normalize),
        Layer(nn.Sequential, _describe_sequential, _build_sequential),
        Layer(nn.Linear, _describe_linear, _build_linear),
        Layer(nn.LayerNorm, _describe_layer_norm, _build_layer_norm),
        Layer(nn.Conv2d, _describe_conv2d, _build_conv2d),
        *(_from_arguments(cls, *_BATCH_NORM_ARGUMENTS) for cls in (nn.BatchNorm1d, nn.BatchNorm2d)),
        _from_arguments(nn.MaxPool2d, "kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"),
        _from_arguments(
            nn.AvgPool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
        ),
        _from_arguments(nn.AdaptiveAvgPool2d, "output_size"),
        *(_from_arguments(cls, "p") for cls in (nn.Dropout, nn.Dropout2d)),
        _from_arguments(nn.Flatten, "start_dim", "end_dim"),
        _from_arguments(nn.ELU, "alpha"),
        _from_arguments(nn.Softplus, "beta", "threshold"),
        *(_from_arguments(cls) for cls in (nn.Sigmoid, nn.Mish)),
        *(_from_arguments(activation.module, *activation.options) for activation in ACTIVATIONS.values()),
    )
}
