"""Compiled language models in a file. A native decoder is mapped from the file, not copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.inference.decoder_parts import whole_parts_of
from dynamicgate.inference.gates import without_prefix
from dynamicgate.inference.language.layer_by_layer import restore_layers
from dynamicgate.inference.language.native import NativeDecoder, NativeLanguageModel
from dynamicgate.inference.language.plan import BY_LAYER, NATIVE, TORCH
from dynamicgate.inference.shadow_copy import copy_sharing_memory, stop_sharing_
from dynamicgate.io.tensor_file import refuse_differences, restore


def tensors_of(body: nn.Module, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a file has to hold: of a decoder the native part, which is all of it."""
    if described["way"] in NATIVE and described.get("within") is None:
        body = native_decoder(body)[1]
    return body.state_dict()


def native_decoder(body: nn.Module) -> tuple[str, NativeDecoder]:
    """The native decoder inside a model, and its name there."""
    return next((name, module) for name, module in body.named_modules() if isinstance(module, NativeDecoder))


def body_from(
    described: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path, into: nn.Module | None
) -> nn.Module:
    """The compiled model that was saved. into: needed unless the file holds all of it."""
    way = described["way"]
    if way not in (*NATIVE, BY_LAYER, TORCH):
        raise ValueError(f"the plan runs in an unknown way, {way!r:.40}")
    if way in NATIVE and described["own"]:
        return NativeLanguageModel(_decoder(tensors)).eval()
    if into is None:
        raise ValueError(
            f"part of the model in {path} runs in torch: pass an instance with CompiledModel.load(path, into=model)"
        )
    if way in NATIVE:
        make = whole_parts_of(copy_sharing_memory(into)).into
        if make is None:
            raise ValueError("the plan was made for a model of another library")
        within = described.get("within")
        if within is None:
            return make(_decoder(tensors)).eval()
        body = make(_decoder(without_prefix(tensors, within))).eval()
        _restore_around(body, within, tensors, path)
        return body
    body = restore_layers(into, described["layers"], tensors) if way == BY_LAYER else copy_sharing_memory(into)
    stop_sharing_(body, into)
    restore(body, tensors, path)
    return body


def _restore_around(body: nn.Module, within: str, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load everything but the native part, which stays mapped."""
    own = body.state_dict()
    refuse_differences(own, tensors, path, [f"{k} is not in the model" for k in tensors.keys() - own.keys()])
    body.load_state_dict({k: v for k, v in tensors.items() if not k.startswith(f"{within}.")}, strict=False)


def _decoder(tensors: Mapping[str, Tensor]) -> NativeDecoder:
    packed = ops.decoder.PackedDecoder(tensors["weights"], tensors["program"])
    decoder = NativeDecoder(packed, tensors.get("embedding"), tensors.get("positions"))
    embedding, positions = decoder.embedding, decoder.positions
    if embedding is not None and embedding.shape != (decoder.tokens, decoder.sizes[1]):
        raise ValueError(f"expected an embedding [{decoder.tokens}, {decoder.sizes[1]}]: {tuple(embedding.shape)}")
    if positions is not None and (positions.ndim != 2 or positions.shape[1] != decoder.sizes[1]):
        raise ValueError(f"expected learned positions of {decoder.sizes[1]} features: {tuple(positions.shape)}")
    if embedding is None and packed.outputs and not packed.head_in_panels:
        raise ValueError("an embedding that is tied to the head needs a head in panels")
    return decoder
