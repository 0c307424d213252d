"""Read every wav file of a folder or archive once, as waveforms or log-mel features, and keep them in a cache.

The cache holds all clips of a source, whatever classes and parts a dataset makes of them, so that another seed or
another set of labels reads nothing again. It is two files, named by a hash of the source and of the feature settings:
`<hash>.rows` (all rows, memory-mapped) and `<hash>.npz` (names, lists, noise), which is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.files import file_sha256, replacing
from dynamicgate.lab.datasets.archive import read_members
from dynamicgate.lab.datasets.speech.mel_features import MelConfig, log_mel
from dynamicgate.lab.datasets.speech.wav_format import FULL_SCALE, fit_length, read_wav, to_int16

NOISE_FOLDER = "_background_noise_"
CHUNK = 256  # clips at a time; 200 MB of spectrum with the longest preset
FORMAT = 2  # of the cache; another number makes older caches unread


@dataclass(frozen=True, eq=False)
class Clips:
    """Rows in the order of `names` (paths inside the source): int16 waves [n, T] or float32 features [n, M * F].

    `texts` are the text files that were asked for; `noise` are the complete int16 waves of the background noise folder.
    """

    names: tuple[str, ...]
    rows: npt.NDArray[Any]
    texts: Mapping[str, str]
    noise: Mapping[str, npt.NDArray[np.int16]]

    def take(self, indices: Sequence[int]) -> torch.Tensor:
        """A copy of the rows at these indices."""
        return torch.from_numpy(np.array(self.rows[np.asarray(indices, dtype=np.intp)]))


def read_clips(
    source: Path, config: MelConfig, *, waves: bool, folders: Sequence[Path], texts: Iterable[str] = ()
) -> Clips:
    """The clips of `source`, from a cache in one of `folders`, else read and cached in the first writable one.

    Features are computed from waves rounded to 16 bits, so that cached waves and cached features agree.
    """
    wanted_texts = frozenset(texts)
    key = _key(source, config, waves, wanted_texts)
    for folder in folders:
        if (found := _read_cache(folder / key)) is not None:
            return found
    folder = _first_writable(folders)
    _write_cache(source, config, waves, folder / key, wanted_texts)
    found = _read_cache(folder / key)
    assert found is not None
    return found


def wave_features(waves_BT: torch.Tensor, config: MelConfig) -> torch.Tensor:
    """[B, M * F] log-mel features of waves in 16-bit units (int16, or floating point after augmentation)."""
    pieces = [log_mel(piece.float() / FULL_SCALE, config).flatten(1) for piece in waves_BT.split(CHUNK)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def is_visible(name: str) -> bool:
    """Whether no part of the path is hidden, unlike caches and the `._x.wav` files that macOS puts into archives."""
    return not any(part.startswith(".") for part in PurePosixPath(name).parts)


def _is_wav(name: str) -> bool:
    return name.lower().endswith(".wav") and is_visible(name)


def _is_wanted(name: str, texts: frozenset[str]) -> bool:
    return PurePosixPath(name).name in texts or _is_wav(name)


def _key(source: Path, config: MelConfig, waves: bool, texts: frozenset[str]) -> str:
    if source.is_dir():
        files = [Path(folder) / name for folder, _, names in os.walk(source) for name in names]
        named = sorted((path.relative_to(source).as_posix(), path) for path in files)
        stats = [(name, path.stat()) for name, path in named if _is_wanted(name, texts)]
    else:
        stats = [(source.name, source.stat())]
    fingerprint = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    options = {"rate": config.rate, "samples": config.samples} if waves else asdict(config)
    return hashlib.blake2b(json.dumps([FORMAT, options, fingerprint]).encode(), digest_size=12).hexdigest()


def _read_cache(path: Path) -> Clips | None:
    """What `_write_cache` wrote; None if there is nothing, or if it is incomplete or damaged and must be rebuilt."""
    rows, rest = path.with_suffix(".rows"), path.with_suffix(".npz")
    try:
        with rest.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            about, noise = json.loads(archive["about"].tobytes()), archive["noise"]  # zip holds checksums of both
        shape = (len(about["names"]), about["width"])
        dtype = np.dtype(about["dtype"])
        if rows.stat().st_size != shape[0] * shape[1] * dtype.itemsize:
            return None
        if file_sha256(rows) != about["sha256"]:
            warnings.warn(f"{rows} was damaged since it was written: it is made again", stacklevel=3)
            return None
        mapped = np.memmap(rows, dtype, "r", shape=shape)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    ends = np.cumsum([length for _, length in about["noise"]])
    pieces = np.split(noise, ends[:-1]) if about["noise"] else []
    by_name = {name: piece for (name, _), piece in zip(about["noise"], pieces, strict=True)}
    return Clips(tuple(about["names"]), mapped, about["texts"], by_name)


def _write_cache(source: Path, config: MelConfig, waves: bool, path: Path, wanted_texts: frozenset[str]) -> None:
    names: list[str] = []
    texts: dict[str, str] = {}
    noise: dict[str, npt.NDArray[np.int16]] = {}

    def clips() -> Iterator[npt.NDArray[np.int16]]:
        for name, content in read_members(source, lambda name: _is_wanted(name, wanted_texts)):
            member = PurePosixPath(name)
            if not _is_wav(name):
                texts[member.name] = content.decode("utf-8", errors="replace")
                continue
            wave = to_int16(read_wav(content, f"{source}: {name}", config.rate))
            if member.parent.name == NOISE_FOLDER:
                noise[name] = wave
            else:
                names.append(name)
                yield fit_length(wave, config.samples)

    def write_rows(file: IO[bytes]) -> None:
        remaining = clips()
        while chunk := list(islice(remaining, CHUNK)):
            block = torch.from_numpy(np.stack(chunk))
            file.write((block if waves else wave_features(block, config)).numpy().tobytes())
        if not names:
            raise ValueError(
                f"{source} contains no .wav files except background noise; expected a folder for each class"
            )

    def write_rest(file: IO[bytes]) -> None:
        about = {
            "names": names,
            "width": config.samples if waves else config.features,
            "dtype": "int16" if waves else "float32",
            "texts": texts,
            "noise": [(name, len(wave)) for name, wave in sorted(noise.items())],
            "source": str(source),
            "config": asdict(config),
            "sha256": file_sha256(path.with_suffix(".rows")),
        }
        whole = np.concatenate([noise[name] for name in sorted(noise)] or [np.zeros(0, np.int16)])
        np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), noise=whole)

    for suffix, write in ((".rows", write_rows), (".npz", write_rest)):
        with replacing(path.with_suffix(suffix)) as temporary, temporary.open("wb") as file:
            write(file)


def _first_writable(folders: Sequence[Path]) -> Path:
    for folder in folders:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        # A folder without write permission is meant to stay as it is, even if we are root and could write.
        if existing.stat().st_mode & 0o222 and os.access(existing, os.W_OK):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            return folder
    looked = ", ".join(map(str, folders))
    raise PermissionError(
        f"no folder to cache the clips in: {looked} cannot be written to; give another with cache_dir="
    )
