"""The dense rivals of the benchmarks of language models: a call by torch.compile and by ONNX Runtime.

Of decoders it is one step. They do the work of our plans: every position of a prompt is scored, and its keys and
values are kept. torch.compile writes them into a cache of fixed room. ONNX Runtime has no memory of its own to write,
so that a step copies the cache into a longer one, as decoders that are exported do.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.inference.decoder_parts import DecoderParts, parts_of
from dynamicgate.lab.cli.decoder_step import DecoderStep

Calls = dict[str, Callable[[], object]]
COMPILE, AUTOTUNE = "torch.compile", "torch.compile max-autotune"
ONNX, ONNX_INT8 = "onnxruntime", "onnxruntime int8"
RIVALS = (COMPILE, AUTOTUNE, ONNX, ONNX_INT8)
RECOMPILATIONS = 64  # one for each rival and width: with fullgraph more than the limit is an error, never eager


class Rivals(NamedTuple):
    """What can be timed, and of what cannot the reason."""

    calls: Calls
    skipped: dict[str, str]


def decode_rivals(model: nn.Module, before_BS: Tensor, new_B1: Tensor, names: Sequence[str]) -> Rivals:
    """One more token after `before_BS`."""
    return _rivals(parts_of(model), before_BS.shape[1], new_B1, names)


def prompt_rivals(model: nn.Module, ids_BT: Tensor, names: Sequence[str]) -> Rivals:
    """A prompt."""
    return _rivals(parts_of(model), 0, ids_BT, names)


def torch_int8(model: nn.Module) -> nn.Module:
    """The model with the weights of its linear layers in int8, and their inputs too, call by call: dynamic quantization
    of torch."""
    torch.backends.quantized.engine = "onednn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and there is no replacement in torch
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def _rivals(parts: DecoderParts, past: int, ids_BT: Tensor, names: Sequence[str]) -> Rivals:
    found = Rivals({}, {})
    for name in names:
        step = DecoderStep(parts, past, in_place=name in (COMPILE, AUTOTUNE)).eval()
        add_rival(found, name, step, ids_BT, step.cache(*ids_BT.shape))
    return found


def add_rival(found: Rivals, name: str, module: nn.Module, *given: Tensor | list[Tensor]) -> None:
    """A module as a rival, called with what is given, in that shape only."""
    try:
        with torch.inference_mode():
            made = MAKERS[name](module, *given)
            made()
        found.calls[name] = made
    except Exception as error:  # of a compiler or an exporter: anything
        found.skipped[name] = left_out(name, error)


def left_out(name: str, error: Exception) -> str:
    """Why a rival cannot be timed, which is said at once."""
    first = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {first:.200}"
    print(f"{name} is left out: {reason}", flush=True)
    return reason


def _compiled(mode: str, module: nn.Module, *given: Tensor | list[Tensor]) -> Callable[[], object]:
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    compiled = torch.compile(module, dynamic=False, fullgraph=True, mode=mode)
    return lambda: compiled(*given)


def _onnxruntime(module: nn.Module, *given: Tensor | list[Tensor], int8: bool) -> Callable[[], object]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        with torch.inference_mode(False), torch.no_grad():
            torch.onnx.export(module, given, path, dynamo=True, verbose=False)
        if int8:
            path = _in_int8(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensors = [tensor for one in given for tensor in ([one] if isinstance(one, Tensor) else one)]
    fed = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), tensors, strict=True)}
    return lambda: session.run(None, fed)


def _in_int8(path: Path) -> Path:
    """The same graph with weights in int8, one scale for each output, and inputs of its products in uint8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out = path.with_name("step-int8.onnx")
    quantize_dynamic(path, out, weight_type=QuantType.QInt8, per_channel=True)
    return out


MAKERS: dict[str, Callable[..., Callable[[], object]]] = {
    COMPILE: lambda *given: _compiled("default", *given),
    AUTOTUNE: lambda *given: _compiled("max-autotune", *given),
    ONNX: lambda *given: _onnxruntime(*given, int8=False),
    ONNX_INT8: lambda *given: _onnxruntime(*given, int8=True),
}
