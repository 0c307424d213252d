"""Write small datasets as a folder or as any kind of archive the loaders read, and encode small images."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

KINDS = ("folder", ".tar", ".tar.gz", ".tar.xz", ".zip")


def pack(files: Mapping[str, bytes], where: Path, stem: str, kind: str) -> Path:
    """`files` as the archive `where/stem<kind>`, or as plain files under `where` for "folder"."""
    where.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        for name, content in files.items():
            path = where / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return where
    path = where / f"{stem}{kind}"
    if kind == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, {".tar": "w", ".tar.gz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}[kind]) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def tar_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def zip_with_link(path: Path) -> Path:
    info = zipfile.ZipInfo("link")
    info.create_system = 3  # Unix
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return path


def image_bytes(pixels: np.ndarray, format: str = "PNG", **options: object) -> bytes:
    """An image file of uint8 pixels [H, W], [H, W, 3] or [H, W, 4]."""
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(pixels).save(written, format, **options)
    return written.getvalue()
