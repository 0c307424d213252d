"""Changes to files, drawn from a seed: bytes at random, or, as a forger would, contents with the right checksums."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dynamicgate.io.tensor_file import HEADER, with_checksums

ODD_NUMBERS = (0, 1, -1, 2, 15, 16, 17, 255, 256, 4096, 65535, 65536, 1 << 23, 1 << 30, (1 << 31) - 1, -(1 << 31))
ODD_VALUES: tuple[Any, ...] = (
    None, True, "", "x", "relu", [], [0], {}, {"kind": "x"}, -1, 0, 1, 2, 1e300, float("nan"), float("inf"), 0.5, 10**9,
    10**30, "../../x", [10**9, 10**9], [-1], "packed", "dense",
)  # fmt: skip


def mutate_bytes(content: bytes, pick: random.Random) -> bytes:
    """A few bytes flipped, overwritten, removed, repeated or cut off."""
    found = bytearray(content)
    for _ in range(pick.choice((1, 1, 1, 2, 5, 20))):
        at = pick.randrange(len(found) + 1) if pick.random() < 0.5 else pick.randrange(min(len(found), 2048) + 1)
        match pick.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << pick.randrange(8)
            case 1:
                found[at : at + 4] = pick.choice(ODD_NUMBERS).to_bytes(8, "little", signed=True)[:4]
            case 2:
                del found[at : at + pick.choice((1, 4, 100))]
            case 3:
                found[at:at] = found[at : at + pick.choice((1, 8, 512))]
            case 4 if pick.random() < 0.2:
                del found[at:]
            case 5:
                found[at : at + 8] = pick.randbytes(8)
            case _ if at < len(found):
                found[at] = pick.choice((0, 255, 0x7F, ord("9"), ord('"')))
    return bytes(found)


def forge(path: Path, target: Path, pick: random.Random) -> None:
    """The tensors or the header of a file of ours changed, with checksums that are right."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER].partition("\n")[0])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for _ in range(pick.choice((1, 1, 2, 3))):
        if pick.random() < 0.6:
            _change_tensor(tensors, pick)
        else:
            header = _change_value(header, pick)
    save_file(tensors, target, {HEADER: with_checksums(json.dumps(header), tensors)})


def _change_tensor(tensors: dict[str, torch.Tensor], pick: random.Random) -> None:
    if not tensors:
        return
    programs = [name for name in tensors if name.endswith("program")]
    name = pick.choice(programs) if programs and pick.random() < 0.8 else pick.choice(sorted(tensors))
    tensor = tensors[name].clone()
    kind = pick.randrange(12)
    if kind == 0:
        del tensors[name]
        return
    if kind == 1:
        tensors[f"{name}.more"] = tensor
        return
    if kind == 2:
        tensor = tensor.reshape(-1)[: pick.randrange(tensor.numel() + 1)].clone()
    elif kind == 3:
        tensor = tensor.to(pick.choice((torch.float64, torch.int64, torch.uint8, torch.bool, torch.int32)))
    elif kind == 4:
        tensor = tensor.reshape(1, *tensor.shape)
    elif tensor.numel():
        flat = tensor.view(-1)
        for _ in range(pick.choice((1, 1, 2, 4))):
            at = pick.randrange(min(len(flat), 160)) if pick.random() < 0.7 else pick.randrange(len(flat))
            if flat.dtype == torch.int32:
                near = int(flat[at]) + pick.choice((-16, -1, 1, 2, 16, 4096))
                value = pick.choice((*ODD_NUMBERS, int(flat[pick.randrange(len(flat))]), near, near, near))
                flat[at] = max(-(1 << 31), min((1 << 31) - 1, value))
            else:
                flat[at] = (
                    pick.choice((0, 1)) if not flat.is_floating_point() else pick.choice((0.0, float("nan"), 1e30))
                )
    tensors[name] = tensor.contiguous()


def _change_value(header: Any, pick: random.Random) -> Any:
    """One value somewhere in the header replaced, or a key removed."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(header)
    if not places:
        return deepcopy(pick.choice(ODD_VALUES))
    holder, key = pick.choice(places)
    if isinstance(holder, dict) and pick.random() < 0.15:
        del holder[key]
    elif isinstance(holder, list) and pick.random() < 0.15:
        holder.append(deepcopy(holder[key]))
    else:
        holder[key] = deepcopy(pick.choice(ODD_VALUES))
    return header
