"""The dense rivals of `cpu_language.py`: one step of a decoder, written for a cache of fixed length, as torch.compile
and ONNX Runtime like it. Everything about the model comes from its `DecoderParts`.

Shapes in names: L layers, B sequences, T new positions, S cached positions, K heads of keys, E features of a head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts, parts_of, rotate

Calls = dict[str, Callable[[], object]]


class Step(nn.Module):
    """Tokens to the scores of the next one, after the positions of a cache that is not changed."""

    speed: Tensor

    def __init__(self, parts: DecoderParts) -> None:
        """On the weights of the model itself."""
        super().__init__()
        self.parts = parts
        self.held = nn.ModuleList([parts.embed, parts.norm, parts.head])
        for block in parts.blocks:
            held = (block.norm1, *block.qkv, block.mix, block.norm2, block.up, block.value, block.down)
            self.held.extend(module for module in held if module is not None)
        self.register_buffer("speed", parts.speed.detach().float())

    def forward(self, ids_BT: Tensor, cache_LBKSE2: Tensor | None = None) -> Tensor:
        """Scores at the last position."""
        past = 0 if cache_LBKSE2 is None else cache_LBKSE2.shape[4]
        position = torch.arange(past, past + ids_BT.shape[1])
        angle = position[:, None].float() * self.speed
        scale = self.parts.rotation_scale
        turn = (angle.cos() * scale, angle.sin() * scale)
        x = self.parts.embed(ids_BT)
        for number, block in enumerate(self.parts.blocks):
            x = x + self._attention(block, x, turn, None if cache_LBKSE2 is None else cache_LBKSE2[number])
            y = block.norm2(x)
            h = ACTIVATIONS[block.activation].function(block.up(y))
            x = x + block.down(h if block.value is None else h * block.value(y))
        return self.parts.head(self.parts.norm(x[:, -1:]))

    def _attention(
        self, block: BlockParts, x: Tensor, turn: tuple[Tensor, Tensor], cache_2BKSE: Tensor | None
    ) -> Tensor:
        p, y = self.parts, block.norm1(x)
        E = 2 * len(p.speed)
        qkv = torch.cat([linear(y) for linear in block.qkv], dim=-1) if len(block.qkv) > 1 else block.qkv[0](y)
        q, k, v = qkv.unflatten(-1, (-1, E)).transpose(1, 2).split([p.heads, p.key_heads, p.key_heads], dim=1)
        q, k = rotate(q, turn), rotate(k, turn)
        if cache_2BKSE is not None:
            k, v = torch.cat((cache_2BKSE[0], k), dim=2), torch.cat((cache_2BKSE[1], v), dim=2)
        if p.heads != p.key_heads:
            k, v = (part.repeat_interleave(p.heads // p.key_heads, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=cache_2BKSE is None, scale=p.score_scale)
        return block.mix(mixed.transpose(1, 2).flatten(2))


def decode_rivals(model: nn.Module, before_BS: Tensor, new_B1: Tensor, names: Sequence[str]) -> Calls:
    """One more token after `before_BS`."""
    step = Step(parts_of(model)).eval()
    p = step.parts
    E, shape = 2 * len(p.speed), (len(p.blocks), 2, len(before_BS), p.key_heads, before_BS.shape[1])
    return _calls(step, (new_B1, torch.randn(*shape, E)), names)


def prompt_rivals(model: nn.Module, ids_BT: Tensor, names: Sequence[str]) -> Calls:
    """A prompt."""
    return _calls(Step(parts_of(model)).eval(), (ids_BT,), names)


def _calls(step: nn.Module, inputs: tuple[Tensor, ...], names: Sequence[str]) -> Calls:
    found: Calls = {}
    if "torch.compile" in names:
        compiled = torch.compile(step, dynamic=False)
        found["torch.compile"] = lambda: compiled(*inputs)
    if "onnxruntime" in names:
        found["onnxruntime"] = _onnxruntime(step, inputs)
    return found


def _onnxruntime(step: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        with torch.no_grad():
            torch.onnx.export(step, inputs, path, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fed = {given.name: tensor.numpy() for given, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, fed)
