"""One safetensors file with our JSON header: the container of models, checkpoints and compiled models.

The file holds checksums of its header and of its tensors, which are compared when it is read: a bit that a disk or a
copy lost is an error and not another result. Files of earlier versions have none, and are read without. Checksums are
no signature: whoever can write a file can write its checksums. A stranger's file is safe to read because nothing in its
header is believed before it was compared with the tensors that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dynamicgate.files import write_atomically

FORMAT = 2  # 2: stages. A file without them is written as format 1, which earlier versions read.
HEADER = "dynamicgate"  # one key only: safetensors writes several in any order, and equal models should be equal files
_SURPRISES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, RuntimeError, TypeError,
)  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header to one safetensors file, atomically."""
    storages: set[int] = set()
    flat = {}
    for name, tensor in tensors.items():
        # a conjugate or negation that torch has not yet carried out has other numbers in its memory
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # safetensors refuses two names for one storage (tied weights); each gets its own copy in the file
        flat[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in storages else tensor
        storages.add(flat[name].untyped_storage().data_ptr())
    text = json.dumps({"format": FORMAT if "stages" in header else 1, **header})
    metadata = {HEADER: with_checksums(text, flat)}
    write_atomically(path, lambda temporary: _save_file(flat, temporary, metadata))


def read_tensors(
    path: Path, *, kind: str | tuple[str, ...], with_tensors: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header that `write_tensors` wrote; any other file is refused with what is wrong with it.

    kind: what the file must hold, or several of which it must hold one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError, *_SURPRISES) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file (truncated, or another kind of file): {error}"
        ) from error
    if HEADER not in metadata:
        raise ValueError(f"{path} is a safetensors file, but DynamicGate did not write it: it has no header of ours")
    text, _, sums = metadata[HEADER].partition("\n")
    if sums:  # files of earlier versions have none
        _compare_checksums(path, text, sums, tensors if with_tensors else None)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is not readable as JSON ({error})") from error
    number = header.get("format") if isinstance(header, dict) else None
    if type(number) is not int or number < 1 or not isinstance(header.get("kind"), str):
        raise ValueError(f"{path} is damaged: its header does not say what the file holds")
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}, this version reads up to {FORMAT}: upgrade dynamicgate to open it"
        )
    kinds = (kind,) if isinstance(kind, str) else kind
    if header["kind"] not in kinds:
        raise ValueError(f"{path} holds a {header['kind']}, expected a {' or a '.join(kinds)}")
    return tensors, header


def restore(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load `tensors` into `model` by name; if names or shapes differ, say which."""
    own = model.state_dict()
    refuse_differences(own, tensors, path, [f"{k} is not in the model" for k in tensors.keys() - own.keys()])
    model.load_state_dict(dict(tensors))


def refuse_differences(
    own: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    path: Path,
    problems: Sequence[str] = (),
    *,
    said: str = "holds a model of another architecture",
) -> None:
    """Raise ValueError unless each of the model's `own` tensors is in the file, in its shape and as numbers that it can
    hold; `problems` are differences found before, `said` is what they mean."""
    problems = list(problems)
    problems += [f"{k} is not in the file" for k in own.keys() - tensors.keys()]
    for k in own.keys() & tensors.keys():
        if own[k].shape != tensors[k].shape:
            problems.append(f"{k} is {list(own[k].shape)} in the model and {list(tensors[k].shape)} in the file")
        elif own[k].is_floating_point() != tensors[k].is_floating_point():
            problems.append(f"{k} is {own[k].dtype} in the model and {tensors[k].dtype} in the file")
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{path} {said}: {'; '.join(sorted(problems)[:5])}{more}")


def check_size(make: Callable[[], nn.Module], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a description whose tensors are not in the file, before they take any memory: 200 bytes can describe a
    layer of a terabyte."""
    with torch.device("meta"):
        model = make()
    refuse_differences(model.state_dict(), tensors, path)


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn what a header with the wrong contents leads to (a missing key, a text for a number, a negative size) into a
    ValueError that names the file."""
    try:
        yield
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    except _SURPRISES as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged, its header does not fit: {type(error).__name__}: {text}") from error


def with_checksums(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A header and, on a line of their own, the checksums of the header and the tensors."""
    return f"{text}\n{json.dumps({'header': _of_text(text), 'tensors': _of_tensors(tensors)})}"


def _compare_checksums(path: Path, text: str, sums: str, tensors: Mapping[str, Tensor] | None) -> None:
    found = {"header": _of_text(text)}
    if tensors is not None:
        found["tensors"] = _of_tensors(tensors)
    try:
        stored = json.loads(sums)
        wrong = [part for part, digest in found.items() if stored[part] != digest]
    except (ValueError, LookupError, TypeError, RecursionError):
        wrong = ["checksums"]
    if wrong:
        raise ValueError(
            f"{path} is damaged: its {' and its '.join(wrong)} changed since it was written; copy it again or delete it"
        )


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """sha256, because processors have instructions for it: 100 MB in 0.06 s, and in 0.16 s with blake2b."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # it wraps the operating system's error, a full disk for instance
        raise OSError(str(error)) from error
